"""The variables that ranks get for the data network: one owner each, per worker. Pure.

One rule owns a name, and its value is set where several propose one; the user's own value comes
first, and is shown. Values equal on all workers are given once; the others
belong to their worker and must not travel from the launcher.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from mpiboot.core.facts import Variable
from mpiboot.core.model import Decision, Finding, Level, Source
from mpiboot.core.setting_types import DataNetworkUse, MpiNetwork
from mpiboot.core.settings import Given, Settings
from mpiboot.core.wording import first_few
from mpiboot.network import cluster_view, nccl, proposals
from mpiboot.network.records import (
    NOT_CHOSEN,
    RdmaState,
    Transport,
    WorkerNetwork,
    set_in_pod,
    values_in_pod,
)


@dataclass(frozen=True, slots=True)
class _OwnedVariable:
    """One row. ``unless``: where the user has one of these, this is left alone as well.

    A GID index decided for our devices is wrong for the user's; UCX_TLS=tcp finds no RDMA port.
    """

    name: str
    rule: str
    unless: tuple[str, ...] = ()


_HCA, _UCX = "NCCL_IB_HCA", "UCX_NET_DEVICES"

VARIABLES: Final = (
    _OwnedVariable("NCCL_SOCKET_IFNAME", "nccl-socket"),
    _OwnedVariable("NCCL_SOCKET_FAMILY", "nccl-socket", ("NCCL_SOCKET_IFNAME",)),
    _OwnedVariable("GLOO_SOCKET_IFNAME", "nccl-socket"),
    _OwnedVariable("TP_SOCKET_IFNAME", "nccl-socket"),
    _OwnedVariable(_HCA, "rdma-ports"),
    _OwnedVariable("NCCL_IB_PKEY", "rdma-ports", (_HCA,)),
    _OwnedVariable("NCCL_NET", "transport", ("NCCL_NET_PLUGIN", "NCCL_IB_DISABLE", _HCA)),
    _OwnedVariable("NCCL_IB_GID_INDEX", "gid", (_HCA, "NCCL_IB_ADDR_RANGE", "NCCL_IB_ADDR_FAMILY")),
    _OwnedVariable("NCCL_IB_ADDR_RANGE", "gid", (_HCA, "NCCL_IB_GID_INDEX", "NCCL_IB_ADDR_FAMILY")),
    _OwnedVariable("NCCL_IB_ADDR_FAMILY", "gid", (_HCA, "NCCL_IB_GID_INDEX", "NCCL_IB_ADDR_RANGE")),
    _OwnedVariable(_UCX, "rdma-ports", ("UCX_TLS",)),
    _OwnedVariable("UCX_IB_PKEY", "rdma-ports", (_UCX, "UCX_TLS")),
    _OwnedVariable("UCX_IB_GID_INDEX", "gid", (_UCX, "UCX_TLS", "UCX_IB_ROCE_SUBNETS")),
    _OwnedVariable("UCX_IB_ROCE_SUBNETS", "gid", (_UCX, "UCX_TLS", "UCX_IB_GID_INDEX")),
    _OwnedVariable("FI_TCP_IFACE", "mpi-link"),
    _OwnedVariable("FI_SOCKETS_IFACE", "mpi-link"),
    _OwnedVariable("OMPI_MCA_pml", "mpi-network"),
    _OwnedVariable("OMPI_MCA_mtl", "mpi-network", ("OMPI_MCA_pml",)),
    _OwnedVariable(
        "OMPI_MCA_btl_tcp_if_include",
        "mpi-network",
        ("OMPI_MCA_btl_tcp_if_exclude", "OMPI_MCA_btl"),
    ),
)

_BY_NAME: Final = {row.name: row for row in VARIABLES}


def owner(name: str) -> str:
    """Give the rule that owns a variable; empty for a name that isn't in the table."""
    return _BY_NAME[name].rule if name in _BY_NAME else ""


def _unless(name: str) -> tuple[str, ...]:
    """Give the variables with which a variable is left alone, itself among them."""
    return (name, *(_BY_NAME[name].unless if name in _BY_NAME else ()))


