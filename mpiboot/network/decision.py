"""The data network of a job: what is proposed for its ranks, why, and what is wrong with it. Pure.

The transport must be the same on all ranks, so it is the least that every worker has, or what
NCCL's plugin brings.
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
# A pod that has one of these brings its own transport for NCCL, with settings of its own.
_PLUGIN_NAMES: Final = ("NCCL_NET", "NCCL_NET_PLUGIN")
_WITHOUT_PLUGIN: Final = {("NCCL_NET", "ib"), ("NCCL_NET", "socket"), ("NCCL_NET_PLUGIN", "none")}
# TCPX, TCPXO and gIB come with socket links of their own as well.
_OWN_SOCKETS: Final = ("NCCL_GPUDIRECTTCPX_", "NCCL_FASTRAK_")
# HPC-X's plugin (nccl-rdma-sharp-plugins), before and after its start, reads what NCCL does but
# NCCL_IB_DISABLE (its own is NCCL_IBEXT_DISABLE).
_LIKE_NCCL: Final = ("nccl rdma plugin", "ibext")


class Plugin(NamedTuple):
    """A plugin that carries NCCL's data: the evidence, and prefixes of what is left to it.

    ``named`` where a variable names it.
    """

    evidence: str = ""
    owns: tuple[str, ...] = ()
    named: bool = False


_NO_PLUGIN: Final = Plugin()


@dataclass(slots=True)
class DataNetwork:
    """The data network as it is decided for a job.

    ``proposals`` are what ranks should get, unless the user has chosen; what becomes of them is
    ``common``, which goes to every rank, and ``per_host``, to those of one worker (every worker has
    an entry, which may be empty; no name is in both).
    ``transport`` carries the data; None where it is left alone. ``mpi`` is what carries MPI's own
    messages, by ``mpi_network``, and why. ``owned`` is what the user has set for each host's ranks;
    ``owned_by_mpi`` are names that the MPI has a value for, and ``blocked`` names where TCP does
    not pass on the data network.
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
        """Note a decision."""
        self.decisions.append(Decision(name, value, source, reason))

    def propose(self, name: str, value: str, reason: str, host: str = "") -> None:
        """Note a proposal, unless the MPI or a plugin has its own value in its place."""
        if name not in self.owned_by_mpi and not name.startswith(self.plugin.owns):
            self.proposals.append(Variable(name, value, reason, host=host))

    def find(self, check: str, message: str) -> None:
        """Note a finding on all workers together."""
        level = cluster_view.level(check, self.settings)
        self.findings.append(failed(check, message, level=level))


