"""What each rule of the data network wants to be set, and why; who wins is decided elsewhere.

The transport must be the same on all ranks, so it is the least that every worker has. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from mpiboot.core.addresses import IPV6
from mpiboot.core.choices import MpiNetwork, NcclSocket
from mpiboot.core.model import Decision, Link, Source
from mpiboot.core.settings import Settings
from mpiboot.core.wording import first_few
from mpiboot.network import nccl, one_value, reach
from mpiboot.network import transport as transports
from mpiboot.network.link_addresses import usable
from mpiboot.network.records import RDMA, Transport, WorkerNetwork
from mpiboot.network.transport import Proposals


def make(
    networks: Sequence[WorkerNetwork],
    settings: Settings,
    taken: Mapping[str, str],
    values: Mapping[str, str],
    *,
    theirs: Collection[str] = (),
    blocked: str = "",
) -> Proposals:
    """Ask every rule what it wants.

    Args:
        networks: all workers with their GID choices.
        settings: what the user asked for.
        taken: names that the user has set, each with where.
        values: the values of those that are known.
        theirs: names that MPI wants for itself; without RDMA UCX carries nothing but its messages.
        blocked: where TCP does not pass between data addresses.
    """
    plugin = transports.plugin_of(networks, taken, values)
    proposals = Proposals(networks, settings, plugin, blocked)
    transport = proposals.transport = transports.settle(proposals)
    over_data, why_socket = _sockets(proposals, transport)
    _rdma(proposals, transport)
    for network in proposals.known:
        _socket_names(proposals, network, over_data.get(network.host, ()), why_socket)
        if "UCX_NET_DEVICES" not in theirs:
            _tcp_ucx(proposals, network, transport, over_data.get(network.host, ()))
    _mpi(proposals, transport)
    return proposals


def _rdma(proposals: Proposals, transport: Transport) -> None:
    """Name each worker's own ports and GID indexes."""
    for network in proposals.networks:
        if transport not in (Transport.ROCE, Transport.INFINIBAND) or not network.rails:
            continue
        host, choice = network.host, network.gids
        if choice.ucx:
            because = _ports(network, choice.ucx)
            proposals.propose("UCX_NET_DEVICES", ",".join(choice.ucx), "rdma-ports", because, host)
        because = _ports(network, choice.nccl)
        proposals.propose("NCCL_IB_HCA", nccl.exact(choice.nccl), "rdma-ports", because, host)
        for name, value in network.gids.values.items():
            proposals.propose(name, value, "gid", network.gids.because, host)
        _pkey(proposals, network)


def _ports(network: WorkerNetwork, names: Sequence[str]) -> str:
    used = [rail for rail in network.rails if rail.name in names]
    return "this worker's own ports: " + (
        first_few(f"{rail.link.name} {rail.name}" if rail.link else rail.name for rail in used)
    )


def _pkey(proposals: Proposals, network: WorkerNetwork) -> None:
    """Name the partition of an IPoIB link: for NCCL by index, for UCX by value."""
    found = set()
    for rail in network.rails:
        if (
            rail.transport is not Transport.INFINIBAND
            or rail.link is None
            or rail.link.pkey is None
        ):
            continue
        # The top bit tells full from limited members; it is the same partition.
        value = rail.link.pkey & 0x7FFF
        indexes = [place for place, key in enumerate(rail.port.pkeys) if key & 0x7FFF == value]
        found.add((indexes[0] if indexes else 0, value))
    if len(found) == 1:
        ((index, value),) = found
        if index:
            because = f"the data link is in partition {value:#06x}, entry {index}"
            proposals.propose("UCX_IB_PKEY", f"{value:#x}", "rdma-ports", because, network.host)
            proposals.propose("NCCL_IB_PKEY", str(index), "rdma-ports", because, network.host)
    elif len(found) > 1:
        listed = ", ".join(f"{value:#06x}" for _, value in sorted(found))
        proposals.find(
            "data-ambiguous",
            f"{network.host}: the rails are in partitions {listed}, "
            "and NCCL and UCX can use only one",
        )


def _sockets(proposals: Proposals, transport: Transport) -> tuple[dict[str, tuple[Link, ...]], str]:
    """Decide whether NCCL's sockets go over the data link: by reachability, on all workers.

    Returns:
        Each worker's links for it (none: the control link), and the reason.
    """
    wanted, networks = proposals.settings.nccl_socket, proposals.known
    if wanted is NcclSocket.CONTROL:
        return {}, "MPIBOOT_NCCL_SOCKET=control"
    because = _why_not_data(proposals, transport)
    if because:
        if wanted is NcclSocket.DATA:
            proposals.find("data-networks", f"MPIBOOT_NCCL_SOCKET=data, but {because}")
        elif because == proposals.blocked:
            said = f"TCP does not pass on the data network: {because}"
            proposals.find("data-sockets", f"{said}, so mpiboot puts no sockets on it")
        return {}, f"the control link: {because}"
    why = "the data link: every worker has an address there, and reaches the others"
    if transport in RDMA:
        # With RDMA this is bootstrap only, which takes a single link.
        return {one.host: one.plain[:1] for one in networks}, f"{why}; only bootstrap with RDMA"
    return {one.host: one.plain for one in networks}, why


