"""One worker's networks: its control link, its own RDMA ports by rules in order, its data links.

The user's settings come first, then what the kernel and the platform show; a name such as eth0 or
net1 only puts candidates in order. A device's name is no evidence, nor is /dev/infiniband alone,
nor an entry's link name alone (another pod's link may have the same name). A port that isn't ready
is reported, and no other one is taken in its place. The control link of all pods is here, too;
what else follows for several workers is decided elsewhere. Pure.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from mpiboot.core.addresses import bare, inside, network, parse, smallest_network
from mpiboot.core.facts import (
    Fabric,
    Gid,
    GidType,
    Link,
    LinkLayer,
    PodFacts,
    PortState,
    RdmaPort,
    Worker,
)
from mpiboot.core.model import DataNetworkUse, Decision, MpiNetwork, NcclSocket, Source
from mpiboot.core.settings import Given, Settings
from mpiboot.core.wording import counted, first_few, took
from mpiboot.network import nccl
from mpiboot.network.records import (
    RDMA,
    NetworkBuilder,
    Problem,
    Rail,
    Transport,
    WorkerNetwork,
    carries_tcp,
    has_carrier,
    natural_order,
    port_name,
    ports,
    routable,
    usable,
)

_IPOIB_BYTES: Final = 20


def _by_kernel(link: Link, port: RdmaPort) -> bool:
    # The kernel gives it only for a link of this network namespace: the one exact answer.
    return port.netdev == link.name


def _by_hardware(link: Link, port: RdmaPort) -> bool:
    # IPoIB: 4 bytes of flags and queue pair, then the port's GID; also for P_Key children.
    try:
        raw = bytes.fromhex(link.hardware.replace(":", ""))
    except ValueError:
        return False
    if len(raw) != _IPOIB_BYTES:
        return False
    own = ipaddress.IPv6Address(raw[4:])
    return any(nccl.address(gid) == own for gid in port.gids)


def _by_gid(link: Link, port: RdmaPort) -> bool:
    # Macvlans and the like, and VLANs: the table has the addresses of all links above the port's.
    own = {item.ip for item in usable(link)}
    return any(
        gid.netdev == link.name and gid.kind is GidType.ROCE_V2 and nccl.address(gid) in own
        for gid in port.gids
    )


_Rule: TypeAlias = "Callable[[Link, RdmaPort], bool]"
_RULES: Final[tuple[tuple[_Rule, str], ...]] = (
    (_by_kernel, "the kernel says that this port drives it"),
    (_by_hardware, "its hardware address holds this port's GID"),
    (_by_gid, "its address is in this port's GID table under its name"),
)


def behind(link: Link, fabric: Fabric) -> tuple[Rail, ...]:
    """Find the port behind a link by the first rule that answers.

    Returns:
        The ports; none: a link without RDMA; several: they can't be told apart. Of several, those
        whose device opens.
    """
    for rule, reason in _RULES:
        found = [item for item in ports(fabric.devices) if rule(link, item[1])]
        if len(found) > 1:
            found = [item for item in found if item[0].opens] or found
        if found:
            return tuple(Rail(device, port, link, reason) for device, port in found)
    return ()


_SETTING: Final = "MPIBOOT_RDMA_DEVICE"
_SETTINGS: Final = "set MPIBOOT_DATA_IFNAME or MPIBOOT_RDMA_DEVICE"


def behind_links(builder: NetworkBuilder, candidates: Sequence[Link]) -> tuple[Rail, ...]:
    """Find the ports behind the candidates; one rail a port."""
    wanted = builder.settings.rdma_device
    found: dict[str, Rail] = {}
    for link in candidates:
        mine = behind(link, builder.facts.fabric)
        if wanted:
            mine = tuple(
                rail._replace(source=Source.ENVIRONMENT, reason=f"{_SETTING}; {rail.reason}")
                for rail in mine
                if _named(rail, wanted)
            )
        if len(mine) > 1:
            names = ", ".join(rail.name for rail in mine)
            message = f"{link.name} could belong to {names}: mpiboot uses none of them"
            builder.problems.append(Problem("data-ambiguous", message, _SETTINGS))
            continue
        for rail in mine:
            other = found.get(rail.name)
            if other is None:
                found[rail.name] = rail
            elif _in_use(other) == _in_use(rail):
                name = other.link.name if other.link else "-"
                both = f"{name} and {link.name} are both on {rail.name}: mpiboot uses the first"
                hint = "set MPIBOOT_DATA_IFNAME"
                builder.problems.append(Problem("data-ambiguous", both, hint))
            elif _in_use(rail):
                found[rail.name] = rail
    if wanted:
        _named_without_link(builder, found, wanted)
    return tuple(found.values())


def _in_use(rail: Rail) -> bool:
    """Whether a link has what its port needs of it; an IPoIB parent often has no address."""
    if rail.transport is Transport.INFINIBAND:
        return rail.link is not None and bool(usable(rail.link))
    return bool(own_gids(rail))


def own_gids(rail: Rail) -> list[Gid]:
    """List the entries that hold an address of the rail's link."""
    own = {item.ip for item in usable(rail.link)} if rail.link else set()
    return [gid for gid in rail.port.gids if nccl.address(gid) in own]


