"""What each rule of the data network wants to be set, and why; who wins is decided elsewhere.

The transport must be the same on all ranks, so it is the least that every worker has. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mpiboot.addresses import IPV4, IPV6
from mpiboot.data_network import nccl, reach
from mpiboot.data_network import transport as transports
from mpiboot.data_network.records import RDMA, DataSettings, Transport, WorkerNetwork
from mpiboot.data_network.transport import Proposals
from mpiboot.model import Decision, Link, Source
from mpiboot.network.link_addresses import usable
from mpiboot.wording import first_few


def make(
    networks: Sequence[WorkerNetwork],
    settings: DataSettings,
    taken: Mapping[str, str],
    values: Mapping[str, str],
) -> Proposals:
    """Ask every rule what it wants.

    Args:
        networks: all workers with their GID choices.
        settings: what the user asked for.
        taken: names that the user has set, each with where.
        values: the values of those that are known.
    """
    made = Proposals(networks, settings, transports.plugin_of(networks, taken, values))
    transport = transports.settle(made)
    over_data, why_socket = _sockets(made, transport)
    _rdma(made, transport)
    for network in made.known:
        _socket_names(made, network, over_data.get(network.host, ()), why_socket)
        _tcp_ucx(made, network, transport, over_data.get(network.host, ()))
    _mpi(made, transport)
    return made


def _rdma(made: Proposals, transport: Transport) -> None:
    """Name each worker's own ports and GID indexes."""
    for network in made.networks:
        if transport not in (Transport.ROCE, Transport.INFINIBAND) or not network.rails:
            continue
        names = [rail.name for rail in network.rails]
        because = "this worker's own ports: " + (
            first_few(
                f"{rail.link.name} {rail.name}" if rail.link else rail.name
                for rail in network.rails
            )
        )
        host = network.host
        if network.gids.ucx:
            made.propose("UCX_NET_DEVICES", ",".join(names), "rdma-ports", because, host)
        else:
            _tcp_for_ucx(made, network, network.plain, "UCX can't be told its GID indexes")
        made.propose("NCCL_IB_HCA", nccl.exact(names), "rdma-ports", because, host)
        for name, value in network.gids.values.items():
            made.propose(name, value, "gid", network.gids.because, host)
        _pkey(made, network)


def _pkey(made: Proposals, network: WorkerNetwork) -> None:
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
            made.propose("UCX_IB_PKEY", f"{value:#x}", "rdma-ports", because, network.host)
            made.propose("NCCL_IB_PKEY", str(index), "rdma-ports", because, network.host)
    elif len(found) > 1:
        listed = ", ".join(f"{value:#06x}" for _, value in sorted(found))
        made.find(
            "data-ambiguous",
            f"{network.host}: the rails are in partitions {listed}, "
            "and NCCL and UCX take one for all",
        )


def _sockets(made: Proposals, transport: Transport) -> tuple[dict[str, tuple[Link, ...]], str]:
    """Decide whether NCCL's sockets go over the data link: by reachability, on all workers.

    Returns:
        Each worker's links for it (none: the control link), and the reason.
    """
    wanted, networks = made.settings.nccl_socket, made.known
    if wanted == "control":
        return {}, "MPIBOOT_NCCL_SOCKET=control"
    because = _why_not_data(made, transport)
    if because:
        if wanted == "data":
            made.find("data-networks", f"MPIBOOT_NCCL_SOCKET=data, but {because}")
        return {}, f"the control link: {because}"
    why = "the data link: every worker has an address there, and reaches the others"
    if transport in RDMA:
        # With RDMA this is bootstrap only, which takes a single link.
        return {one.host: one.plain[:1] for one in networks}, f"{why}; only bootstrap with RDMA"
    return {one.host: one.plain for one in networks}, why


def _why_not_data(made: Proposals, transport: Transport) -> str:
    """Say why the data link can't carry sockets; empty where it can."""
    networks = made.known
    without = [network.host for network in networks if not network.plain]
    counts = {len(network.plain) for network in networks}
    names = [link.name for network in networks for link in network.plain]
    odd = [name for name in names if not nccl.expressible(name)]
    if len(networks) < len(made.networks):
        return "not every worker's facts are known"
    if without:
        all_ = "no worker has a second link with an address"
        some = f"{first_few(without)}: no data link with an address"
        return some if names else all_
    if len(counts) > 1 and transport not in RDMA:
        return "the workers have different numbers of data links"
    if odd:
        return f"NCCL can't be told a link named {odd[0]}"
    return _unreached(networks, 1 if transport in RDMA else min(counts))