def mpi_network(networks: Sequence[WorkerNetwork], settings: Settings) -> tuple[MpiNetwork, str]:
    """Decide what ``auto`` means for MPI's own messages, and why.

    Beside GPUs NCCL carries the data, and MPI has its network for itself. Where no worker has one
    and all have RDMA, MPI's messages are the data, and each MPI's choice is right: Open MPI's pml
    ucx comes before ob1 where there are mlx5 devices (open-mpi/ompi#8549); set, it would end an
    Open MPI that is built without UCX.

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
    users: Mapping[str, Owned],
    *,
    others: Sequence[Variable] = (),
    given: Given = _GIVEN,
    blocked: str = "",
    asked: bool = True,
) -> DataNetwork:
    """Decide the data network of a job from what every worker has.

    Args:
        workers: the networks of the hosts that passed the gate.
        settings: the user's settings.
        users: what the user has set for all ranks. What a worker's own pod sets is in its facts.
        others: what the MPI wants of the same variables, which comes first, where its messages stay
            on the control link.
        given: the flag or variable that chose the data network, or left it out.
        blocked: where TCP does not pass between data addresses, as workers have tried.
        asked: whether hosts were queried at all.

    Returns:
        The same for the same facts, whatever the order of the mappings.
    """
    owned = {one.host: {**owned_in_pod(one.facts), **users} for one in workers}
    networks = tuple(
        replace(one, gids=nccl.choose(one.rails, owned[one.host], settings.nccl_version))
        if one.gids is NOT_CHOSEN
        else one
        for one in workers
    )
    mpi = mpi_network(networks, settings)
    found = DataNetwork(networks, settings, owned, mpi, blocked=blocked)
    if settings.data_network is DataNetworkUse.OFF:
        found.decide("data-network", "off", f"{given}=off: nothing is set", given.source)
        return found
    if not networks:
        found.transport = Transport.UNKNOWN
        reason = f"no worker was {'reached' if asked else 'asked'}: nothing is set"
        found.decide("data-network", Transport.UNKNOWN.value, reason)
        return found
    if mpi[0] is not MpiNetwork.CONTROL:
        others = ()
    found.owned_by_mpi = {proposal.name for proposal in others}
    found.plugin = _plugin_of(networks, owned.values())
    found.findings += cluster_view.findings(networks, settings, users)
    found.transport = _transport(found)
    over_data, why_socket = _sockets(found)
    _rdma(found)
    for network in found.known:
        control = (network.control,) if network.control else ()
        _on_links(found, network.host, over_data.get(network.host) or control, why_socket)
    _mpi(found)
    found.proposals += others
    found.decisions += _workers(networks)
    if settings.data_network is DataNetworkUse.REPORT:
        found.decide("data-network-use", "report", f"{given}=report: nothing is set", given.source)
    return found


def _workers(networks: Sequence[WorkerNetwork]) -> list[Decision]:
    """Gather the workers' own decisions: one line for each that is the same."""
    hosts = grouped((decision, one.host) for one in networks for decision in one.decisions)
    return [
        decision
        if len(names) == len(networks)
        else replace(decision, reason=f"{first_few(names)}: {decision.reason}")
        for decision, names in hosts.items()
    ]


def _plugin_of(networks: Sequence[WorkerNetwork], pods: Iterable[Mapping[str, Owned]]) -> Plugin:
    """Find the plugin that carries NCCL's data in place of NCCL's own transports."""
    named = {(name, (own.value or "").lower()) for pod in pods for name, own in pod.items()}
    plugins = [(one.host, one.facts.fabric.plugin) for one in networks if one.facts]
    for name, value in sorted(named):
        if name.startswith(_OWN_SOCKETS) or (name, value) == ("NCCL_NET", "gib"):
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


def _transport(found: DataNetwork) -> Transport:
    """Decide what carries the data: one transport on all workers, as far as they are known."""
    by_state = grouped((one.rdma, one) for one in found.networks)
    known, none = (by_state.get(state, []) for state in (RdmaState.KNOWN, RdmaState.NONE))
    unknown = _unknown(by_state.get(RdmaState.UNKNOWN, []))
    kinds = {one.transport for one in known}
    kind = Transport.TCP if any(one.plain for one in found.known) else Transport.NONE
    # RoCE's GIDs are the links' addresses.
    shared = cluster_view.shared_address(known) if kinds == {Transport.ROCE} else ""
    if len(kinds) == 1 and not (none or shared):
        (kind,) = kinds
        reason = f"every worker has usable {kind.value} ports"
        if unknown:
            reason = f"usable {kind.value} ports on {_hosts(known)}{unknown}"
        _require(found, kind)
    elif kinds:
        reason = shared or "the workers' RDMA is of different kinds, which can't talk to each other"
        if none:
            reason = f"{_hosts(none)}: no usable RDMA port, and all ranks need one transport"
        elif not shared:
            found.find("rdma-differs", f"the data goes over TCP: {reason}")
        found.propose("NCCL_NET", "Socket", reason)
    elif unknown:
        kind, reason = Transport.UNKNOWN, unknown.removeprefix("; ")
    else:
        reason = _without_rdma(found, none)
    if found.plugin.owns:
        left = ", ".join(f"{prefix}*" for prefix in found.plugin.owns)
        reason += f"; {found.plugin.evidence}, so {left} is left as it is"
    found.decide("data-network", kind.value, reason)
    return kind