def _named(rail: Rail, words: Sequence[str]) -> bool:
    return rail.device.name in words or rail.name in words


def _named_without_link(
    builder: NetworkBuilder, found: dict[str, Rail], words: Sequence[str]
) -> None:
    """Take the user's own devices although no link of this pod is theirs."""
    every = [
        Rail(device, port, None, _SETTING, Source.ENVIRONMENT)
        for device in builder.facts.fabric.devices
        for port in device.ports
    ]
    missing = [word for word in words if not any(_named(rail, (word,)) for rail in every)]
    if missing:
        none = len(missing) == len(words)
        message = f"{_SETTING}: no device {', '.join(missing)}"
        builder.problems.append(Problem("rdma-device", message, always=none))
    for rail in every:
        if _named(rail, words):
            found.setdefault(rail.name, rail)


def without_link(builder: NetworkBuilder) -> tuple[Rail, ...]:
    """Find ports that need no link: InfiniBand's, then EFA; RoCE without a link has no address."""
    fabric = builder.facts.fabric
    usable = [
        Rail(device, port, None, "InfiniBand needs no link, the device node opens")
        for device, port in ports(fabric.devices)
        if port.link_layer is LinkLayer.INFINIBAND and device.opens
    ]
    # A port in INIT is waited for only where no other one is there.
    usable = [rail for rail in usable if rail.port.state is PortState.ACTIVE] or usable
    named = [rail for rail in usable if rail.device.pci in fabric.functions]
    if usable:
        return tuple(named or usable)
    return tuple(
        Rail(device, port, None, "EFA: it has no link, and its device node opens")
        for device in fabric.devices
        if device.efa and device.opens
        for port in device.ports
    )


def usable_on_node(found: Iterable[Rail]) -> tuple[Rail, ...]:
    """Keep what can be used of a node's ports: active, openable, RoCE with an address.

    Nothing shows which of them are meant for this pod.
    """
    return tuple(
        rail
        for rail in found
        if rail.ready
        and (rail.transport is Transport.INFINIBAND or (rail.link and usable(rail.link)))
    )


def with_linkless(builder: NetworkBuilder, found: tuple[Rail, ...]) -> tuple[Rail, ...]:
    """Add the ports that need no link: InfiniBand's to others of its kind, any where none is."""
    kinds = {rail.transport for rail in found}
    if found and Transport.INFINIBAND not in kinds:
        return found
    names = {rail.name for rail in found}
    more = without_link(builder)
    return (*found, *(rail for rail in more if rail.name not in names))


