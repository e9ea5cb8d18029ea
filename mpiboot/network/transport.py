"""What carries the data of all ranks: the least that every worker has, or NCCL's plugin. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from mpiboot.core.choices import DataNetworkUse
from mpiboot.core.data_checks import DATA_ROWS
from mpiboot.core.fabric import AttachmentSource
from mpiboot.core.model import Decision, Finding, Source
from mpiboot.core.settings import Settings
from mpiboot.core.wording import first_few
from mpiboot.network import cluster_view
from mpiboot.network.records import Transport, WorkerNetwork
from mpiboot.network.variables import Proposal

# A pod that has one of these brings its own transport for NCCL, with settings of its own.
_PLUGIN_NAMES: Final = ("NCCL_NET", "NCCL_NET_PLUGIN")
_PLUGIN_PREFIXES: Final = ("NCCL_GPUDIRECTTCPX_", "NCCL_FASTRAK_")
_NOT_A_PLUGIN: Final = {("NCCL_NET", "ib"), ("NCCL_NET_PLUGIN", "none")}


@dataclass(slots=True)
class Proposals:
    """What the rules want, and what they have to say about it.

    ``plugin`` says what tells that a plugin carries NCCL's data: NCCL_* is then left as it is.
    ``blocked`` says where TCP does not pass on the data network.
    """

    networks: Sequence[WorkerNetwork]
    settings: Settings
    plugin: str
    blocked: str = ""
    transport: Transport = Transport.UNKNOWN
    proposals: list[Proposal] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def known(self) -> list[WorkerNetwork]:
        """The workers whose facts are known."""
        return [network for network in self.networks if network.facts is not None]

    def propose(
        self, name: str, value: str, rule: str, because: str, host: str | None = None
    ) -> None:
        """Note a proposal, unless it is one for NCCL, and a plugin has settings of its own."""
        if self.plugin and name.startswith("NCCL_"):
            return
        self.proposals.append(Proposal(name, value, rule, because, host))

    def find(self, check: str, said: str) -> None:
        """Note a finding on all workers together."""
        level = cluster_view.level(check, self.settings)
        self.findings.append(Finding(check, level, said, hint=DATA_ROWS[check].hint))


def settle(proposals: Proposals) -> Transport:
    """Settle what carries the data: the same on all workers, or TCP."""
    known = proposals.known
    kinds = {network.transport for network in known if network.usable}
    without = [network.host for network in known if not network.usable]
    if len(kinds) == 1 and not without:
        (kind,) = kinds
        because = f"every worker has usable {kind.value} ports"
        if kind is not Transport.EFA:
            _require(proposals, kind)
        else:
            proposals.propose("FI_PROVIDER", "efa", "transport", "EFA devices open on every worker")
            for said in _efa_lacks(proposals):
                proposals.find("efa-library", said)
    else:
        kind = (
            Transport.TCP if any(network.plain for network in proposals.known) else Transport.NONE
        )
        if not known:
            because = "no worker's facts are known"
        elif not kinds:
            because = "no worker has a usable RDMA port" + _devices_of_the_node(proposals.known)
        else:
            because = "the workers have RDMA of different kinds, which can't talk to each other"
            if without:
                because = (
                    f"{first_few(without)}: no usable RDMA port, and all ranks need one transport"
                )
            proposals.find("rdma-differs", f"the data goes over TCP: {because}")
        if Transport.EFA in kinds:
            # EFA comes by a plugin, which NCCL_IB_DISABLE does not stop.
            proposals.propose("NCCL_NET", "Socket", "transport", because)
        if known:
            proposals.propose("NCCL_IB_DISABLE", "1", "transport", because)
    if proposals.plugin:
        because += f"; {proposals.plugin}, so NCCL's own variables are left as they are"
    proposals.decisions.append(Decision("data-network", kind.value, Source.DETECTED, because))
    return kind


def _require(proposals: Proposals, kind: Transport) -> None:
    if proposals.settings.data_network is DataNetworkUse.REQUIRE:
        because = f"{kind.value} is required: without it NCCL fails instead of using TCP"
        proposals.propose("NCCL_NET", "IB", "transport", because)


def _devices_of_the_node(known: Iterable[WorkerNetwork]) -> str:
    """Say where devices are seen that nobody gave to the pod: maybe it was forgotten."""
    hosts = [
        network.host
        for network in known
        if network.facts and network.facts.fabric.devices and not network.rails
    ]
    said = f"; {first_few(hosts)}: only devices of the node are seen, and none belongs to the pod"
    return said if hosts else ""


def plugin_of(
    known: Sequence[WorkerNetwork], taken: Mapping[str, str], values: Mapping[str, str]
) -> str:
    """Tell what says that a plugin carries NCCL's data; NCCL_* is then left as it is."""
    own = {name for network in known if network.facts for name in network.facts.environment}
    for name in sorted({*taken, *own}):
        pair = (name, values.get(name, "").lower())
        if name.startswith(_PLUGIN_PREFIXES) or (
            name in _PLUGIN_NAMES and not (name in taken and pair in _NOT_A_PLUGIN)
        ):
            return f"{name} is set"
    for network in known:
        for item in network.facts.fabric.attachments if network.facts else ():
            if item.by is AttachmentSource.GIB:
                return f"{item.resource} is there"
    return ""


def _efa_lacks(proposals: Proposals) -> list[str]:
    """Say on which workers the image lacks what carries data over EFA; the user's plugin may."""
    hosts: dict[tuple[str, ...], list[str]] = {}
    for network in proposals.known:
        missing = network.facts.fabric.missing if network.facts else ()
        lacks = tuple(
            name for name in missing if not (proposals.plugin and name.startswith("libnccl"))
        )
        if lacks:
            hosts.setdefault(lacks, []).append(network.host)
    return [
        f"{first_few(names)}: EFA devices, but in the image no {' and no '.join(lacks)}"
        for lacks, names in hosts.items()
    ]
