"""What mpirun gets in its environment: constants, binding, forwarded names, nothing unsafe. Pure.

Each function settles one intent for the MPI at hand by the columns of its row in ``dialects``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Final

from mpiboot.core import masking
from mpiboot.core.checks import failed
from mpiboot.core.facts import Host, PodFacts, Variable
from mpiboot.core.model import Decision, Level, Source
from mpiboot.core.setting_types import MpiNetwork
from mpiboot.core.settings import ROWS
from mpiboot.core.wording import first_few
from mpiboot.job import forward
from mpiboot.job.dialects import OMPI_TRANSPORTS, Export, parameter
from mpiboot.job.plan_input import Observed, PlanInput
from mpiboot.job.resolve import ForAgents, Forced, Item, Removal, Resolution, warning


def binding(inp: PlanInput) -> Iterator[Item]:
    """Turn binding off where pods share their CPUs and the user does not settle it.

    A value of mpiboot's beside what the user says of mapping, ranking, binding or CPUs ends mpirun
    (4.1: "Prior policy: BYSLOT"), or takes away the binding that was asked for.
    """
    row, line = inp.row, inp.line
    variables = _pinning_variables(inp)
    if line.mapped_by:
        yield Decision("mapping", line.mapped_by, Source.FLAG, "given on the mpirun line")
    if "bind-to" in line.given:
        yield Decision("binding", line.given["bind-to"], Source.FLAG, "given on the mpirun line")
    elif line.pinned_by:
        message = f"{', '.join(line.pinned_by)} on the mpirun line"
        yield Decision("binding", "left to mpirun", Source.FLAG, message)
    for name, (value, source, message) in variables.items():
        yield Decision(name, value, source, message)
    # 5.0 has it as a part of the mapping, and the user's own stands as it is.
    mapped = row.oversubscribes_by_mapping and _mapped(inp, variables)
    if inp.settings.oversubscribe and row.oversubscribe_var and not mapped:
        by = inp.given["oversubscribe"]
        reason = f"asked for by {by}"
        yield Variable(row.oversubscribe_var, row.oversubscribe_value, reason, by.source)
    if line.pinned_by or variables or not row.bind_var:
        return
    shared = _why_not_bound(_pods_of_ranks(inp.observed))
    if shared:
        reason = f"ranks are not bound: {shared}"
        yield Variable(row.bind_var, row.bind_value, reason, Source.DETECTED)
    else:
        message = "each pod has CPUs of its own, and a core for each slot"
        yield Decision("binding", "left to mpirun", Source.DETECTED, message)


def _pinning_variables(inp: PlanInput) -> Mapping[str, tuple[str, Source, str]]:
    """Find the user's variables and parameters that settle it, with value, source and reason."""
    patterns = inp.row.pinning_vars
    found = {
        name: (value, inp.set_by(name)[0], f"{inp.set_by(name)[1]}, and kept")
        for name, value in inp.environ.items()
        if value and any(fnmatchcase(name, item) for item in patterns)
    }
    # -genv reaches mpirun's proxies, too; what -x sets ranks alone have.
    hydra = inp.row.export is Export.ALL
    for name, value in inp.line.export_values.items() if hydra else ():
        if any(fnmatchcase(name, item) for item in patterns):
            found[name] = (value, Source.FLAG, "given on the mpirun line")
    for name, value in inp.line.mca.items():
        if any(fnmatchcase(name, parameter(item)) for item in patterns):
            found[f"--mca {name}"] = (value, Source.FLAG, "given on the mpirun line")
    return found


def _mapped(inp: PlanInput, variables: Mapping[str, object]) -> bool:
    """Whether a mapping is given, beside which the MPI would not take another."""
    line = inp.line
    mapped = line.map_by or line.oversubscribe or line.moves_ranks
    return bool(mapped) or any("rmaps" in name for name in variables)


def _pods_of_ranks(observed: Observed) -> dict[Host, PodFacts | None]:
    """Give the pods of ranks, as far as they are known."""
    found = {worker.host: worker.facts for worker in observed.workers}
    return found | dict.fromkeys(observed.local, observed.own)


