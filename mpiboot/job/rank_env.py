"""Programs for torchrun: `mpiboot rank` before each, and where its ranks meet. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from mpiboot.core.checks import failed
from mpiboot.core.model import Finding, NoFacts, Source
from mpiboot.core.setting_types import MpiNetwork
from mpiboot.core.settings import PREFIX, Resolved
from mpiboot.core.wording import first_few
from mpiboot.job.placement import Placement
from mpiboot.job.plan_builder import Observed, PlanBuilder
from mpiboot.network.decision import DataNetwork
from mpiboot.network.records import usable

# By name: each host finds its own, as it finds the program.
_BEFORE: Final = ("mpiboot", "rank", "--")
_ADDRESS: Final = "MASTER_ADDR"
_PORT: Final = "MASTER_PORT"


@dataclass(frozen=True, slots=True)
class Meeting:
    """Rank 0's host as mpirun calls it, the port at which rank 0 is to listen, and what says so."""

    host: str
    port: int
    by: str


@dataclass(frozen=True, slots=True)
class RankEnv:
    """The words that each program is started by, and what mpirun's environment gets for them.

    ``meeting`` is None where rank 0's host or the port isn't known here.
    """

    before: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    meeting: Meeting | None = None


def decide(
    builder: PlanBuilder,
    observed: Observed,
    resolved: Resolved,
    placed: Placement,
    network: DataNetwork,
) -> RankEnv:
    """Decide by what ranks are started, and where they meet.

    Both where the setting says so; where they meet also where the user's line has `mpiboot rank`.
    """
    written = _on_the_line(builder.line.argv)
    asked = resolved.settings.rank_env and not written
    if asked:
        said, hint = _unfit(builder, observed)
        if said:
            said = f"{resolved.given['rank_env']}: {said}"
            builder.fail("settings-conflict", said, hint)
            return RankEnv()
        given = resolved.given["rank_env"]
        builder.decide("rank-env", " ".join(_BEFORE), given.source, f"{given}: before each program")
    elif not written:
        return RankEnv()
    port, by = resolved.settings.master_port, resolved.given["master_port"]
    said = "PyTorch's own default" if by.source is Source.DEFAULT else str(by)
    found = _address(builder, observed, placed)
    on_data = resolved.settings.master_network is MpiNetwork.DATA
    if on_data and found[0] and not _has(builder, observed, _ADDRESS):
        found = _on_the_data_network(builder, resolved, placed.first, network, observed)
    variables = {
        **_set(builder, observed, _ADDRESS, *found),
        **_set(builder, observed, _PORT, str(port), said, by.source),
    }
    return RankEnv(_BEFORE if asked else (), variables, _meeting(builder, variables, placed.first))


def _unfit(builder: PlanBuilder, observed: Observed) -> tuple[str, str]:
    """Say why programs can't be started by mpiboot, and what to do; empty where they can."""
    without = [
        worker.host.name
        for worker in observed.workers
        if worker.facts is None and worker.no_facts is NoFacts.NO_MPIBOOT
    ]
    if without:
        said = f"{first_few(without)} {NoFacts.NO_MPIBOOT.value}, and ranks are started by it"
        return said, "install it in the workers' image, or set RANK and the others in the program"
    if builder.line.mpirun and any(app.program is None for app in builder.line.apps):
        said = "it is not known where on the mpirun line the program begins"
        return said, f"write `{' '.join(_BEFORE)}` there, before the program"
    return "", ""


def _on_the_line(words: Sequence[str]) -> bool:
    first, second, _ = _BEFORE
    return any(a.rsplit("/", 1)[-1] == first and b == second for a, b in pairwise(words))


def _address(
    builder: PlanBuilder, observed: Observed, placed: Placement
) -> tuple[str, str, Source]:
    """Find the address of rank 0's host on the control link; empty where that host isn't known."""
    name = placed.first
    if not name:
        if placed.left and not _has(builder, observed, _ADDRESS):
            builder.findings.append(_unknown_host(placed.left))
        return "", "", Source.DETECTED
    because = f"rank 0 runs on {name}: its address on the control link"
    for worker in observed.workers:
        if observed.called(worker.host.name) == name:
            own = worker.facts.control_address if worker.facts else ""
            return own or worker.address, because, Source.DETECTED
    if observed.own and name in {observed.called(host.name) for host in observed.local}:
        return observed.own.control_address or name, because, Source.DETECTED
    return name, f"rank 0 runs on {name}, of which no address is known", Source.DETECTED


def _on_the_data_network(
    builder: PlanBuilder, resolved: Resolved, name: str, network: DataNetwork, observed: Observed
) -> tuple[str, str, Source]:
    """Find the address of rank 0's host on its first data link that has one."""
    given = resolved.given["master_network"]
    for one in network.networks:
        if observed.called(one.host) == name and one.plain:
            link = one.plain[0]
            because = (
                f"{given}=data: rank 0 runs on {name}, its address on the data link {link.name}"
            )
            return str(usable(link)[0].ip), because, given.source
    said = f"{given}=data: {name}, where rank 0 runs, has no data link with an address"
    builder.fail("settings-conflict", said, hint="leave it out: the control link is in all pods")
    return "", "", given.source


def _meeting(builder: PlanBuilder, variables: Mapping[str, str], host: str) -> Meeting | None:
    """Give the port that rank 0 will listen at, and its host; None where one isn't known here."""
    line = builder.line.export_values.get(_PORT)
    port = line or variables.get(_PORT) or builder.environ.get(_PORT, "")
    if not host or not port.isascii() or not port.isdigit():
        return None
    own = _PORT if line or builder.environ.get(_PORT) else f"{PREFIX}{_PORT}"
    return Meeting(host, int(port), own)


def _unknown_host(left: str) -> Finding:
    """Refuse ranks that would not find each other."""
    said = f"{left}: mpirun alone decides which host gets rank 0, where all ranks meet"
    hint = f"set {_ADDRESS} to that host's name in the launcher's pod"
    return failed("settings-conflict", said, hint=hint)


def _by_workers(observed: Observed, name: str) -> bool:
    """Whether every worker's own pod sets a variable."""
    return bool(observed.workers) and all(
        worker.facts and name in worker.facts.environment for worker in observed.workers
    )


def _has(builder: PlanBuilder, observed: Observed, name: str) -> bool:
    """Whether ranks have a variable of the user's, by line, launcher or their own pods."""
    line, environ = builder.line.export_values, builder.environ
    return name in line or bool(environ.get(name)) or _by_workers(observed, name)


def _set(
    builder: PlanBuilder, observed: Observed, name: str, value: str, because: str, source: Source
) -> dict[str, str]:
    """Set a variable of the ranks unless the user's line, environment or pods have it."""
    if name in builder.line.export_values:
        own = builder.line.export_values[name]
        builder.decide(name, own, Source.FLAG, "given on the mpirun line")
    elif _by_workers(observed, name) and not builder.environ.get(name):
        builder.decide(name, "", Source.DETECTED, "the workers' own pods set it")
    elif value or builder.environ.get(name):
        builder.variable(name, value, because, source)
    return {name: builder.set_env[name]} if name in builder.set_env else {}
