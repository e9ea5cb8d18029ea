"""What mpirun gets in its environment: constants, binding, forwarded names, nothing unsafe. Pure.

Each function settles one intent for the MPI at hand by the columns of its row in ``dialects``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Final

from mpiboot.core import masking
from mpiboot.core.checks import failed
from mpiboot.core.facts import Host, PodFacts
from mpiboot.core.model import Level, Source
from mpiboot.core.setting_types import MpiNetwork
from mpiboot.core.settings import ROWS, Settings
from mpiboot.core.wording import first_few
from mpiboot.job import forward
from mpiboot.job.dialects import OMPI_TRANSPORTS, Export, parameter
from mpiboot.job.plan_builder import Observed, PlanBuilder


def decide_binding(builder: PlanBuilder) -> None:
    """Turn binding off where pods share their CPUs and the user does not settle it.

    A value of mpiboot's beside what the user says of mapping, ranking, binding or CPUs ends mpirun
    (4.1: "Prior policy: BYSLOT"), or takes away the binding that was asked for.
    """
    row, line = builder.row, builder.line
    variables = _pinning_variables(builder)
    if line.mapped_by:
        builder.decide("mapping", line.mapped_by, Source.FLAG, "given on the mpirun line")
    if "bind-to" in line.given:
        builder.decide("binding", line.given["bind-to"], Source.FLAG, "given on the mpirun line")
    elif line.pinned_by:
        message = f"{', '.join(line.pinned_by)} on the mpirun line"
        builder.decide("binding", "left to mpirun", Source.FLAG, message)
    for name, (value, source, message) in variables.items():
        builder.decide(name, value, source, message)
    # 5.0 has it as a part of the mapping, and the user's own stands as it is.
    apart = not row.oversubscribes_by_mapping
    if builder.settings.oversubscribe and (apart or not _mapped(builder, variables)):
        by = builder.given["oversubscribe"]
        reason = f"asked for by {by}"
        builder.variable(row.oversubscribe_var, row.oversubscribe_value, reason, by.source)
    if line.pinned_by or variables or not row.bind_var:
        return
    shared = _why_not_bound(_pods_of_ranks(builder.observed))
    if shared:
        reason = f"ranks are not bound: {shared}"
        builder.variable(row.bind_var, row.bind_value, reason, Source.DETECTED)
    else:
        message = "each pod has CPUs of its own, and a core for each slot"
        builder.decide("binding", "left to mpirun", Source.DETECTED, message)


def _pinning_variables(builder: PlanBuilder) -> Mapping[str, tuple[str, Source, str]]:
    """Find the user's variables and parameters that settle it, with value, source and reason."""
    patterns = builder.row.pinning_vars
    found = {
        name: (value, builder.set_by(name)[0], f"{builder.set_by(name)[1]}, and kept")
        for name, value in builder.environ.items()
        if value and any(fnmatchcase(name, item) for item in patterns)
    }
    # -genv reaches mpirun's proxies, too; what -x sets ranks alone have.
    hydra = builder.row.export is Export.ALL
    for name, value in builder.line.export_values.items() if hydra else ():
        if any(fnmatchcase(name, item) for item in patterns):
            found[name] = (value, Source.FLAG, "given on the mpirun line")
    for name, value in builder.line.mca.items():
        if any(fnmatchcase(name, parameter(item)) for item in patterns):
            found[f"--mca {name}"] = (value, Source.FLAG, "given on the mpirun line")
    return found


def _mapped(builder: PlanBuilder, variables: Mapping[str, object]) -> bool:
    """Whether a mapping is given, beside which the MPI would not take another."""
    line = builder.line
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


def set_constants(builder: PlanBuilder) -> None:
    """Set the variables that this MPI always gets: transports, root, binding, the user."""
    observed = builder.observed
    row = builder.row
    left = OMPI_TRANSPORTS if builder.settings.mpi_network is MpiNetwork.AUTO else ()
    builder.add(*(item for item in row.constants if item not in left or builder.owned(item.name)))
    if observed.identity.uid == 0:
        builder.add(*row.root)
    _copy_once(builder)
    decide_binding(builder)
    for name, value in (
        ("HOME", observed.identity.home),
        ("USER", observed.identity.user),
        ("LOGNAME", observed.identity.user),
    ):
        if not builder.environ.get(name):
            apart = row.export is Export.ALL and observed.workers
            (builder.agent_env if apart else builder.set_env)[name] = value