def _why_not_bound(pods: Mapping[Host, PodFacts | None]) -> str:
    """Return why mpirun's own binding would do harm; empty where each pod has CPUs of its own."""
    known = {host: facts.cpus for host, facts in pods.items() if facts and facts.cpus}
    shared = [host.name for host, cpus in known.items() if not cpus.exclusive]
    if shared:
        return (
            f"other pods of the node may use the CPUs of {first_few(shared)}, too, and mpirun "
            "would bind ranks of several pods to the same ones"
        )
    unknown = [host.name for host in pods if host not in known]
    if unknown or not pods:
        return f"whether {first_few(unknown) or 'a pod'} has CPUs of its own is not known"
    few = [host.name for host, cpus in known.items() if cpus.cores < host.slots]
    return f"{first_few(few)} has fewer cores than slots, where mpirun may refuse" if few else ""


# The decision that names what ranks don't get.
NOT_FORWARDED: Final = "not-forwarded"


def constants(inp: PlanInput) -> Iterator[Item]:
    """Give what this MPI always gets: transports, root, binding, the user."""
    identity = inp.observed.identity
    left = OMPI_TRANSPORTS if inp.settings.mpi_network is MpiNetwork.AUTO else ()
    yield from (item for item in inp.row.constants if item not in left or inp.owned(item.name))
    if identity.uid == 0:
        yield from inp.row.root
    yield from _copy_once(inp)
    yield from binding(inp)
    here = ForAgents if inp.forwards_all else Forced
    for name, value in (
        ("HOME", identity.home),
        ("USER", identity.user),
        ("LOGNAME", identity.user),
    ):
        if not inp.environ.get(name):
            yield here(name, value)


def _copy_once(inp: PlanInput) -> Iterator[Item]:
    """Keep ranks of one host from reading each other's memory where that is refused."""
    item = inp.row.no_single_copy
    pods = _pods_of_ranks(inp.observed)
    found = {
        host.name: pod.memory_refused for host, pod in pods.items() if pod and pod.memory_refused
    }
    if item and found:
        message = "; ".join(dict.fromkeys(found.values()))
        reason = f"process_vm_readv is refused ({message}) on {first_few(found)}: {item.reason}"
        yield replace(item, reason=reason, source=Source.DETECTED)


def listed(inp: PlanInput) -> tuple[str, ...]:
    """List the names in the user's own list of variables, where this MPI has such a list."""
    name = inp.row.export_var
    theirs = (inp.environ.get(name, ""), inp.line.mca.get(parameter(name), "")) if name else ()
    return tuple(item.partition("=")[0] for text in theirs for item in text.split(";") if item)


def _stays(unknown: tuple[str, ...], observed: Observed) -> tuple[str, ...]:
    """Leave out what ranks have from their own pods, and what a platform sets.

    A worker tells the names that its own pod sets, most of which are the image's; one without
    mpiboot tells none, and its ranks begin with none.
    """
    theirs = [set(item.facts.environment) if item.facts else set() for item in observed.workers]
    known = set.intersection(*theirs) if theirs else set(observed.environ)  # all ranks run here
    known |= {older for setting in ROWS for older in setting.older}
    platform, environ = observed.platform, observed.environ
    names = (name for name in unknown if name not in known)
    return tuple(name for name in names if not platform.has_set(name, environ.get(name, "")))


@dataclass(frozen=True, slots=True)
class Forwarding:
    """What ranks get of mpirun's environment: ``names``, of which ``flags`` go by ``-x``."""

    items: tuple[Item, ...]
    names: frozenset[str]
    flags: tuple[str, ...] = ()


