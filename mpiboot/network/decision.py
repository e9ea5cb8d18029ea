"""The data network of a job: proposed variables with their reasons, and findings. Pure.

All ranks need the same transport: the best that every worker has, or that of NCCL's plugin.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from mpiboot.core.checks import failed
from mpiboot.core.facts import Link, Variable
from mpiboot.core.model import DataNetworkUse, Decision, Finding, MpiNetwork, NcclSocket, Source
from mpiboot.core.settings import Given, Settings
from mpiboot.core.wording import first_few, grouped
from mpiboot.network import cluster_view, nccl
from mpiboot.network.records import (
    NOT_CHOSEN,
    RDMA,
    Owned,
    RdmaState,
    Transport,
    WorkerNetwork,
    owned_in_pod,
)

_GIVEN: Final = Given(Source.ENVIRONMENT, "MPIBOOT_DATA_NETWORK")
# Variables that choose an NCCL net plugin, which has its own transport and settings.
_PLUGIN_NAMES: Final = ("NCCL_NET", "NCCL_NET_PLUGIN")
_WITHOUT_PLUGIN: Final = {("NCCL_NET", "ib"), ("NCCL_NET", "socket"), ("NCCL_NET_PLUGIN", "none")}
# TCPX and TCPXO (and gIB) choose their socket interfaces, too.
_PLUGIN_SOCKETS: Final = ("NCCL_GPUDIRECTTCPX_", "NCCL_FASTRAK_")
# HPC-X's nccl-rdma-sharp-plugins, by its names before and after init, reads NCCL's variables,
# except that NCCL_IBEXT_DISABLE replaces NCCL_IB_DISABLE.
_LIKE_NCCL: Final = ("nccl rdma plugin", "ibext")


class Plugin(NamedTuple):
    """An NCCL net plugin: the evidence for it, and prefixes of the variables left to it.

    ``named``: a variable names it.
    """

    evidence: str = ""
    owns: tuple[str, ...] = ()
    named: bool = False


_NO_PLUGIN: Final = Plugin()


@dataclass(slots=True)
class DataNetwork:
    """The decisions on a job's data network.

    ``proposals``: variables for ranks, unless the user has set them. They become ``common``, for
    all ranks, and ``per_host``, for one worker's ranks (every worker has an entry, which may be
    empty; no name is in both). ``transport`` carries the data; None: switched off. ``mpi``: the
    network of MPI's own messages, and the reason (``mpi_network``). ``owned``: the user's
    variables, by host; ``owned_by_mpi``: variables that the MPI sets; ``blocked``: where TCP fails
    on the data network.
    """

    networks: tuple[WorkerNetwork, ...]
    settings: Settings
    owned: Mapping[str, Mapping[str, Owned]]
    mpi: tuple[MpiNetwork, str]
    plugin: Plugin = _NO_PLUGIN
    owned_by_mpi: Collection[str] = ()
    blocked: str = ""
    transport: Transport | None = None
    proposals: list[Variable] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    per_host: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    common: Mapping[str, str] = field(default_factory=dict)

    @property
    def known(self) -> list[WorkerNetwork]:
        """The workers whose facts are known."""
        return [network for network in self.networks if network.facts is not None]

    def decide(self, name: str, value: str, reason: str, source: Source = Source.DETECTED) -> None:
        """Add a decision."""
        self.decisions.append(Decision(name, value, source, reason))

    def propose(self, name: str, value: str, reason: str, host: str = "") -> None:
        """Add a proposal, unless the variable belongs to the MPI or a plugin."""
        if name not in self.owned_by_mpi and not name.startswith(self.plugin.owns):
            self.proposals.append(Variable(name, value, reason, host=host))

    def report(self, check: str, message: str) -> None:
        """Add a finding on the workers together."""
        level = cluster_view.level(check, self.settings)
        self.findings.append(failed(check, message, level=level))


def mpi_network(networks: Sequence[WorkerNetwork], settings: Settings) -> tuple[MpiNetwork, str]:
    """Resolve ``auto`` for MPI's own messages.

    With GPUs, NCCL carries the data, and MPI uses the control network. With RDMA and no GPUs, MPI
    carries the data, and its default is right: Open MPI prefers pml ucx to ob1 on mlx5 devices
    (open-mpi/ompi#8549); to require it would abort an Open MPI built without UCX.

    Returns:
        The network (``auto``: left to the MPI), and the reason.
    """
    gpus = [one.host for one in networks if one.facts and one.facts.gpus.count]
    unknown = [one.host for one in networks if one.rdma is RdmaState.UNKNOWN]
    if settings.mpi_network is not MpiNetwork.AUTO:
        return settings.mpi_network, ""
    if gpus:
        return MpiNetwork.CONTROL, f"{first_few(gpus)}: GPUs, so NCCL carries the data"
    if not networks or unknown:
        return MpiNetwork.AUTO, f"GPUs or RDMA unknown on {first_few(unknown) or 'all workers'}"
    if any(one.rdma is not RdmaState.KNOWN for one in networks):
        return MpiNetwork.CONTROL, "not every worker has RDMA"
    return MpiNetwork.AUTO, "no worker has a GPU, and all have RDMA: MPI carries the data"


def decide(
    workers: Sequence[WorkerNetwork],
    settings: Settings,
    users: Mapping[str, Owned],
    *,
    others: Sequence[Variable] = (),
    given: Given = _GIVEN,
    blocked: str = "",
) -> DataNetwork:
    """Decide the data network of a job from what every worker has.

    Args:
        workers: the networks of the hosts that passed the gate.
        settings: the user's settings.
        users: the user's variables for all ranks; those of a worker's pod are in its facts.
        others: what the MPI itself needs in these variables; it wins while MPI's messages use
            the control link.
        given: the flag or variable that chose the data network.
        blocked: where the workers' TCP dials on data addresses failed.

    Returns:
        The decisions, which don't depend on the order of the mappings.
    """
    owned = {one.host: {**owned_in_pod(one.facts), **users} for one in workers}
    networks = tuple(
        replace(one, gids=nccl.choose(one.rails, owned[one.host], settings.nccl_version))
        if one.gids is NOT_CHOSEN
        else one
        for one in workers
    )
    mpi = mpi_network(networks, settings)
    net = DataNetwork(networks, settings, owned, mpi, blocked=blocked)
    if settings.data_network is DataNetworkUse.OFF:
        net.decide("data-network", "off", f"{given}=off: nothing is set", given.source)
        return net
    if not networks:
        net.transport = Transport.UNKNOWN
        net.decide("data-network", net.transport.value, "no worker is known: nothing is set")
        return net
    if mpi[0] is not MpiNetwork.CONTROL:
        others = ()
    net.owned_by_mpi = {proposal.name for proposal in others}
    net.plugin = _plugin_of(networks, owned.values())
    net.findings += cluster_view.findings(networks, settings, users)
    net.transport = _transport(net)
    over_data, why_socket = _sockets(net)
    _rdma(net)
    for network in net.known:
        control = (network.control,) if network.control else ()
        _on_links(net, network.host, over_data.get(network.host) or control, why_socket)
    _mpi(net)
    net.proposals += others
    net.decisions += _workers(networks)
    if settings.data_network is DataNetworkUse.REPORT:
        net.decide("data-network-use", "report", f"{given}=report: nothing is set", given.source)
    return net


def _workers(networks: Sequence[WorkerNetwork]) -> list[Decision]:
    """Merge the workers' decisions: equal ones become one, with the hosts' names."""
    hosts = grouped((decision, one.host) for one in networks for decision in one.decisions)
    return [
        decision
        if len(names) == len(networks)
        else replace(decision, reason=f"{first_few(names)}: {decision.reason}")
        for decision, names in hosts.items()
    ]


def _plugin_of(networks: Sequence[WorkerNetwork], pods: Iterable[Mapping[str, Owned]]) -> Plugin:
    """Find the plugin that replaces NCCL's built-in transports."""
    named = {(name, (own.value or "").lower()) for pod in pods for name, own in pod.items()}
    plugins = [(one.host, one.facts.fabric.plugin) for one in networks if one.facts]
    for name, value in sorted(named):
        if name.startswith(_PLUGIN_SOCKETS) or (name, value) == ("NCCL_NET", "gib"):
            return Plugin(f"{name} is set", ("NCCL_",), named=True)
    for host, plugin in plugins:
        if plugin == "gIB":
            return Plugin(f"{host} has the plugin gIB", ("NCCL_",))
    owns = ("NCCL_NET", "NCCL_IB_")
    for name, value in sorted(named - _WITHOUT_PLUGIN):
        if name in _PLUGIN_NAMES and not value.startswith(_LIKE_NCCL):
            return Plugin(f"{name} is set", owns, named=True)
    if not named & _WITHOUT_PLUGIN:
        for host, plugin in plugins:
            if plugin and not plugin.lower().startswith(_LIKE_NCCL):
                return Plugin(f"{host}: NCCL would load the plugin {plugin}", owns)
    return _NO_PLUGIN


def _transport(net: DataNetwork) -> Transport:
    """Choose one transport for all workers whose RDMA is known."""
    by_state = grouped((one.rdma, one) for one in net.networks)
    known, none = (by_state.get(state, []) for state in (RdmaState.KNOWN, RdmaState.NONE))
    unknown = _unknown(by_state.get(RdmaState.UNKNOWN, []))
    kinds = {one.transport for one in known}
    kind = Transport.TCP if any(one.plain for one in net.known) else Transport.NONE
    # RoCE's GIDs are the links' addresses: they must be unique.
    shared = cluster_view.shared_address(known) if kinds == {Transport.ROCE} else ""
    if len(kinds) == 1 and not (none or shared):
        (kind,) = kinds
        reason = f"every worker has usable {kind.value} ports"
        if unknown:
            reason = f"usable {kind.value} ports on {_hosts(known)}{unknown}"
        _require(net, kind)
    elif kinds:
        reason = shared or "the workers have different kinds of RDMA, which can't interoperate"
        if none:
            reason = f"{_hosts(none)}: no usable RDMA port; ranks must share one transport"
        elif not shared:
            net.report("rdma-differs", f"the data goes over TCP: {reason}")
        net.propose("NCCL_NET", "Socket", reason)
    elif unknown:
        kind, reason = Transport.UNKNOWN, unknown.removeprefix("; ")
    else:
        reason = _without_rdma(net, none)
    if net.plugin.owns:
        owned = " or ".join(f"{prefix}*" for prefix in net.plugin.owns)
        reason += f"; {net.plugin.evidence}, so mpiboot sets no {owned}"
    net.decide("data-network", kind.value, reason)
    return kind


def _require(net: DataNetwork, kind: Transport) -> None:
    """Report missing EFA libraries; forbid NCCL's fallback to TCP if RDMA is required."""
    if kind is Transport.EFA:
        # A plugin that the user names may bring them.
        missing = grouped(
            (" and ".join(one.facts.fabric.missing), one.host)
            for one in net.known
            if one.facts and one.facts.fabric.missing and not net.plugin.named
        )
        for names, hosts in missing.items():
            message = f"{first_few(hosts)}: EFA devices, but the image lacks {names}"
            net.report("efa-library", message)
    elif net.settings.data_network is DataNetworkUse.REQUIRE:
        why = f"{kind.value} is required: without it NCCL fails instead of using TCP"
        net.propose("NCCL_NET", "IB", why)


def _hosts(networks: Iterable[WorkerNetwork]) -> str:
    return first_few(network.host for network in networks)


def _unknown(networks: Iterable[WorkerNetwork]) -> str:
    """List the workers with unknown RDMA, and why; empty if there are none."""
    hosts = grouped(
        (one.unseen if one.facts else f"the pod {one.no_facts.value}", one.host) for one in networks
    )
    return "".join(f"; unknown on {first_few(names)}: {why}" for why, names in hosts.items())


def _without_rdma(net: DataNetwork, networks: Sequence[WorkerNetwork]) -> str:
    """Keep NCCL off foreign ports; name hosts whose devices all belong to the node."""
    if ports := [name for one in networks for name in one.foreign]:
        why = f"NCCL would use ports of other pods or the node: {first_few(ports)}"
        net.propose("NCCL_NET", "Socket", why)
    hosts = [x.host for x in networks if x.facts and x.facts.fabric.devices and not x.rails]
    what = "RDMA devices are visible, but none belongs to the pod"
    return "no worker has a usable RDMA port" + (f"; {first_few(hosts)}: {what}" if hosts else "")


def _rdma(net: DataNetwork) -> None:
    """Propose each worker's ports and GIDs."""
    if net.transport not in (Transport.ROCE, Transport.INFINIBAND):
        return
    for network in [one for one in net.networks if one.rdma is RdmaState.KNOWN]:
        host, choice = network.host, network.gids
        used = (x for x in network.rails if x.name in choice.used)
        shown = first_few(f"{x.link.name} {x.name}" if x.link else x.name for x in used)
        reason = f"this worker's own ports: {shown}"
        net.propose("UCX_NET_DEVICES", ",".join(choice.used), reason, host)
        if not network.only_own_ports:
            net.propose("NCCL_IB_HCA", nccl.exact(choice.used), reason, host)
        for name, value in choice.values.items():
            net.propose(name, value, choice.reason, host)
        _pkey(net, network)


def _pkey(net: DataNetwork, network: WorkerNetwork) -> None:
    """Propose the partition of an IPoIB link: for NCCL by index, for UCX by value."""
    ports = [rail for rail in network.rails if rail.transport is Transport.INFINIBAND]
    keys = (rail.link.pkey for rail in ports if rail.link)
    # The top bit marks a full member; it is the same partition.
    values = {key & 0x7FFF for key in keys if key is not None}
    # A port without a link uses the same partition.
    indexes = {
        next((place for place, key in enumerate(rail.port.pkeys) if key & 0x7FFF == value), 0)
        for rail in ports
        for value in values
    }
    if len(values) == len(indexes) == 1:
        (value,), (index,) = values, indexes
        if index:
            reason = f"the data link is in partition {value:#06x}, entry {index}"
            net.propose("UCX_IB_PKEY", f"{value:#x}", reason, network.host)
            net.propose("NCCL_IB_PKEY", str(index), reason, network.host)
    elif values:
        listed = ", ".join(f"{value:#06x}" for value in sorted(values))
        message = f"{network.host}: P_Keys {listed} are not at one index, and NCCL can use only one"
        net.report("data-ambiguous", message)


def _sockets(net: DataNetwork) -> tuple[dict[str, tuple[Link, ...]], str]:
    """Decide whether NCCL's sockets go over the data link: by reachability, on all workers.

    Returns:
        Each worker's data links (none: the control link is used), and the reason.
    """
    wanted, networks = net.settings.nccl_socket, net.known
    if wanted is NcclSocket.CONTROL:
        return {}, "MPIBOOT_NCCL_SOCKET=control"
    reason = _why_not_data(net)
    if reason:
        if wanted is NcclSocket.DATA:
            net.report("data-networks", f"MPIBOOT_NCCL_SOCKET=data, but {reason}")
        elif reason == net.blocked:
            message = f"TCP fails on the data network: {reason}"
            net.report("data-sockets", f"{message}; sockets use the control link")
        return {}, f"the control link: {reason}"
    why = "the data link: every worker has an address there, and reaches the others"
    if net.transport in RDMA:
        # With RDMA this is bootstrap only, which takes a single link.
        return {one.host: one.plain[:1] for one in networks}, f"{why}; only bootstrap with RDMA"
    return {one.host: one.plain for one in networks}, why


def _why_not_data(net: DataNetwork) -> str:
    """Explain why the data link can't carry sockets; empty where it can."""
    plain = {network.host: network.plain for network in net.known}
    without = [host for host, links in plain.items() if not links]
    if len(plain) < len(net.networks):
        return "not every worker's facts are known"
    if without:
        some = f"{first_few(without)}: no data link with an address"
        none = "no worker has a data link with an address"
        return none if len(without) == len(plain) else some
    if len(set(map(len, plain.values()))) > 1 and net.transport not in RDMA:
        return "the workers have different numbers of data links"
    return cluster_view.shared_address(net.known) or net.blocked


def _on_links(net: DataNetwork, host: str, links: Sequence[Link], reason: str) -> None:
    """Propose interfaces for NCCL's, Gloo's and TensorPipe's sockets, and for UCX over TCP."""
    names = [link.name for link in links]
    if not names:
        return
    net.propose("NCCL_SOCKET_IFNAME", nccl.exact(names), reason, host)
    # These take a plain name, and one link is enough for a rendezvous.
    net.propose("GLOO_SOCKET_IFNAME", names[0], reason, host)
    net.propose("TP_SOCKET_IFNAME", names[0], reason, host)
    if net.transport is Transport.TCP:
        reason = "the data network uses TCP"
        net.propose("UCX_NET_DEVICES", ",".join(names), reason, host)


def _mpi(net: DataNetwork) -> None:
    """Move MPI's messages, not its daemons, to the data network if the setting requires it."""
    if net.settings.mpi_network is not MpiNetwork.DATA:
        return
    reason = "MPIBOOT_MPI_NETWORK=data"
    if net.transport is Transport.EFA:
        for name, value in (("OMPI_MCA_pml", "cm"), ("OMPI_MCA_mtl", "ofi")):
            net.propose(name, value, f"{reason}: libfabric's EFA")
        return
    if net.transport in RDMA:
        net.propose("OMPI_MCA_pml", "ucx", f"{reason}: UCX on the RDMA ports")
        return
    problem = _why_not_data(net)
    names = {",".join(link.name for link in network.plain) for network in net.known}
    if not problem and len(names) > 1:
        problem = "the data links' names differ, but mpirun gives all ranks one list of names"
    if problem:
        net.report("data-networks", f"MPI's data stays on the control link: {problem}")
        net.decide("mpi-network", "control", problem)
    else:
        net.propose("OMPI_MCA_btl_tcp_if_include", names.pop(), reason)