def _why_not_data(proposals: Proposals, transport: Transport) -> str:
    """Say why the data link can't carry sockets; empty where it can."""
    networks = proposals.known
    plain = [network.plain for network in networks]
    without = [network.host for network, links in zip(networks, plain, strict=True) if not links]
    counts = set(map(len, plain))
    names = dict.fromkeys(link.name for links in plain for link in links)
    odd = [name for name in names if not nccl.expressible(name)]
    if len(networks) < len(proposals.networks):
        return "not every worker's facts are known"
    if without:
        all_ = "no worker has a second link with an address"
        some = f"{first_few(without)}: no data link with an address"
        return some if names else all_
    if len(counts) > 1 and transport not in RDMA:
        return "the workers have different numbers of data links"
    if odd:
        return f"NCCL can't be told a link named {odd[0]}"
    return _unreached(networks, 1 if transport in RDMA else min(counts)) or proposals.blocked


def _unreached(networks: Sequence[WorkerNetwork], positions: int) -> str:
    plain = [replace(network, data=network.plain) for network in networks]
    for position in range(positions):
        ends = reach.endpoints(plain, position)
        if ends is None:
            return "the data links have no IP version in common"
        problem = reach.shared_address(ends) or reach.unreachable(ends)
        if problem:
            return problem
    return ""


def _socket_names(
    proposals: Proposals, network: WorkerNetwork, links: Sequence[Link], because: str
) -> None:
    """Name the links of NCCL's, Gloo's and TensorPipe's sockets."""
    chosen = list(links) or ([network.control] if network.control else [])
    names = [link.name for link in chosen if nccl.expressible(link.name)]
    if not names:
        return
    rule, host = "nccl-socket", network.host
    proposals.propose("NCCL_SOCKET_IFNAME", nccl.exact(names), rule, because, host)
    versions = {item.version for link in chosen for item in usable(link)}
    if versions == {IPV6}:
        proposals.propose("NCCL_SOCKET_FAMILY", "AF_INET6", rule, "no IPv4 address there", host)
    # These take a plain name, and one link is enough for a rendezvous.
    proposals.propose("GLOO_SOCKET_IFNAME", names[0], rule, because, host)
    proposals.propose("TP_SOCKET_IFNAME", names[0], rule, because, host)


def _tcp_ucx(
    proposals: Proposals, network: WorkerNetwork, transport: Transport, links: Sequence[Link]
) -> None:
    """Keep UCX on TCP links where there is a data network, and no RDMA port that it can use."""
    chosen = list(links) or ([network.control] if network.control else [])
    unable = transport is Transport.ROCE and not network.gids.ucx
    if chosen and (unable or transport is Transport.TCP):
        names = ",".join(link.name for link in chosen)
        because = "TCP: no RDMA port that every worker could use"
        proposals.propose("UCX_NET_DEVICES", names, "rdma-ports", because, network.host)


def _mpi(proposals: Proposals, transport: Transport) -> None:
    """Move MPI's own data, not its daemons, to the data network where that is asked for."""
    if proposals.settings.mpi_network is not MpiNetwork.DATA:
        return
    rule, because = "mpi-network", "MPIBOOT_MPI_NETWORK=data"
    if transport in (Transport.ROCE, Transport.INFINIBAND):
        proposals.propose("OMPI_MCA_pml", "ucx", rule, f"{because}: UCX on the RDMA ports")
        return
    if transport is Transport.EFA:
        proposals.propose("OMPI_MCA_pml", "cm", rule, f"{because}: libfabric's EFA")
        proposals.propose("OMPI_MCA_mtl", "ofi", rule, f"{because}: libfabric's EFA")
        return
    problem = _why_not_data(proposals, transport)
    if problem:
        said = f"MPI's data stays on the control link: {problem}"
        proposals.find("data-networks", said)
        proposals.decisions.append(Decision("mpi-network", "control", Source.DETECTED, problem))
        return
    for network in proposals.known:
        names = ",".join(link.name for link in network.plain)
        proposals.propose("OMPI_MCA_btl_tcp_if_include", names, rule, because, network.host)
    if len({tuple(link.name for link in network.plain) for network in proposals.known}) > 1:
        # mpirun hands its own OMPI_MCA_ values to every rank, so one value must fit all.
        proposals.proposals = [
            one for one in proposals.proposals if one.name != "OMPI_MCA_btl_tcp_if_include"
        ]
        value, problem = one_value.networks(proposals.known)
        if problem:
            proposals.find("data-networks", f"MPI's data stays on the control link: {problem}")
            proposals.decisions.append(Decision("mpi-network", "control", Source.DETECTED, problem))
            return
        proposals.propose("OMPI_MCA_btl_tcp_if_include", value, rule, because)