def forwarding(inp: PlanInput, outcome: Resolution, added: Mapping[str, str]) -> Forwarding:
    """Choose the variables that ranks get.

    Args:
        inp: what the plan is made of.
        outcome: what mpirun's environment has of mpiboot.
        added: what else it will have.
    """
    observed, row, settings = inp.observed, inp.row, inp.settings
    items: list[Item] = [*_unwanted(inp)]
    unwanted = {item.name for item in items if isinstance(item, Removal)}
    kept = {name: value for name, value in observed.environ.items() if name not in unwanted}
    if inp.forwards_all:
        items += _taken_out(inp, kept)
    theirs = inp.environ.get(row.export_var, "") if row.export_var else ""
    given = (*inp.line.exports, *listed(inp))
    paths = _search_paths(inp, (*settings.forward, *given))
    items += (
        Decision(name, "the workers' own", Source.DETECTED, why) for name, why in paths.items()
    )
    # What is taken out of mpirun's environment can't be handed on: 5.0 would not start.
    left = paths.keys() | outcome.removed | {x.name for x in items if isinstance(x, Removal)}
    chosen = forward.select(
        {name: value for name, value in {**kept, **added}.items() if name not in left},
        settings.forward,
        settings.no_forward,
        by_itself=row.by_itself,
        given=given,
    )
    if chosen.withheld:
        message = (
            f"MPIBOOT_FORWARD has {', '.join(chosen.withheld)}: not set here, or one pod's own"
        )
        items.append(warning("usage", message))
    stays = _stays(chosen.unknown, observed)
    if stays:
        reason = "ranks don't get these; MPIBOOT_FORWARD=NAME,... or `-x NAME` hands them on"
        items.append(Decision(NOT_FORWARDED, " ".join(stays), Source.DETECTED, reason))
    names = chosen.names
    # What mpiboot sets for this MPI goes the same way.
    own = forward.select(outcome.values, by_itself=row.by_itself)
    forwarded = frozenset((*chosen.by_itself, *own.by_itself, *(kept.keys() & set(given))))
    if row.export is Export.ALL:
        items += _handed_on(inp, forwarded, outcome.values, given)
        every = {**kept, **outcome.values}.keys() - left
        handed_on = forwarded & {*given} if inp.line.exports_only else forwarded | every
        return Forwarding(tuple(items), handed_on)
    message = ", ".join(names) or "none of the known variables is set"
    items.append(Decision("forwarded", str(len(names)), Source.DEFAULT, message))
    flags = names
    if names and row.export_var and parameter(row.export_var) in inp.line.mca:
        # The line's own list hides the environment's; with 5.0 it takes -x.
        if row.export is not Export.VARIABLE:
            if not added.keys() >= set(names):
                message = f"--mca {parameter(row.export_var)} on the mpirun line forbids -x in "
                message += f"{row.title}: nothing else is forwarded"
                hint = "name all variables in that list, or use -x"
                items.append(warning("usage", message, hint))
            return Forwarding(tuple(items), forwarded)
    # 4.1 refuses -x beside the list, so a user's own list takes the names too.
    elif names and (row.export is Export.VARIABLE or theirs):
        flags, listing = _by_list(inp, theirs, names, {**kept, **added})
        items += listing
    return Forwarding(tuple(items), forwarded | set(names), flags)


def _unwanted(inp: PlanInput) -> Iterator[Removal]:
    """Take out what misleads mpirun, or ends it."""
    observed, never_empty = inp.observed, inp.row.never_empty
    foreign = forward.of_other_managers(observed.environ, observed.platform.managers)
    for name in foreign:
        yield Removal(name, "mpirun would look for another resource manager's allocation")
    for name, value in observed.environ.items() if never_empty else ():
        if not value and name.startswith(never_empty) and name not in foreign:
            yield Removal(name, f"it is empty, which crashes {inp.row.title}")


def _search_paths(inp: PlanInput, named: Collection[str]) -> dict[str, str]:
    """Find search paths of which workers have others of their own, and why they are not forwarded.

    Where a script has put folders in front of what the workers have, too, that is for the job; so
    is what ``named`` has, names or patterns.
    """
    found = {}
    for name in forward.SEARCH_PATHS if inp.row.export is not Export.ALL else ():
        own = inp.environ.get(name, "")
        others = [
            worker.host.name
            for worker in inp.observed.workers
            if worker.facts
            and not forward.extends(own, dict(worker.facts.search_paths).get(name, ""))
        ]
        if own and others and not any(forward.matches(name, item) for item in named):
            reason = f"{first_few(others)} has another one of its own"
            found[name] = f"{reason}; MPIBOOT_FORWARD={name} or -x hands on the launcher's"
    return found