_NOTHING: Final[Mapping[str, str]] = {}
_FILE: Final = "NCCL_CONF_FILE"


@dataclass(frozen=True, slots=True)
class SettledVariables:
    """Values by host and name, and the reason of each name.

    ``kept`` are the names that the user's own value kept, by name and where that is, with hosts.
    """

    values: dict[str, dict[str, str]]
    reason: dict[str, str]
    kept: dict[tuple[str, str], list[str]]
    findings: tuple[Finding, ...]


# Values that choose nothing: the recipe's own.
_NO_CHOICE: Final = {("NCCL_IB_DISABLE", "0"), ("NCCL_NET_PLUGIN", "none")}


def settle(
    networks: Sequence[WorkerNetwork],
    wanted: Sequence[Variable],
    taken: Mapping[str, str],
    values_taken: Mapping[str, str] = _NOTHING,
) -> SettledVariables:
    """Give every variable its owner's value, unless the user has set it or what it depends on."""
    hosts = {network.host: network.facts for network in networks}
    values: dict[str, dict[str, str]] = {host: {} for host in hosts}
    reason: dict[str, str] = {}
    kept: dict[tuple[str, str], list[str]] = {}
    clashes: dict[str, list[str]] = {}
    chosen: dict[tuple[str, str], Variable] = {}
    for proposal in wanted:
        for host in (proposal.host,) if proposal.host else hosts:
            key = (host, proposal.name)
            now = chosen.get(key)
            rule = owner(proposal.name)
            if now is None or (now.rule != rule and proposal.rule == rule):
                chosen[key] = proposal
            if now is not None and now.value != proposal.value:
                mine, theirs = (proposal, now) if chosen[key] is proposal else (now, proposal)
                message = (
                    f"{proposal.name}: {mine.rule} wants {mine.value}, {theirs.rule} wants "
                    f"{theirs.value}; it belongs to {rule or mine.rule}, whose value is set"
                )
                clashes.setdefault(message, []).append(host)
    for (host, name), proposal in chosen.items():
        own, in_pod = set_in_pod(hosts[host]), values_in_pod(hosts[host])
        known = {**in_pod, **values_taken}
        names = [
            item
            for item in _unless(name)
            if item == name or (item, known.get(item, "").strip().lower()) not in _NO_CHOICE
        ]
        if name.startswith("NCCL_") and values_taken.get(_FILE) != in_pod.get(_FILE):
            names.append(_FILE)  # what is in a file that ranks alone read isn't known
        every = {**own, **taken}
        blocker = next((item for item in names if item in taken), "")
        blocker = blocker or next((item for item in names if item in own), "")
        if blocker:
            where = every[blocker]
            why = where if blocker == name else f"{blocker} is set ({where})"
            kept.setdefault((name, why), []).append(host)
            continue
        values[host][name] = proposal.value
        reason.setdefault(name, proposal.reason)
    findings = tuple(
        Finding(
            "settings-conflict",
            Level.WARN,
            message,
            names[0] if len(names) == 1 else "",
            tuple(names) if len(names) > 1 else (),
            "set the variable yourself to decide",
        )
        for message, names in clashes.items()
    )
    return SettledVariables(values, reason, kept, findings)


_GIVEN: Final = Given(Source.ENVIRONMENT, "MPIBOOT_DATA_NETWORK")


@dataclass(frozen=True, slots=True)
class DataNetwork:
    """The data network as it is decided for a job.

    ``common`` goes to every rank, ``per_host`` to the ranks of one worker (every worker has an
    entry, which may be empty; no name is in both). ``rows`` show it, a worker each. ``transport``
    carries the data; None where nobody is to look. ``mpi`` is what carries MPI's own messages, by
    ``mpi_network``, and why.
    """

    networks: tuple[WorkerNetwork, ...]
    rows: tuple[cluster_view.WorkerRow, ...]
    decisions: tuple[Decision, ...]
    per_host: Mapping[str, Mapping[str, str]]
    common: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    transport: Transport | None = None
    mpi: tuple[MpiNetwork, str] = (MpiNetwork.CONTROL, "")