def _copy_once(builder: PlanBuilder) -> None:
    """Keep ranks of one host from reading each other's memory where that is refused."""
    item = builder.row.no_single_copy
    pods = _pods_of_ranks(builder.observed)
    found = {
        host.name: pod.memory_refused for host, pod in pods.items() if pod and pod.memory_refused
    }
    if item and found:
        message = "; ".join(dict.fromkeys(found.values()))
        reason = f"process_vm_readv is refused ({message}) on {first_few(found)}: {item.reason}"
        builder.add(replace(item, reason=reason, source=Source.DETECTED))


def offer_debug_files(builder: PlanBuilder) -> None:
    """Suggest a file for NCCL's debug output, which every rank writes to the job's output."""
    values = {**builder.environ, **builder.line.export_values}
    level = values.get("NCCL_DEBUG", "")
    if level.upper() in ("INFO", "TRACE") and not values.get("NCCL_DEBUG_FILE"):
        reason = (
            "every rank writes to the job's output; NCCL_DEBUG_FILE=/tmp/nccl.%h.%p would give "
            "each a file on its host"
        )
        builder.decide("NCCL_DEBUG", level, Source.ENVIRONMENT, reason)


def listed(builder: PlanBuilder) -> tuple[str, ...]:
    """List the names in the user's own list of variables, where this MPI has such a list."""
    name = builder.row.export_var
    theirs = (
        (builder.environ.get(name, ""), builder.line.mca.get(parameter(name), "")) if name else ()
    )
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


def choose_forwarded(builder: PlanBuilder, added: Mapping[str, str]) -> tuple[str, ...]:
    """Choose the variables that ranks get; returns the names that go by ``-x``.

    ``added`` are variables that mpirun's environment will have beside the pod's own.
    """
    observed = builder.observed
    row, settings = builder.row, builder.settings
    foreign = forward.of_other_managers(observed.environ, observed.platform.managers)
    for name in foreign:
        builder.remove(name, "mpirun would look for another resource manager's allocation")
    kept = {name: value for name, value in observed.environ.items() if name not in foreign}
    empty = [name for name, value in kept.items() if not value]
    for name in (name for name in empty if row.never_empty and name.startswith(row.never_empty)):
        del kept[name]
        builder.remove(name, f"it is empty, which crashes {row.title}")
    if row.export is Export.ALL and observed.workers:
        _take_out(builder, kept, settings)
    theirs = builder.environ.get(row.export_var, "") if row.export_var else ""
    given = (*builder.line.exports, *listed(builder))
    # What is taken out of mpirun's environment can't be handed on: 5.0 would not start.
    left = _search_paths(builder, settings.forward, given) | builder.unset_env
    chosen = forward.select(
        {name: value for name, value in {**kept, **added}.items() if name not in left},
        settings.forward,
        settings.no_forward,
        by_itself=row.by_itself,
        given=given,
    )
    for name, why in chosen.withheld.items():
        builder.warn("usage", f"{name} is not forwarded: {why}")
    stays = _stays(chosen.unknown, observed)
    if stays:
        reason = "ranks don't get these; MPIBOOT_FORWARD=NAME,... or `-x NAME` hands them on"
        builder.decide(NOT_FORWARDED, " ".join(stays), Source.DETECTED, reason)
    names = chosen.names
    # What mpiboot sets for this MPI goes the same way.
    own = forward.select(builder.set_env, by_itself=row.by_itself)
    builder.forwarded = {*chosen.by_itself, *own.by_itself, *(kept.keys() & set(given))}
    if row.export is Export.ALL:
        _hand_on_all(builder, kept, given)
    else:
        message = ", ".join(names) or "none of the known variables is set"
        builder.decide("forwarded", str(len(names)), Source.DEFAULT, message)
    if names and row.export_var and parameter(row.export_var) in builder.line.mca:
        if row.export is Export.VARIABLE:
            builder.forwarded.update(names)
            return names  # the line's own list hides the environment's, but takes -x
        if added.keys() >= set(names):
            return ()
        message = f"--mca {parameter(row.export_var)} on the mpirun line forbids -x in {row.title}"
        hint = "name all variables in that list, or use -x"
        builder.warn("usage", f"{message}: nothing else is forwarded", hint)
        return ()
    builder.forwarded.update(names)
    # 4.1 refuses -x beside the list, so a user's own list takes the names too.
    if names and (row.export is Export.VARIABLE or theirs):
        return _by_list(builder, theirs, names, {**kept, **added})
    return names if row.export is Export.OPTION else ()