def _handed_on(
    inp: PlanInput, forwarded: frozenset[str], values: Collection[str], given: Collection[str]
) -> Iterator[Item]:
    """Tell what ranks get from an MPI that forwards everything, or only what the line names.

    With such a line the agents set what the data network needs: ``data.deliver``.
    """
    only = inp.line.exports_only
    if not only:
        message = f"{inp.row.title} hands on what mpirun has in its environment"
        yield Decision("forwarded", "all", Source.DEFAULT, message)
        return
    message = f"{only} on the mpirun line: ranks get nothing else of mpirun's environment"
    yield Decision("forwarded", " ".join(dict.fromkeys(given)) or "none", Source.FLAG, message)
    # Those of Hydra are for mpirun itself.
    lost = sorted(name for name in forwarded & {*values} - {*given} if "HYDRA_" not in name)
    if lost:
        message = f"with {only} ranks don't get what mpiboot sets: {' '.join(lost)}"
        yield warning("usage", message, "remove it, or name these there as well")


def _taken_out(inp: PlanInput, kept: Mapping[str, str]) -> Iterator[Item]:
    """Take out of mpirun's environment what would overwrite that of the ranks' own pods.

    The launch agents, which are of this pod, get it back.
    """
    settings, workers = inp.settings, inp.observed.workers
    theirs = {name for item in workers if item.facts for name in item.facts.environment}
    found = forward.kept_from_ranks(
        kept,
        settings.forward,
        settings.no_forward,
        theirs=theirs,
        given=inp.line.exports,
    )
    for name in found:
        yield Removal(name)
        yield ForAgents(name, kept[name])
    if found:
        reason = (
            f"{inp.row.title} would overwrite what the ranks' own pods have; "
            "MPIBOOT_FORWARD=NAME,... hands the launcher's on"
        )
        yield Decision("kept-from-ranks", " ".join(found), Source.DETECTED, reason)


def _by_list(
    inp: PlanInput, theirs: str, names: Iterable[str], values: Mapping[str, str]
) -> tuple[tuple[str, ...], tuple[Item, ...]]:
    """Write the list's entries behind the user's; returns what it can't hold, and goes by ``-x``.

    Where a name of the list has a value with "=" in it (NCCL's exact form, XLA_FLAGS), Open MPI
    takes the value for an assignment of its own, and two of them may end 5.0's mpirun; beside its
    name, or by ``-x``, such a value arrives.
    """
    row = inp.row
    entries, flags = [theirs] if theirs else [], []
    for name in names:
        value = values[name]
        if "=" not in value:
            entries.append(name)
        elif ";" in value or masking.is_secret(name):
            flags.append(name)
        else:
            entries.append(f"{name}={value}")
    items: list[Item] = [Forced(row.export_var, ";".join(entries))]
    if flags and row.export is not Export.VARIABLE:
        message = f"{' '.join(flags)}: not forwarded, {row.export_var} can't hold such a value"
        items.append(warning("usage", message, "use -x for all variables instead of that list"))
        flags = []
    return tuple(flags), tuple(items)


def unsafe(inp: PlanInput, mca: Mapping[str, str], outcome: Resolution) -> Iterator[Item]:
    """Warn of values that the workers' shell would evaluate.

    ``mca`` are the parameters of the line that mpirun gets.
    """
    row = inp.row
    if not row.evaluated:
        return
    values = {
        name: value
        for name, value in {**inp.environ, **outcome.values}.items()
        if name.startswith(row.evaluated)
        and name not in outcome.removed
        and (name in outcome.values or name not in inp.of_files)
    }
    for name, value in mca.items():
        if any(fnmatchcase(name, pattern) for pattern in row.evaluated_flags):
            values[f"--mca {name}"] = value
    excepted = {row.export_var, f"--mca {parameter(row.export_var)}"}
    for name in sorted(values.keys() - excepted):
        bad = sorted(set(values[name]) & set('"$\\`\n'))
        if bad:
            message = (
                f"{name} holds {' '.join(map(repr, bad))}: {row.title} hands it to the "
                "workers' shell unescaped"
            )
            yield failed("unsafe-value", message, level=Level.WARN)
