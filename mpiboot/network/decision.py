"""What follows for the ranks: every variable of the data network, one owner each, per worker. Pure.

The user's own value wins and is shown. Values equal on all workers are given once; the others
belong to their worker and must not travel from the launcher.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from mpiboot.core.choices import DataNetworkUse
from mpiboot.core.model import Decision, Finding, Source
from mpiboot.core.setting_sources import Given
from mpiboot.core.settings import Settings
from mpiboot.core.wording import first_few
from mpiboot.network import cluster_view, gids, proposals, variables
from mpiboot.network.records import Transport, WorkerNetwork
from mpiboot.network.variables import Proposal

_NOTHING: Final[Mapping[str, str]] = {}
_GIVEN: Final = Given(Source.ENVIRONMENT, "MPIBOOT_DATA_NETWORK")


@dataclass(frozen=True, slots=True)
class DataNetwork:
    """The data network as it is decided for a job.

    ``common`` goes to every rank, ``per_host`` to the ranks of one worker (every worker has an
    entry, which may be empty; no name is in both). ``rows`` show it, a worker each. ``transport``
    carries the data; None where nobody is to look.
    """

    networks: tuple[WorkerNetwork, ...]
    rows: tuple[cluster_view.WorkerRow, ...]
    decisions: tuple[Decision, ...]
    per_host: Mapping[str, Mapping[str, str]]
    common: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    transport: Transport | None = None


def decide(
    workers: Sequence[WorkerNetwork],
    settings: Settings,
    taken: Mapping[str, str],
    *,
    values: Mapping[str, str] = _NOTHING,
    others: Sequence[Proposal] = (),
    given: Given = _GIVEN,
    blocked: str = "",
) -> DataNetwork:
    """Decide the data network of a job from what every worker has.

    Args:
        workers: the networks of the hosts that passed the gate.
        settings: what the user asked for.
        taken: names that the user has set for all ranks, each with where (``-x``, the launcher's
            environment). What a worker's own pod sets is in its facts.
        values: the values of those names where they are known here; they are checked and shown.
        others: what other rules want of the same variables; the owner of a name wins.
        given: by what the data network was asked for, or left out.
        blocked: where TCP does not pass between data addresses, as workers have tried.

    Returns:
        The same for the same facts, whatever the order of the mappings.
    """
    networks = _with_gids(workers, settings, taken)
    rows = tuple(map(cluster_view.row, networks))
    hosts = [network.host for network in networks]
    nothing = transport = None
    if settings.data_network is DataNetworkUse.OFF:
        because = f"{given}=off: nothing is set"
        nothing = Decision("data-network", "off", given.source, because)
    elif not networks:
        because = "no worker was reached: nothing is set"
        transport = Transport.UNKNOWN
        nothing = Decision("data-network", transport.value, Source.DETECTED, because)
    if nothing:
        empty: dict[str, dict[str, str]] = {host: {} for host in hosts}
        return DataNetwork(networks, rows, (nothing,), empty, transport=transport)
    findings = list(cluster_view.findings(networks, settings, taken, values))
    made = proposals.make(
        networks,
        settings,
        taken,
        values,
        theirs={proposal.name for proposal in others},
        blocked=blocked,
    )
    findings += made.findings
    settled = variables.settle(networks, [*made.proposals, *others], taken)
    findings += settled.findings
    common = _common(settled.values, hosts)
    per_host = {
        host: {name: value for name, value in mine.items() if name not in common}
        for host, mine in settled.values.items()
    }
    decisions = (
        *made.decisions,
        *_workers(networks),
        *_variables(settled.values, settled.because, common),
        *_users(settled.kept, taken, values),
    )
    return DataNetwork(networks, rows, decisions, per_host, common, tuple(findings), made.transport)


def _with_gids(
    workers: Sequence[WorkerNetwork], settings: Settings, taken: Mapping[str, str]
) -> tuple[WorkerNetwork, ...]:
    found = [
        (one.rails, {*taken, *(one.facts.environment if one.facts else ())}) for one in workers
    ]
    chosen = gids.choose(found, settings.nccl_version)
    return tuple(replace(one, gids=its) for one, its in zip(workers, chosen, strict=True))


def _common(values: Mapping[str, Mapping[str, str]], hosts: Sequence[str]) -> dict[str, str]:
    """Pick what every worker has with one value; a name that one lacks is not among them."""
    first = values[hosts[0]]
    return {
        name: value
        for name, value in first.items()
        if all(values[host].get(name) == value for host in hosts)
    }


def _workers(networks: Sequence[WorkerNetwork]) -> list[Decision]:
    """Gather the workers' own decisions: one line for each that is the same."""
    hosts: dict[Decision, list[str]] = {}
    for network in networks:
        for decision in network.decisions:
            hosts.setdefault(decision, []).append(network.host)
    everywhere = len(networks)
    return [
        decision
        if len(names) == everywhere
        else Decision(
            decision.name,
            decision.value,
            decision.source,
            f"{first_few(names)}: {decision.because}",
        )
        for decision, names in hosts.items()
    ]


def _variables(
    values: Mapping[str, Mapping[str, str]], because: Mapping[str, str], common: Mapping[str, str]
) -> list[Decision]:
    """Show every variable once; what differs by worker with the usual values first."""
    shown = []
    for name, why in because.items():
        if name in common:
            shown.append(Decision(name, common[name], Source.DETECTED, f"{why}; on all workers"))
            continue
        by_value: dict[str, list[str]] = {}
        for host, mine in values.items():
            if name in mine:
                by_value.setdefault(mine[name], []).append(host)
        counts = Counter({value: len(names) for value, names in by_value.items()})
        text = first_few(
            f"{value} ({first_few(by_value[value])})" for value, _ in counts.most_common()
        )
        shown.append(Decision(name, text, Source.DETECTED, f"{why}; per worker"))
    return shown


def _users(
    kept: Mapping[tuple[str, str], Sequence[str]],
    taken: Mapping[str, str],
    values: Mapping[str, str],
) -> list[Decision]:
    """Show what was left to the user."""
    return [
        Decision(
            name,
            values.get(name, "(the user's own)") if name in taken else "(left alone)",
            Source.ENVIRONMENT,
            f"{reason}; on {first_few(hosts)}",
        )
        for (name, reason), hosts in kept.items()
    ]