def _search_paths(builder: PlanBuilder, more: Collection[str], given: Collection[str]) -> set[str]:
    """Find search paths that are not forwarded, as workers of another image have their own.

    Where a script has put folders in front of what the workers have, too, that is for the job.
    """
    stays = set()
    for name in forward.SEARCH_PATHS:
        own = builder.environ.get(name, "")
        theirs = {
            worker.host.name: dict(worker.facts.search_paths).get(name, "")
            for worker in builder.observed.workers
            if worker.facts
        }
        others = [host for host, value in theirs.items() if not forward.extends(own, value)]
        if not own or not others:
            continue
        reason = f"{first_few(others)} has another one of its own"
        if name in given:
            builder.decide(name, "the launcher's", Source.FLAG, f"{reason}; your line names it")
        elif any(forward.matches(name, item) for item in more):
            message = f"{reason}; MPIBOOT_FORWARD names it"
            builder.decide(name, "the launcher's", Source.ENVIRONMENT, message)
        elif builder.row.export is Export.ALL:
            message = f"{reason}, and {builder.row.title} hands on all of mpirun's environment"
            builder.decide(name, "the launcher's", Source.DETECTED, message)
        else:
            stays.add(name)
            message = f"{reason}; `-x {name}` or MPIBOOT_FORWARD={name} hands on the launcher's"
            builder.decide(name, "the workers' own", Source.DETECTED, message)
    return stays


def _hand_on_all(builder: PlanBuilder, kept: Mapping[str, str], given: Collection[str]) -> None:
    """Report what ranks get from an MPI that forwards everything, or only what the line names.

    With such a line the agents set what the data network needs: ``data.deliver``.
    """
    row, only = builder.row, builder.line.exports_only
    every = {**kept, **builder.set_env}.keys() - builder.unset_env
    if not only:
        builder.forwarded |= every
        message = f"{row.title} hands on what mpirun has in its environment"
        builder.decide("forwarded", "all", Source.DEFAULT, message)
        return
    lost = sorted(
        name
        for name in builder.forwarded & builder.set_env.keys() - set(given)
        if "HYDRA_" not in name  # those are for mpirun itself
    )
    if lost:
        message = (
            f"with {only} on the mpirun line ranks don't get what mpiboot sets: {' '.join(lost)}"
        )
        builder.warn("usage", message, "remove it, or name these there as well")
    builder.forwarded &= set(given)
    message = f"{only} on the mpirun line: ranks get nothing else of mpirun's environment"
    builder.decide("forwarded", " ".join(dict.fromkeys(given)) or "none", Source.FLAG, message)


def _take_out(builder: PlanBuilder, kept: Mapping[str, str], settings: Settings) -> None:
    """Take out of mpirun's environment what would overwrite that of the ranks' own pods.

    The launch agents, which are of this pod, get it back.
    """
    theirs = {
        name for item in builder.observed.workers if item.facts for name in item.facts.environment
    }
    found = forward.kept_from_ranks(
        kept,
        settings.forward,
        settings.no_forward,
        theirs=theirs,
        given=builder.line.exports,
    )
    builder.unset_env.update(found)
    builder.agent_env |= {name: kept[name] for name in found}
    if found:
        reason = (
            f"{builder.row.title} would overwrite what the ranks' own pods have; "
            "MPIBOOT_FORWARD=NAME,... hands the launcher's on"
        )
        builder.decide("kept-from-ranks", " ".join(found), Source.DETECTED, reason)


def _by_list(
    builder: PlanBuilder, theirs: str, names: Iterable[str], values: Mapping[str, str]
) -> tuple[str, ...]:
    """Write the list's entries behind the user's; returns what it can't hold, and goes by ``-x``.

    Where a name of the list has a value with "=" in it (NCCL's exact form, XLA_FLAGS), Open MPI
    takes the value for an assignment of its own, and two of them may end 5.0's mpirun; beside its
    name, or by ``-x``, such a value arrives.
    """
    row = builder.row
    entries, flags = [theirs] if theirs else [], []
    for name in names:
        value = values[name]
        if "=" not in value:
            entries.append(name)
        elif ";" in value or masking.is_secret(name):
            flags.append(name)
        else:
            entries.append(f"{name}={value}")
    builder.set_env[row.export_var] = ";".join(entries)
    if flags and row.export is not Export.VARIABLE:
        message = f"{' '.join(flags)}: not forwarded, {row.export_var} can't hold such a value"
        builder.warn("usage", message, "use -x for all variables instead of that list")
        return ()
    return tuple(flags)


def name_unsafe(builder: PlanBuilder) -> None:
    """Warn of values that the workers' shell would evaluate."""
    row = builder.row
    if not row.evaluated:
        return
    merged = {**builder.environ, **builder.set_env}
    values = {
        name: value
        for name, value in merged.items()
        if name.startswith(row.evaluated)
        and name not in builder.unset_env
        and (name in builder.set_env or name not in builder.of_files)
    }
    for name, value in builder.line.mca.items():
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
            builder.findings.append(failed("unsafe-value", message, level=Level.WARN))