def _require(found: DataNetwork, kind: Transport) -> None:
    """Report what EFA lacks; keep NCCL from TCP where RDMA is required."""
    if kind is Transport.EFA:
        for message in _efa_lacks(found):
            found.find("efa-library", message)
    elif found.settings.data_network is DataNetworkUse.REQUIRE:
        why = f"{kind.value} is required: without it NCCL fails instead of using TCP"
        found.propose("NCCL_NET", "IB", why)


def _hosts(networks: Iterable[WorkerNetwork]) -> str:
    return first_few(network.host for network in networks)


def _unknown(networks: Iterable[WorkerNetwork]) -> str:
    """Name the workers whose RDMA could not be seen, and why; empty where there are none."""
    hosts = grouped(
        (one.unseen if one.facts else f"a worker that {one.no_facts.value}", one.host)
        for one in networks
    )
    return "".join(f"; not known of {first_few(names)}: {why}" for why, names in hosts.items())


def _without_rdma(found: DataNetwork, networks: Sequence[WorkerNetwork]) -> str:
    """Keep NCCL from other pods' ports; name the hosts with devices that no pod was given."""
    if ports := [name for one in networks for name in one.foreign]:
        why = f"NCCL would use {first_few(ports)}, whose addresses are other pods' or a node's"
        found.propose("NCCL_NET", "Socket", why)
    hosts = [x.host for x in networks if x.facts and x.facts.fabric.devices and not x.rails]
    what = "only devices of the node are seen, and none belongs to the pod"
    return "no worker has a usable RDMA port" + (f"; {first_few(hosts)}: {what}" if hosts else "")


def _efa_lacks(found: DataNetwork) -> list[str]:
    """Name the workers whose image lacks what carries data over EFA; the user's plugin may."""
    brought = ("libnccl",) if found.plugin.named else ()
    hosts = grouped(
        (tuple(x for x in one.facts.fabric.missing if not x.startswith(brought)), one.host)
        for one in found.networks
        if one.facts
    )
    return [
        f"{first_few(names)}: EFA devices, but in the image no {' and no '.join(missing)}"
        for missing, names in hosts.items()
        if missing
    ]


def _rdma(found: DataNetwork) -> None:
    """Name each worker's own ports and GID indexes."""
    if found.transport not in (Transport.ROCE, Transport.INFINIBAND):
        return
    for network in [one for one in found.networks if one.rdma is RdmaState.KNOWN]:
        host, choice = network.host, network.gids
        used = (x for x in network.rails if x.name in choice.used)
        shown = first_few(f"{x.link.name} {x.name}" if x.link else x.name for x in used)
        reason = f"this worker's own ports: {shown}"
        found.propose("UCX_NET_DEVICES", ",".join(choice.used), reason, host)
        if not network.only_own_ports:
            found.propose("NCCL_IB_HCA", nccl.exact(choice.used), reason, host)
        for name, value in choice.values.items():
            found.propose(name, value, choice.reason, host)
        _pkey(found, network)


def _pkey(found: DataNetwork, network: WorkerNetwork) -> None:
    """Name the partition of an IPoIB link: for NCCL by index, for UCX by value."""
    ports = [rail for rail in network.rails if rail.transport is Transport.INFINIBAND]
    keys = (rail.link.pkey for rail in ports if rail.link)
    # The top bit marks a full member; it is the same partition.
    values = {key & 0x7FFF for key in keys if key is not None}
    # A port without a link is used in the same partition.
    indexes = {
        next((place for place, key in enumerate(rail.port.pkeys) if key & 0x7FFF == value), 0)
        for rail in ports
        for value in values
    }
    if len(values) == len(indexes) == 1:
        (value,), (index,) = values, indexes
        if index:
            reason = f"the data link is in partition {value:#06x}, entry {index}"
            found.propose("UCX_IB_PKEY", f"{value:#x}", reason, network.host)
            found.propose("NCCL_IB_PKEY", str(index), reason, network.host)
    elif values:
        listed = ", ".join(f"{value:#06x}" for value in sorted(values))
        message = f"{network.host}: the rails are in partitions {listed}, of which NCCL can use one"
        found.find("data-ambiguous", message)