def mpi_network(networks: Sequence[WorkerNetwork], settings: Settings) -> tuple[MpiNetwork, str]:
    """Decide what ``auto`` means for MPI's own messages, and why.

    Beside GPUs NCCL carries the data, and MPI has its network for itself. Where no worker has one
    and all have RDMA, MPI's messages are the data.

    Returns:
        ``auto`` where the choice is left to the MPI.
    """
    facts = [network.facts for network in networks]
    gpus = [one.host for one in networks if one.facts and one.facts.gpus.count]
    states = {network.rdma for network in networks}
    if settings.mpi_network is not MpiNetwork.AUTO:
        return settings.mpi_network, ""
    if not networks:
        return MpiNetwork.AUTO, "no worker's GPUs and RDMA are known"
    if gpus:
        return MpiNetwork.CONTROL, f"{first_few(gpus)}: GPUs, so NCCL carries the data"
    if settings.data_network is DataNetworkUse.OFF or RdmaState.UNKNOWN not in states:
        if states != {RdmaState.KNOWN}:
            return MpiNetwork.CONTROL, "not every worker has RDMA"
        return MpiNetwork.AUTO, "no worker has a GPU, and all have RDMA: MPI carries the data"
    unknown = "RDMA" if all(facts) else "GPUs and RDMA"
    hosts = first_few(one.host for one in networks if one.rdma is RdmaState.UNKNOWN)
    return MpiNetwork.AUTO, f"{unknown} of {hosts} are not known"


def decide(
    workers: Sequence[WorkerNetwork],
    settings: Settings,
    taken: Mapping[str, str],
    *,
    values: Mapping[str, str] = _NOTHING,
    others: Sequence[Variable] = (),
    given: Given = _GIVEN,
    blocked: str = "",
    asked: bool = True,
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
        asked: whether hosts were asked at all.

    Returns:
        The same for the same facts, whatever the order of the mappings.
    """
    networks = with_gids(workers, settings, taken)
    rows = tuple(map(cluster_view.row, networks))
    hosts = [network.host for network in networks]
    nothing = transport = None
    if settings.data_network is DataNetworkUse.OFF:
        reason = f"{given}=off: nothing is set"
        nothing = Decision("data-network", "off", given.source, reason)
    elif not networks:
        reason = f"no worker was {'reached' if asked else 'asked'}: nothing is set"
        transport = Transport.UNKNOWN
        nothing = Decision("data-network", transport.value, Source.DETECTED, reason)
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
    settled = settle(networks, [*made.proposals, *others], taken, values)
    findings += settled.findings
    common = _common(settled.values, hosts)
    per_host = {
        host: {name: value for name, value in mine.items() if name not in common}
        for host, mine in settled.values.items()
    }
    decisions = (
        *made.decisions,
        *_workers(networks),
        *_variables(settled.values, settled.reason, common),
        *_users(settled.kept, taken, values),
    )
    if settings.data_network is DataNetworkUse.REPORT:
        only = Decision(
            "data-network-use", "report", given.source, f"{given}=report: nothing is set"
        )
        decisions, common, per_host = (*decisions, only), {}, {host: {} for host in hosts}
    return DataNetwork(networks, rows, decisions, per_host, common, tuple(findings), made.transport)


def with_gids(
    workers: Sequence[WorkerNetwork], settings: Settings, taken: Mapping[str, str]
) -> tuple[WorkerNetwork, ...]:
    """Add each worker's GID choice, unless it is there; ``taken`` as ``decide`` has it."""
    return tuple(
        one
        if one.gids is not NOT_CHOSEN
        else replace(
            one,
            gids=nccl.choose(
                one.rails,
                {*taken, *set_in_pod(one.facts)},
                settings.nccl_version,
            ),
        )
        for one in workers
    )


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
            f"{first_few(names)}: {decision.reason}",
        )
        for decision, names in hosts.items()
    ]


def _variables(
    values: Mapping[str, Mapping[str, str]], reason: Mapping[str, str], common: Mapping[str, str]
) -> list[Decision]:
    """Show every variable once; what differs by worker with the usual values first."""
    shown = []
    for name, why in reason.items():
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
            f"{why}; on {first_few(hosts)}",
        )
        for (name, why), hosts in kept.items()
    ]
