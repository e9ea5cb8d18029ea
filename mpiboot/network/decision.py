"""The variables that ranks get for the data network, per worker. Pure.

The user's own value comes first, and is shown. Values equal on all workers are given once; the
others belong to their worker and must not travel from the launcher.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from mpiboot.core.facts import Variable
from mpiboot.core.model import Decision, Finding, Source
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

_HCA, _UCX = "NCCL_IB_HCA", "UCX_NET_DEVICES"

# What is decided here. Where the user has one of the others, the variable is left alone as well: a
# GID index decided for our devices is wrong for the user's; UCX_TLS=tcp finds no RDMA port.
VARIABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "NCCL_SOCKET_IFNAME": (),
    "NCCL_SOCKET_FAMILY": ("NCCL_SOCKET_IFNAME",),
    "GLOO_SOCKET_IFNAME": (),
    "TP_SOCKET_IFNAME": (),
    _HCA: (),
    "NCCL_IB_PKEY": (_HCA,),
    "NCCL_NET": ("NCCL_NET_PLUGIN", "NCCL_IB_DISABLE", _HCA),
    **dict.fromkeys(nccl.NCCL_GID[1:4], nccl.NCCL_GID),
    _UCX: ("UCX_TLS",),
    "UCX_IB_PKEY": (_UCX, "UCX_TLS"),
    **dict.fromkeys(nccl.UCX_GID[2:], nccl.UCX_GID),
    "FI_TCP_IFACE": (),
    "FI_SOCKETS_IFACE": (),
    "OMPI_MCA_pml": (),
    "OMPI_MCA_mtl": ("OMPI_MCA_pml",),
    "OMPI_MCA_btl_tcp_if_include": ("OMPI_MCA_btl_tcp_if_exclude", "OMPI_MCA_btl"),
}
# Values that choose nothing: the recipe's own.
_NO_CHOICE: Final = {("NCCL_IB_DISABLE", "0"), ("NCCL_NET_PLUGIN", "none")}
_FILE: Final = "NCCL_CONF_FILE"
_NOTHING: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class ResolvedVariables:
    """Values by host and name, and the reason of each name.

    ``by_user`` are the names that the user's value decides, with where it stands: hosts by both.
    """

    values: dict[str, dict[str, str]]
    reason: dict[str, str]
    by_user: dict[tuple[str, str], list[str]]


def resolve_by_host(
    networks: Sequence[WorkerNetwork],
    wanted: Iterable[Variable],
    taken: Mapping[str, str],
    values_taken: Mapping[str, str] = _NOTHING,
) -> ResolvedVariables:
    """Set every variable, unless the user has set it or what it depends on."""
    facts = {network.host: network.facts for network in networks}
    in_pod = {host: values_in_pod(seen) for host, seen in facts.items()}
    places = {host: {**set_in_pod(seen), **taken} for host, seen in facts.items()}
    found = ResolvedVariables({host: {} for host in facts}, {}, {})
    for proposal in wanted:
        name = proposal.name
        for host in (proposal.host,) if proposal.host else facts:
            known = {**in_pod[host], **values_taken}
            others = VARIABLES.get(name, ())
            chosen = {other: known.get(other, "").strip().lower() for other in others}
            names = [name, *(item[0] for item in chosen.items() if item not in _NO_CHOICE)]
            if name.startswith("NCCL_") and values_taken.get(_FILE) != in_pod[host].get(_FILE):
                names.append(_FILE)  # what is in a file that ranks alone read isn't known
            # What is set for all ranks comes before a pod's own.
            blockers = [item for item in names if item in places[host]]
            blocker = next((item for item in blockers if item in taken), "")
            if blocker := blocker or next(iter(blockers), ""):
                where = places[host][blocker]
                why = where if blocker == name else f"{blocker} is set ({where})"
                found.by_user.setdefault((name, why), []).append(host)
            else:
                found.values[host][name] = proposal.value
                found.reason.setdefault(name, proposal.reason)
    return found


_GIVEN: Final = Given(Source.ENVIRONMENT, "MPIBOOT_DATA_NETWORK")


@dataclass(frozen=True, slots=True)
class DataNetwork:
    """The data network as it is decided for a job.

    ``common`` goes to every rank, ``per_host`` to the ranks of one worker (every worker has an
    entry, which may be empty; no name is in both). ``rows`` show it, a worker each. ``transport``
    carries the data; None where it is left alone. ``mpi`` is what carries MPI's own messages, by
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
        settings: the user's settings.
        taken: names that the user has set for all ranks, each with where (``-x``, the launcher's
            environment). What a worker's own pod sets is in its facts.
        values: the values of those names where they are known here; they are checked and shown.
        others: what the MPI wants of the same variables, which comes first.
        given: the flag or variable that chose the data network, or left it out.
        blocked: where TCP does not pass between data addresses, as workers have tried.
        asked: whether hosts were queried at all.

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
        owned_by_mpi={proposal.name for proposal in others},
        blocked=blocked,
    )
    findings += made.findings
    resolved = resolve_by_host(networks, (*made.proposals, *others), taken, values)
    common = _common(resolved.values, hosts)
    per_host = {
        host: {name: value for name, value in mine.items() if name not in common}
        for host, mine in resolved.values.items()
    }
    decisions = (
        *made.decisions,
        *_workers(networks),
        *_variables(resolved.values, resolved.reason, common),
        *_users(resolved.by_user, taken, values),
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
    by_user: Mapping[tuple[str, str], Sequence[str]],
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
        for (name, why), hosts in by_user.items()
    ]