def _unreached(networks: Sequence[WorkerNetwork], positions: int) -> str:
    plain = [replace(network, data=network.plain) for network in networks]
    for position in range(positions):
        ends = reach.ends(plain, position)
        if ends is None:
            return "the data links have no IP version in common"
        problem = reach.doubled(ends) or reach.apart(ends)
        if problem:
            return problem
    return ""


def _socket_names(
    made: Proposals, network: WorkerNetwork, links: Sequence[Link], because: str
) -> None:
    """Name the links of NCCL's, Gloo's and TensorPipe's sockets."""
    chosen = list(links) or ([network.control] if network.control else [])
    names = [link.name for link in chosen if nccl.expressible(link.name)]
    if not names:
        return
    rule, host = "nccl-socket", network.host
    made.propose("NCCL_SOCKET_IFNAME", nccl.exact(names), rule, because, host)
    versions = {item.version for link in chosen for item in usable(link)}
    if versions == {IPV6}:
        made.propose("NCCL_SOCKET_FAMILY", "AF_INET6", rule, "no IPv4 address there", host)
    # These take a plain name, and one link is enough for a rendezvous.
    made.propose("GLOO_SOCKET_IFNAME", names[0], rule, because, host)
    made.propose("TP_SOCKET_IFNAME", names[0], rule, because, host)


def _tcp_ucx(
    made: Proposals, network: WorkerNetwork, transport: Transport, links: Sequence[Link]
) -> None:
    """Keep UCX on TCP links where there is a data network without RDMA."""
    if transport is Transport.TCP:
        _tcp_for_ucx(made, network, links, "no RDMA port that every worker could use")


def _tcp_for_ucx(
    made: Proposals, network: WorkerNetwork, links: Sequence[Link], because: str
) -> None:
    chosen = list(links) or ([network.control] if network.control else [])
    if chosen:
        made.propose(
            "UCX_NET_DEVICES",
            ",".join(link.name for link in chosen),
            "rdma-ports",
            f"TCP: {because}",
            network.host,
        )


def _mpi(made: Proposals, transport: Transport) -> None:
    """Move MPI's own data, not its daemons, to the data network where that is asked for."""
    if made.settings.mpi_network != "data":
        return
    rule, because = "mpi-network", "MPIBOOT_MPI_NETWORK=data"
    if transport in (Transport.ROCE, Transport.INFINIBAND):
        made.propose("OMPI_MCA_pml", "ucx", rule, f"{because}: UCX on the RDMA ports")
        return
    if transport is Transport.EFA:
        made.propose("OMPI_MCA_pml", "cm", rule, f"{because}: libfabric's EFA")
        made.propose("OMPI_MCA_mtl", "ofi", rule, f"{because}: libfabric's EFA")
        return
    problem = _why_not_data(made, transport)
    if problem:
        said = f"MPI's data stays on the control link: {problem}"
        made.find("data-networks", said)
        made.decisions.append(Decision("mpi-network", "control", Source.DETECTED, problem))
        return
    for network in made.known:
        names = ",".join(link.name for link in network.plain)
        made.propose("OMPI_MCA_btl_tcp_if_include", names, rule, because, network.host)
    if len({tuple(link.name for link in network.plain) for network in made.known}) > 1:
        # mpirun hands its own OMPI_MCA_ values to every rank, so one value must fit all.
        made.proposals = [
            one for one in made.proposals if one.name != "OMPI_MCA_btl_tcp_if_include"
        ]
        own = [
            [
                str(item.network)
                for link in network.plain
                for item in usable(link)
                if item.version == IPV4
            ]
            for network in made.known
        ]
        if not all(own):
            problem = "the data links' names differ, and Open MPI takes no IPv6 network instead"
            made.find("data-networks", f"MPI's data stays on the control link: {problem}")
            made.decisions.append(Decision("mpi-network", "control", Source.DETECTED, problem))
            return
        spans = {span for mine in own for span in mine}
        made.propose("OMPI_MCA_btl_tcp_if_include", ",".join(sorted(spans)), rule, because)