def with_control(builder: NetworkBuilder, found: tuple[Rail, ...]) -> tuple[Rail, ...]:
    """Add the control link's own port, as NCCL takes it too: a bond, or a VF as ``eth0``.

    Not beside faster ports, which would wait for it.
    """
    own = behind(builder.control, builder.facts.fabric) if builder.control else ()
    if len(own) != 1 or not own[0].ready:
        return found
    (mine,) = own
    beside = all(
        rail.transport is mine.transport
        and rail.port.rate <= mine.port.rate
        and rail.name != mine.name
        for rail in found
    )
    return (*found, mine) if beside else found


def foreign(fabric: Fabric, own: Iterable[Rail]) -> tuple[str, ...]:
    """List active RoCE ports whose entries all hold other pods' or the node's addresses."""
    mine = {rail.name for rail in own}
    return tuple(
        name
        for device, port in ports(fabric.devices)
        if port.link_layer is LinkLayer.ETHERNET
        and port.state is PortState.ACTIVE
        and device.usable
        and port.gids
        and (name := port_name(device, port)) not in mine
    )


def of_one_transport(builder: NetworkBuilder, found: tuple[Rail, ...]) -> tuple[Rail, ...]:
    """Keep one transport: NCCL can't merge two, and peers of two kinds don't connect."""
    transports = {rail.transport for rail in found}
    best = found[0].transport if found else Transport.NONE
    if Transport.INFINIBAND in transports:
        best = Transport.INFINIBAND
    kept = tuple(rail for rail in found if rail.transport is best)
    left = ", ".join(rail.name for rail in found if rail.transport is not best)
    for rail in kept:
        reason = f"{rail.reason}; of another kind, so left out: {left}" if left else rail.reason
        if rail.link and not left:
            reason = f"{rail.link.name}: {reason}"
        builder.decisions.append(Decision("rdma-port", rail.name, rail.source, reason))
    return kept


# Kinds that carry a pod's traffic to other pods; not bridges, tunnels, dummies and the like.
_CARRIERS: Final = frozenset(
    {"ether", "ipoib", "macvlan", "ipvlan", "vlan", "veth", "bond", "team", "netkit"}
)
_POD_KINDS: Final = frozenset({"veth", "macvlan", "ipvlan", "netkit"})
_NODE_KINDS: Final = frozenset({"bridge", "vxlan", "geneve", "openvswitch"})
# Subnet managers and IPAM need seconds; a port that is INIT after a minute will hardly come.
_MAX_WAIT_S: Final = 60.0


def patience(settings: Settings) -> float:
    """Give the seconds for which a data network that is not ready yet may hold the start."""
    required = settings.data_network is DataNetworkUse.REQUIRE
    return settings.timeout if required else min(_MAX_WAIT_S, settings.timeout)


def not_ready(of: str, what: Iterable[str], after: float) -> str:
    """Report that the start no longer waits for a data network."""
    return (
        f"the data network{of} is not ready after {took(after)}: {first_few(what)}; the start "
        "goes on without it (MPIBOOT_DATA_NETWORK=require waits until the deadline)"
    )


def socket_addresses(worker: WorkerNetwork, settings: Settings) -> tuple[str, ...]:
    """List a worker's addresses on the data network that sockets may use, by its links."""
    unused = (
        settings.nccl_socket is NcclSocket.CONTROL and settings.mpi_network is not MpiNetwork.DATA
    )
    if unused or settings.data_network is DataNetworkUse.OFF:
        return ()
    # With RDMA sockets are for the bootstrap only, which takes a single link.
    links = worker.plain[:1] if worker.transport in RDMA else worker.plain
    return tuple(str(min(usable(link), key=lambda item: item.version).ip) for link in links)


