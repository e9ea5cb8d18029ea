"""Lines, variables and pods, each with what it changes in a plan: ``tests/data/plans/cases``.

A case is one or more MPIs, a line, variables of the launcher's pod, and changes of what was
observed. Its text has what the plan has and a plain one lacks, and the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

from mpiboot.core.facts import Host, HostAnswer, Hostfile, Link, MpiParameter
from mpiboot.job.hostfile import union
from mpiboot.job.plan import Plan
from mpiboot.job.plan_input import Observed
from mpiboot.system import programs
from tests.fakes import workers as fake_workers
from tests.fakes.plans import POD, link, observed, planned, with_facts
from tests.fakes.platform_plans import parts
from tests.fakes.workers import changed, facts_of

FAMILIES: Final = {"4": "openmpi4", "5": "openmpi5", "m": "mpich", "i": "intel"}
Changed = Callable[[Observed], Observed]
FIRST, SECOND = "w-0.job.ns.svc", "w-1.job.ns.svc"


@dataclass(frozen=True)
class Change:
    """A change of what was observed, and how it is called."""

    label: str
    apply: Changed


def change(function: Callable[..., Observed]) -> Callable[..., Change]:
    """Make changes of a function: of its arguments but the first."""

    def made(*values: Any, **named: Any) -> Change:  # noqa: ANN401
        shown = [*map(str, values), *(f"{name}={value}" for name, value in named.items())]
        label = f"{function.__name__}({', '.join(shown)})"[:80]
        return Change(label, lambda seen: function(seen, *values, **named))

    return made


@dataclass(frozen=True)
class Case:
    """One case, for each of its families."""

    families: str
    line: str
    environ: Mapping[str, str]
    changes: tuple[Change, ...]

    def text(self, family: str) -> str:
        """What it changes, a thing a line."""
        seen = observed(family, {**POD, **self.environ})
        for one in self.changes:
            seen = one.apply(seen)
        before, after = _plain(family), _lines(planned(self.line, seen), seen)
        given = [f"{name}={value}" for name, value in self.environ.items()]
        head = " ".join([family, self.line, *given, *(one.label for one in self.changes)])
        names = {_name(line) for line in after}
        gone = dict.fromkeys(_name(line) for line in before if _name(line) not in names)
        new = (line for line in after if line not in before)
        lines = (*(f"    - {name}\n" for name in gone), *(f"    + {line}\n" for line in new))
        return f"# {head}\n{''.join(lines)}"


def _name(line: str) -> str:
    """What a line is about, without its value."""
    kind, _, item = line.partition(": ")
    whole = kind in ("argv", "hostfile", "remote hosts", "ranks")
    return kind if whole else f"{kind}: {item.partition(' = ')[0].partition('=')[0]}"


@cache
def _plain(family: str) -> list[str]:
    seen = observed(family)
    return _lines(planned("./a", seen), seen)


def _lines(plan: Plan, seen: Observed) -> list[str]:
    shown = {f"{item.name}={item.value}" for item in plan.decisions}
    found = [
        f"{kind}: {item}"
        for kind, items in parts(plan, seen).items()
        for item in items
        if kind != "findings" and (kind != "set" or item not in shown)
    ]
    found += [
        f"{item.level.value}: {item.check}: = {item.where}: {item.message} -> {item.hint}"
        for item in plan.findings
    ]
    found += [f"obstacle: {name}: {why}" for name, why in plan.obstacles]
    found += [f"hostfile {path}: {text!r}" for path, text in plan.app_hostfiles.items()]
    found += [f"worker: {row[0]} = {' | '.join(filter(None, row[1:]))}" for row in plan.rows]
    for name in _OTHERS.split():
        if value := getattr(plan, name):
            found.append(f"{name}: = {value}")
    return found


_OTHERS: Final = (
    "user_agent tolerates_failure prove_transport exit_codes tcp_optional daemons_optional"
)


@change
def data_links(seen: Observed, *names: str) -> Observed:
    """Give each worker a data link of that name."""
    workers = []
    for number, (worker, name) in enumerate(zip(seen.workers, names, strict=True)):
        more = replace(link(name, f"192.168.0.{number + 1}/24"), index=9)
        workers.append(changed(worker, links=(*facts_of(worker).links, more)))
    return replace(seen, workers=tuple(workers))


@change
def kinds(seen: Observed, *names: str, **values: Any) -> Observed:  # noqa: ANN401
    """Give each worker the facts of a pod of that kind in ``tests.fakes.workers``."""
    found = []
    for place, (one, name) in enumerate(zip(seen.workers, names, strict=True)):
        other = changed(getattr(fake_workers, name)(place), **values)
        found.append(replace(one, facts=other.facts, address=other.address))
    return replace(seen, workers=tuple(found))


@change
def facts(seen: Observed, **values: tuple[object, ...]) -> Observed:
    """Give workers other facts: of each a value for every worker."""
    return with_facts(seen, **values)


@change
def workers(seen: Observed, **values: tuple[object, ...]) -> Observed:
    """Give workers other fields than facts, also none at all."""
    rows = zip(*values.values(), strict=True)
    found = (
        replace(one, **dict(zip(values, row, strict=True)))
        for one, row in zip(seen.workers, rows, strict=True)
    )
    return replace(seen, workers=tuple(found))


@change
def without_workdir(seen: Observed) -> Observed:
    """Take the working directory from the first worker."""
    first, *others = seen.workers
    first = replace(first, answer=HostAnswer(lacks=(("folder", seen.workdir),)))
    return replace(seen, workers=(first, *others))


@change
def mpis(seen: Observed, first: str, second: str, path: str = "") -> Observed:
    """Give workers other MPIs, by what their mpirun prints; on PATH, or at a path."""
    found = []
    for worker, printed in zip(seen.workers, (first, second), strict=True):
        mpi = programs.recognise(path or "/x", printed) if printed else None
        one = changed(worker, mpi=mpi)
        found.append(replace(worker, called_mpi=mpi) if path else one)
    return replace(seen, workers=tuple(found))


@change
def own_mpi(seen: Observed, **values: object) -> Observed:
    """Give the launcher another MPI."""
    return replace(seen, mpi=replace(seen.mpi, **values))  # type: ignore[arg-type]


@change
def file(seen: Observed, *, worker: bool = False, **parameters: str) -> Observed:
    """Give the launcher's pod a file of these parameters, or the first worker's alone."""
    path = "/etc/openmpi/openmpi-mca-params.conf"
    found = tuple(MpiParameter(f"OMPI_MCA_{name}", text, path) for name, text in parameters.items())
    if not worker:
        return replace(seen, parameters=found)
    first, *others = seen.workers
    return replace(seen, workers=(changed(first, parameters=found), *others))


@change
def slots(seen: Observed, *listed: int | None) -> Observed:
    """Give the hostfile these numbers of slots, None for a host without one."""
    found = (
        Host(
            f"w-{at}.job.ns.svc",
            1 if count is None else count,
            slots_given=count is not None,
            line=at + 1,
        )
        for at, count in enumerate(listed)
    )
    family = seen.mpi.family.value
    made = observed(family, seen.environ, listed=tuple(found))
    return replace(made, mpi=seen.mpi)


@change
def here(seen: Observed, *, own: str = "", workers: bool = True, at: int = 0) -> Observed:
    """Run ranks in this pod, too, which is a host of the hostfile; ``own``: a data link."""
    others = [*seen.workers]
    first = others.pop(at)
    links = (*seen.links, link(own, "192.168.0.9/24")) if own else seen.links
    mine = changed(first, hostname="job-launcher", links=links, control_address="10.244.0.9").facts
    local = (first.host,) if workers else (first.host, *(one.host for one in others))
    rest = tuple(others) if workers else ()
    return replace(seen, local=local, workers=rest, own=mine)


@change
def observe(seen: Observed, **values: object) -> Observed:
    """Change what else was observed."""
    return replace(seen, **values)  # type: ignore[arg-type]


@change
def known(seen: Observed, *more: str, hostname: str = "job-launcher") -> Observed:
    """Add the facts of the launcher's pod, with links of its own."""
    links = (*seen.links, *(link(name, "10.1.0.9/24") for name in more))
    own = changed(seen.workers[0], hostname=hostname, links=links).facts
    return replace(seen, links=links, own=own)