def _sockets(found: DataNetwork) -> tuple[dict[str, tuple[Link, ...]], str]:
    """Decide whether NCCL's sockets go over the data link: by reachability, on all workers.

    Returns:
        Each worker's links for it (none: the control link), and the reason.
    """
    wanted, networks = found.settings.nccl_socket, found.known
    if wanted is NcclSocket.CONTROL:
        return {}, "MPIBOOT_NCCL_SOCKET=control"
    reason = _why_not_data(found)
    if reason:
        if wanted is NcclSocket.DATA:
            found.find("data-networks", f"MPIBOOT_NCCL_SOCKET=data, but {reason}")
        elif reason == found.blocked:
            message = f"TCP does not pass on the data network: {reason}"
            found.find("data-sockets", f"{message}, so mpiboot puts no sockets on it")
        return {}, f"the control link: {reason}"
    why = "the data link: every worker has an address there, and reaches the others"
    if found.transport in RDMA:
        # With RDMA this is bootstrap only, which takes a single link.
        return {one.host: one.plain[:1] for one in networks}, f"{why}; only bootstrap with RDMA"
    return {one.host: one.plain for one in networks}, why


def _why_not_data(found: DataNetwork) -> str:
    """Explain why the data link can't carry sockets; empty where it can."""
    plain = {network.host: network.plain for network in found.known}
    without = [host for host, links in plain.items() if not links]
    if len(plain) < len(found.networks):
        return "not every worker's facts are known"
    if without:
        some = f"{first_few(without)}: no data link with an address"
        none = "no worker has a second link with an address"
        return none if len(without) == len(plain) else some
    if len(set(map(len, plain.values()))) > 1 and found.transport not in RDMA:
        return "the workers have different numbers of data links"
    return cluster_view.shared_address(found.known) or found.blocked


def _on_links(found: DataNetwork, host: str, links: Sequence[Link], reason: str) -> None:
    """Name the links of NCCL's, Gloo's and TensorPipe's sockets; of UCX where the data's is TCP."""
    names = [link.name for link in links]
    if not names:
        return
    found.propose("NCCL_SOCKET_IFNAME", nccl.exact(names), reason, host)
    # These take a plain name, and one link is enough for a rendezvous.
    found.propose("GLOO_SOCKET_IFNAME", names[0], reason, host)
    found.propose("TP_SOCKET_IFNAME", names[0], reason, host)
    if found.transport is Transport.TCP:
        reason = "TCP: no RDMA port that every worker could use"
        found.propose("UCX_NET_DEVICES", ",".join(names), reason, host)


def _mpi(found: DataNetwork) -> None:
    """Move MPI's own data, not its daemons, to the data network where the setting says so."""
    if found.settings.mpi_network is not MpiNetwork.DATA:
        return
    reason = "MPIBOOT_MPI_NETWORK=data"
    if found.transport is Transport.EFA:
        for name, value in (("OMPI_MCA_pml", "cm"), ("OMPI_MCA_mtl", "ofi")):
            found.propose(name, value, f"{reason}: libfabric's EFA")
        return
    if found.transport in RDMA:
        found.propose("OMPI_MCA_pml", "ucx", f"{reason}: UCX on the RDMA ports")
        return
    problem = _why_not_data(found)
    names = {",".join(link.name for link in network.plain) for network in found.known}
    if not problem and len(names) > 1:
        problem = "the data links' names differ, and mpirun gives every rank one list of names"
    if problem:
        found.find("data-networks", f"MPI's data stays on the control link: {problem}")
        found.decide("mpi-network", "control", problem)
    else:
        found.propose("OMPI_MCA_btl_tcp_if_include", names.pop(), reason)