def choose(worker: Worker, settings: Settings) -> WorkerNetwork:
    """Decide one worker's networks from its facts.

    Returns:
        The links, ports, reasons and problems; transport ``unknown`` for a worker without facts.
    """
    host, facts = worker.host, worker.facts
    if facts is None:
        return WorkerNetwork(
            host.name, None, host.slots, None, Transport.UNKNOWN, no_facts=worker.no_facts
        )
    link = _control(worker, facts, settings)
    builder = NetworkBuilder(facts, settings, link, _host_network(facts, link), [], [])
    candidates = _candidates(builder)
    chosen = of_one_transport(builder, _rails(builder, candidates))
    data = _data(builder, candidates, chosen)
    _dead(builder, candidates, chosen)
    if chosen:
        transport = chosen[0].transport
    else:
        transport = Transport.TCP if any(map(carries_tcp, data)) else Transport.NONE
        if not data:
            reason = "no second link that TCP or RDMA could use"
            builder.decisions.append(Decision("data-link", "", Source.DETECTED, reason))
    pending = (
        () if settings.data_network is DataNetworkUse.OFF else _pending(builder, candidates, chosen)
    )
    found = WorkerNetwork(host.name, facts, host.slots, link, transport, data, chosen)
    return replace(
        found,
        host_network=builder.host_network,
        decisions=tuple(builder.decisions),
        problems=tuple(builder.problems),
        pending=pending,
        unseen=_unseen(facts.fabric),
        foreign=foreign(facts.fabric, chosen),
    )


def _rails(builder: NetworkBuilder, candidates: Sequence[Link]) -> tuple[Rail, ...]:
    """List the ports that are the pod's own: the user's, else all that NCCL does well to use."""
    settings = builder.settings
    if settings.rdma_device:
        control = () if builder.control is None else (builder.control,)
        return behind_links(builder, (*candidates, *control))
    found = behind_links(builder, candidates)
    if settings.data_ifname:
        return found or without_link(builder)
    if builder.host_network:
        found = usable_on_node(found)
    found = with_linkless(builder, found)
    return with_control(builder, found)


def _unseen(fabric: Fabric) -> str:
    """Name what could not be seen of a pod's RDMA, and what would let it be seen."""
    if fabric.refused:
        return (
            f"the kernel did not list its RDMA devices ({fabric.refused}); "
            "let the seccomp profile allow NETLINK_RDMA sockets"
        )
    # A port's table holds at least its link-local entry.
    blank = [
        port_name(device, port)
        for device, port in ports(fabric.devices)
        if port.link_layer is LinkLayer.ETHERNET and device.opens and not port.gids
    ]
    if blank:
        return f"the GID table of {first_few(blank)} could not be read; let the pod read its /sys"
    return ""


def _control(worker: Worker, facts: PodFacts, settings: Settings) -> Link | None:
    """Find the control link: the user's, else by address; never by name."""
    return (
        next((link for link in facts.links if link.name == settings.control_ifname), None)
        or link_of(worker.address, facts.links)
        or link_of(facts.control_address, facts.links)
    )


def _host_network(facts: PodFacts, link: Link | None) -> bool:
    """Whether the pod shares the node's network: other pods' ends are among its links."""
    if link is None or link.kind in _POD_KINDS:
        return False
    ends = sum(item.kind == "veth" for item in facts.links)
    return ends > 1 or any(item.kind in _NODE_KINDS for item in facts.links)


def _candidates(builder: NetworkBuilder) -> tuple[Link, ...]:
    """List the links that may be data links: the user's in their order, else all by name."""
    wanted = builder.settings.data_ifname
    links = {link.name: link for link in builder.facts.links}
    if wanted:
        missing = [name for name in wanted if name not in links]
        if missing:
            none = len(missing) == len(wanted)
            wrong = f"MPIBOOT_DATA_IFNAME: no link {', '.join(missing)}"
            builder.problems.append(Problem("data-link", wrong, always=none))
        return tuple(links[name] for name in dict.fromkeys(wanted) if name in links)
    barred = {"veth", "netkit"} if builder.host_network else set()
    found = [
        link
        for link in builder.facts.links
        if link is not builder.control and link.kind in _CARRIERS - barred
    ]
    return tuple(sorted(found, key=lambda link: natural_order(link.name)))