@change
def pods(seen: Observed, addresses: str, control: str = "6", **more: object) -> Observed:
    """Give each pod's eth0 addresses: 4, 6 and l for a link-local one; control: the one dialled."""
    forms = {"4": "10.244.0.{}/24", "6": "fd00:10:244::{}/64", "l": "fe80::{}/64"}

    def links(number: int) -> tuple[Link, ...]:
        own = tuple(forms[one].format(number) for one in addresses)
        return (
            Link(1, "lo", "", up=True, mtu=65536, addresses=("127.0.0.1/8", "::1/128")),
            Link(2, "eth0", "veth", up=True, mtu=1500, addresses=own),
        )

    def address(number: int) -> str:
        return forms[control].format(number).partition("/")[0]

    found = []
    for number, worker in enumerate(seen.workers, 1):
        one = changed(worker, links=links(number), control_address=address(number))
        found.append(replace(one, address=address(number), local_address=address(9)))
    own = changed(found[0], hostname="w-launcher", links=links(9)).facts
    return replace(seen, workers=tuple(found), links=links(9), own=own, **more)  # type: ignore[arg-type]


@change
def second_lacks_ipv4(seen: Observed) -> Observed:
    """Take the last worker's IPv4 addresses away."""
    first, last = seen.workers
    six = (Link(2, "eth0", "veth", up=True, mtu=1500, addresses=("fd00:10:244::2/64",)),)
    return replace(seen, workers=(first, changed(last, links=six)))


@change
def two_hostfiles(seen: Observed) -> Observed:
    """Have the programs of the line name a hostfile each."""
    first = Hostfile("a", "the mpirun line", (Host("w-0", 2, slots_given=True),))
    second = (Host("w-1"), Host("w-0", 1, slots_given=True))
    files = union([first, Hostfile("b", "the mpirun line", second)])
    made = observed(seen.mpi.family.value, seen.environ, listed=files.hosts)
    return replace(made, hostfile=files, renamed={"w-1": "w-1.job"})
