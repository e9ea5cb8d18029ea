"""What mpirun gets in its environment: constants, binding, forwarded names, nothing unsafe. Pure.

What is the same for all MPIs; ``openmpi`` and ``hydra`` have the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Final

from mpiboot.core.facts import Host, PodFacts, Variable
from mpiboot.core.model import Decision, Source
from mpiboot.core.settings import ROWS
from mpiboot.core.wording import first_few
from mpiboot.job import forward
from mpiboot.job.parameter_files import parameter
from mpiboot.job.plan_input import Observed, PlanInput
from mpiboot.job.resolve import ForAgents, Forced, Item, Removal, Resolution, warning


def binding(inp: PlanInput) -> Iterator[Item]:
    """Turn binding off where pods share their CPUs and the user has not chosen one.

    A value of mpiboot's beside the user's mapping, ranking, binding or CPUs ends mpirun (4.1:
    "Prior policy: BYSLOT"), or overrides the user's binding.
    """
    mpi = inp.implementation
    source, given, by = _binding_of_user(inp)
    if given:
        yield Decision("binding", ", ".join(given), source, by)
    elif not mpi.bind_var:
        return
    elif shared := _why_not_bound(_pods_of_ranks(inp.observed)):
        reason = f"ranks are not bound: {shared}"
        yield Variable(mpi.bind_var, mpi.bind_value, reason, Source.DETECTED)
    else:
        message = "each pod has CPUs of its own, and a core for each slot"
        yield Decision("binding", "left to mpirun", Source.DETECTED, message)


def _binding_of_user(inp: PlanInput) -> tuple[Source, list[str], str]:
    """Find the user's options, else variables and parameters for it; where from, and in words."""
    mpi, line = inp.implementation, inp.line

    def pins(name: str, cut: Callable[[str], str] = str) -> bool:
        return any(fnmatchcase(name, cut(pattern)) for pattern in mpi.pinning_vars)

    found = [*line.pinned_by]
    found += [f"--mca {name} {value}" for name, value in line.mca.items() if pins(name, parameter)]
    # -genv reaches mpirun's proxies, too; what -x sets ranks alone have.
    exported = line.export_values.items() if mpi.hands_on_all else ()
    found += [f"{name}={value}" for name, value in exported if pins(name)]
    if found:
        return Source.FLAG, found, "given on the mpirun line"
    names = [name for name, value in inp.environ.items() if value and pins(name)]
    source, by = inp.set_by(names[0]) if names else (Source.DEFAULT, "")
    return source, [f"{name}={inp.environ[name]}" for name in names], f"{by}, and kept"


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
    """Give what this MPI always gets, binding, the user."""
    yield from inp.implementation.always(inp)
    yield from _copy_once(inp)
    yield from binding(inp)
    identity = inp.observed.identity
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
    item = inp.implementation.no_single_copy
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
    name = inp.implementation.export_var
    theirs = (inp.environ.get(name, ""), inp.line.mca.get(parameter(name), "")) if name else ()
    return tuple(item.partition("=")[0] for text in theirs for item in text.split(";") if item)


def _stays(unknown: tuple[str, ...], observed: Observed) -> tuple[str, ...]:
    """Leave out what ranks have from their own pods, and what a platform sets.

    A worker reports the names that its own pod sets, most of which are the image's; one without
    mpiboot reports none, and its ranks begin with none.
    """
    theirs = [set(item.facts.environment) if item.facts else set() for item in observed.workers]
    known = set.intersection(*theirs) if theirs else set(observed.environ)  # all ranks run here
    known |= {older for setting in ROWS for older in setting.older}
    platform, environ = observed.platform, observed.environ
    names = (name for name in unknown if name not in known)
    return tuple(name for name in names if not platform.has_set(name, environ.get(name, "")))


@dataclass(frozen=True, slots=True)
class Chosen:
    """What ranks are to get of mpirun's environment.

    ``names`` must be named to mpirun, ``forwarded`` arrive without that, ``given`` are those that
    the user's line has. ``values`` are all that may be handed on; of these ``added`` are the data
    network's and torchrun's.
    """

    names: tuple[str, ...]
    forwarded: frozenset[str]
    given: tuple[str, ...]
    values: Mapping[str, str]
    added: Mapping[str, str]


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
    observed, mpi, settings = inp.observed, inp.implementation, inp.settings
    foreign = forward.of_other_managers(observed.environ, observed.platform.managers)
    reason = "mpirun would look for another resource manager's allocation"
    items: list[Item] = [Removal(name, reason) for name in foreign]
    kept = {name: value for name, value in observed.environ.items() if name not in foreign}
    items += mpi.taken_out(inp, kept)
    given = (*inp.line.exports, *listed(inp))
    paths = _search_paths(inp, (*settings.forward, *given))
    items += (
        Decision(name, "the workers' own", Source.DETECTED, why) for name, why in paths.items()
    )
    # What is taken out of mpirun's environment can't be handed on: 5.0 would not start.
    left = paths.keys() | outcome.removed | {x.name for x in items if isinstance(x, Removal)}
    values = {name: value for name, value in {**kept, **added}.items() if name not in left}
    chosen = forward.select(
        values, settings.forward, settings.no_forward, by_itself=mpi.by_itself, given=given
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
    # What mpiboot sets for this MPI goes the same way.
    own = forward.select(outcome.values, by_itself=mpi.by_itself)
    forwarded = frozenset((*chosen.by_itself, *own.by_itself, *(kept.keys() & set(given))))
    what = Chosen(chosen.names, forwarded, given, {**outcome.values, **values}, added)
    handed_on = mpi.hand_on(inp, what)
    return replace(handed_on, items=(*items, *handed_on.items))


def _search_paths(inp: PlanInput, named: Collection[str]) -> dict[str, str]:
    """Find search paths of which workers have others of their own, and why they are not forwarded.

    Where a script has put folders in front of what the workers have, too, that is for the job; so
    is what ``named`` has, names or patterns.
    """
    found = {}
    for name in forward.SEARCH_PATHS if not inp.implementation.hands_on_all else ():
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