def _data(
    builder: NetworkBuilder, candidates: Sequence[Link], chosen: Sequence[Rail]
) -> tuple[Link, ...]:
    """Choose the data links: the rails' own, else the links that TCP can use."""
    wanted = builder.settings.data_ifname
    source, reason = Source.ENVIRONMENT, "MPIBOOT_DATA_IFNAME"
    above = [rail.link for rail in chosen if rail.link is not None]
    if above:
        links = tuple(link for link in candidates if link in above)
        left = [link.name for link in candidates if link not in above]
        if not wanted:
            source, reason = Source.DETECTED, "the RDMA ports' own links"
            reason += f"; not used: {', '.join(left)}" if left else ""
    elif chosen or (builder.host_network and not wanted):
        return ()  # on the node's network, a link without RDMA may be anybody's
    elif wanted:
        links = tuple(candidates)
    else:
        source, reason = Source.DETECTED, "a second link with an address and without RDMA: TCP"
        links = _tcp_links(builder, candidates)
    if links:
        names = ",".join(link.name for link in links)
        builder.decisions.append(Decision("data-link", names, source, reason))
    return links


def _tcp_links(builder: NetworkBuilder, candidates: Sequence[Link]) -> tuple[Link, ...]:
    """Choose links for TCP: all that have an address."""
    reachable = tuple(filter(carries_tcp, candidates))
    if len(reachable) > 1:
        names = ", ".join(link.name for link in reachable)
        message = f"{names}: nothing tells which of these links is the data network"
        hint = "set MPIBOOT_DATA_IFNAME"
        builder.problems.append(Problem("data-ambiguous", f"{message}; mpiboot uses all", hint))
    return reachable


def _dead(builder: NetworkBuilder, candidates: Sequence[Link], chosen: Sequence[Rail]) -> None:
    """Report links that were given an address and have no carrier; rails are reported by port."""
    if builder.host_network and not builder.settings.data_ifname:
        return  # a node has links that nobody plugged in
    above = [rail.link for rail in chosen]
    for link in candidates:
        if link not in above and usable(link) and not has_carrier(link):
            why = "has no carrier" if link.up else "is down"
            message = f"link {link.name} has an address, but {why}"
            builder.problems.append(Problem("data-carrier", message))
        for address in routable(link.duplicate):
            message = f"another host of {link.name}'s network has its address {address}"
            hint = "check the network's IPAM: one address, once"
            builder.problems.append(Problem("data-networks", message, hint))


def _pending(
    builder: NetworkBuilder, candidates: Sequence[Link], chosen: Sequence[Rail]
) -> tuple[str, ...]:
    """List what may still come: InfiniBand VFs stay INIT for a while, IPAM takes seconds."""
    ports = (
        f"port {rail.name} is {rail.port.state.value}, not yet ACTIVE"
        for rail in chosen
        if rail.port.state in (PortState.INIT, PortState.ARMED)
    )
    addresses = (_pending_address(builder, one, chosen) for one in candidates if not usable(one))
    entries = (
        f"port {rail.name} has no RoCE v2 entry for {rail.link.name} yet"
        for rail in chosen
        if rail.link and rail.transport is Transport.ROCE and usable(rail.link)
        if not any(gid.kind is GidType.ROCE_V2 for gid in own_gids(rail))
    )
    return (*ports, *filter(None, addresses), *entries)


def _pending_address(builder: NetworkBuilder, link: Link, chosen: Sequence[Rail]) -> str:
    """Report that a link's address may still come; empty where none is expected."""
    roce = any(rail.link is link and rail.transport is Transport.ROCE for rail in chosen)
    over_rdma = link.kind in ("macvlan", "ipvlan") and any(
        x.opens for x in builder.facts.fabric.devices
    )
    expected = over_rdma or link.name in builder.settings.data_ifname
    tentative = ", ".join(str(item.ip) for item in routable(link.tentative))
    if tentative and has_carrier(link):
        line = f"link {link.name}: the kernel still checks whether another host has {tentative}"
    elif roce or (expected and not chosen):
        line = f"link {link.name} has no address yet"
    else:
        return ""
    if not roce:  # of a rail another rule reports what never comes
        builder.problems.append(Problem("data-address", line))
    return line


