"""The variables of the data network: which rule owns which, and who wins where several want one.

One owner a name; the user's own value comes before everybody's. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mpiboot.core.model import Finding, Level
from mpiboot.network.records import WorkerNetwork


@dataclass(frozen=True, slots=True)
class Proposal:
    """A value that a rule wants for a variable, on one worker or (``host`` None) on all."""

    name: str
    value: str
    rule: str
    because: str
    host: str | None = None


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
    _OwnedVariable("NCCL_IB_DISABLE", "transport", (_HCA,)),
    _OwnedVariable("NCCL_NET", "transport", ("NCCL_NET_PLUGIN", "NCCL_IB_DISABLE")),
    _OwnedVariable("NCCL_IB_GID_INDEX", "gid", (_HCA, "NCCL_IB_ADDR_RANGE", "NCCL_IB_ADDR_FAMILY")),
    _OwnedVariable("NCCL_IB_ADDR_RANGE", "gid", (_HCA, "NCCL_IB_GID_INDEX", "NCCL_IB_ADDR_FAMILY")),
    _OwnedVariable("NCCL_IB_ADDR_FAMILY", "gid", (_HCA, "NCCL_IB_GID_INDEX", "NCCL_IB_ADDR_RANGE")),
    _OwnedVariable(_UCX, "rdma-ports", ("UCX_TLS",)),
    _OwnedVariable("UCX_IB_PKEY", "rdma-ports", (_UCX, "UCX_TLS")),
    _OwnedVariable("UCX_IB_GID_INDEX", "gid", (_UCX, "UCX_TLS", "UCX_IB_ROCE_SUBNETS")),
    _OwnedVariable("UCX_IB_ROCE_SUBNETS", "gid", (_UCX, "UCX_TLS", "UCX_IB_GID_INDEX")),
    _OwnedVariable("FI_PROVIDER", "transport"),
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


@dataclass(frozen=True, slots=True)
class SettledVariables:
    """Values by host and name, and the reason of each name.

    ``kept`` are the names that the user's own value kept, by name and where that is, with hosts.
    """

    values: dict[str, dict[str, str]]
    because: dict[str, str]
    kept: dict[tuple[str, str], list[str]]
    findings: tuple[Finding, ...]


def settle(
    networks: Sequence[WorkerNetwork], wanted: Sequence[Proposal], taken: Mapping[str, str]
) -> SettledVariables:
    """Give every variable its owner's value, unless the user has it or what it hangs on."""
    hosts = {network.host: network.facts for network in networks}
    values: dict[str, dict[str, str]] = {host: {} for host in hosts}
    because: dict[str, str] = {}
    kept: dict[tuple[str, str], list[str]] = {}
    clashes: dict[str, list[str]] = {}
    chosen: dict[tuple[str, str], Proposal] = {}
    for proposal in wanted:
        for host in hosts if proposal.host is None else (proposal.host,):
            key = (host, proposal.name)
            now = chosen.get(key)
            rule = owner(proposal.name)
            if now is None or (now.rule != rule and proposal.rule == rule):
                chosen[key] = proposal
            if now is not None and now.value != proposal.value:
                mine, theirs = (proposal, now) if chosen[key] is proposal else (now, proposal)
                said = (
                    f"{proposal.name}: {mine.rule} wants {mine.value}, {theirs.rule} wants "
                    f"{theirs.value}; it belongs to {rule or mine.rule}, whose value is set"
                )
                clashes.setdefault(said, []).append(host)
    for (host, name), proposal in chosen.items():
        facts = hosts[host]
        own = facts.environment if facts else ()
        blocker = next((item for item in _unless(name) if item in taken), "")
        where = taken.get(blocker, "")
        if not blocker:
            blocker = next((item for item in _unless(name) if item in own), "")
            where = "the worker's pod"
        if blocker:
            reason = where if blocker == name else f"{blocker} is set ({where})"
            kept.setdefault((name, reason), []).append(host)
            continue
        values[host][name] = proposal.value
        because.setdefault(name, proposal.because)
    findings = tuple(
        Finding(
            "settings-conflict",
            Level.WARN,
            said,
            names[0] if len(names) == 1 else "",
            tuple(names) if len(names) > 1 else (),
            "set the variable yourself to decide",
        )
        for said, names in clashes.items()
    )
    return SettledVariables(values, because, kept, findings)