def link_of(address: str, links: Iterable[Link]) -> Link | None:
    """Find the link that holds an address."""
    return next(
        (link for link in links if any(bare(own) == bare(address) for own in link.addresses)), None
    )


def launcher_addresses(workers: Iterable[Worker]) -> tuple[str, ...]:
    """Give the launcher's own control addresses: its ends of the connections to the workers."""
    return tuple(sorted({item.local_address for item in workers if item.local_address}))


def name_in(text: str, launcher: Iterable[Link], workers: Iterable[Worker]) -> str:
    """Name the link that has an address in a network, or that address, in every pod.

    Returns:
        The name; empty where it differs, or where a pod has no facts or no such link.
    """
    wanted = network(text)
    if wanted is None:
        return ""
    pods = [launcher, *(worker.facts.links if worker.facts else () for worker in workers)]
    found = [
        next((x.name for x in links if any(inside(own, wanted) for own in x.addresses)), "")
        for links in pods
    ]
    return found[0] if len(set(found)) == 1 else ""


def control_link(
    wanted: str, launcher: tuple[Link, ...], workers: tuple[Worker, ...], given: Given
) -> tuple[Decision | None, str]:
    """Choose the value for daemons and MPI TCP: a link's name, or a network, that all pods have.

    Open MPI 5.0 takes a single value (a list crashes it) and waits for ever where the launcher has
    no link in a network that the workers have; so the value holds every control address and no
    address of any other link.

    Args:
        wanted: the setting ``control_ifname``, empty where not set.
        launcher: this pod's links.
        workers: hosts that passed the gate; those without facts count by address alone.
        given: the flag or variable that ``wanted`` came from.

    Returns:
        The decision, or None and the reason why nothing is pinned.
    """
    if wanted:
        return Decision("control-link", wanted, given.source, str(given)), ""
    if not workers:
        return None, "no worker whose route would show it"
    own = launcher_addresses(workers)
    mine = [link_of(address, launcher) for address in own]
    theirs = [link_of(one.address, one.facts.links) if one.facts else None for one in workers]
    names = {link.name if link else "" for link in (*mine, *theirs)}
    if own and len(names) == 1 and (name := names.pop()):
        reason = (
            f"the launcher's routes to {counted(len(workers), 'worker')} leave by it, "
            "and their addresses are on a link of that name"
        )
        return Decision("control-link", name, Source.DETECTED, reason), ""
    return _control_network(launcher, workers, (*mine, *theirs))


def _control_network(
    launcher: tuple[Link, ...], workers: tuple[Worker, ...], used: Sequence[Link | None]
) -> tuple[Decision | None, str]:
    """Find the smallest network that holds every control address, and no other link's.

    ``used`` are the control links; the result is as ``control_link`` has it.
    """
    controls = {*map(bare, launcher_addresses(workers)), *(bare(one.address) for one in workers)}
    known = [found for found in map(parse, controls) if found]
    # A worker that ssh reaches by another host has a name alone.
    smallest = smallest_network(known) if len(known) == len(controls) else None
    if smallest is None:
        return None, "the control addresses are of both IP versions, or not all known"
    ids = set(map(id, used))  # links of two pods may be equal
    pods = [*(worker.facts.links for worker in workers if worker.facts), launcher]
    others = (link for links in pods for link in links if id(link) not in ids)
    addresses = (item for link in others for item in link.addresses)
    within = [item for item in addresses if bare(item) not in controls and inside(item, smallest)]
    if within:
        return None, f"{smallest} would hold all control addresses but also {within[0]}"
    reason = (
        "the smallest network that holds all control addresses and no other link's; "
        "the links' names differ or are not known"
    )
    return Decision("control-link", str(smallest), Source.DETECTED, reason), ""
