"""One worker's networks: its control link, its own RDMA ports by rules in order, its data links.

The user's settings come first, then what the kernel and the platform show; a name such as eth0 or
net1 only puts candidates in order. A device's name is no evidence, nor is /dev/infiniband alone,
nor an entry's link name alone (another pod's link may have the same name). A port that isn't ready
is reported, and no other one is taken in its place. The control link of all pods is here, too;
what else follows for several workers is decided elsewhere. Pure.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Collection, Container, Iterable, Sequence
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
from mpiboot.core.wording import counted, first_few
from mpiboot.network import nccl
from mpiboot.network.records import (
    RDMA,
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
    # The kernel gives it only for a link of this network namespace: the one exact answer.
    (lambda link, port: port.netdev == link.name, "the kernel says that this port drives it"),
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


def own_gids(rail: Rail) -> list[Gid]:
    """List the entries that hold an address of the rail's link."""
    own = {item.ip for item in usable(rail.link)} if rail.link else set()
    return [gid for gid in rail.port.gids if nccl.address(gid) in own]


def _in_use(rail: Rail) -> bool:
    """Whether a link has what its port needs of it; an IPoIB parent often has no address."""
    if rail.transport is Transport.INFINIBAND:
        return rail.link is not None and bool(usable(rail.link))
    return bool(own_gids(rail))


def without_link(fabric: Fabric) -> tuple[Rail, ...]:
    """Find ports that need no link: InfiniBand's, then EFA; RoCE without a link has no address."""
    found = [
        Rail(device, port, None, "InfiniBand needs no link, the device node opens")
        for device, port in ports(fabric.devices)
        if port.link_layer is LinkLayer.INFINIBAND and device.opens
    ]
    # A port in INIT is waited for only where no other one is there.
    found = [rail for rail in found if rail.port.state is PortState.ACTIVE] or found
    if found:
        return tuple([rail for rail in found if rail.device.pci in fabric.functions] or found)
    return tuple(
        Rail(device, port, None, "EFA: it has no link, and its device node opens")
        for device in fabric.devices
        if device.efa and device.opens
        for port in device.ports
    )


_RDMA_DEVICE: Final = "MPIBOOT_RDMA_DEVICE"
# Kinds that carry a pod's traffic to other pods; not bridges, tunnels, dummies and the like.
_CARRIERS: Final = frozenset(
    {"ether", "ipoib", "macvlan", "ipvlan", "vlan", "veth", "bond", "team", "netkit"}
)
_POD_KINDS: Final = frozenset({"veth", "macvlan", "ipvlan", "netkit"})
_NODE_KINDS: Final = frozenset({"bridge", "vxlan", "geneve", "openvswitch"})


class _Builder:
    """One worker's networks under decision: what the rules read, and what they have found."""

    def __init__(self, facts: PodFacts, settings: Settings, control: Link | None) -> None:
        self.facts, self.settings, self.control = facts, settings, control
        self.problems: list[Problem] = []
        self.decisions: list[Decision] = []
        self.host_network = _host_network(facts, control)
        self.candidates = self._candidates()
        self.rails = self._of_one_transport(self._rails())
        self.data = self._data()

    def _missing(self, check: str, what: str, wanted: Sequence[str], there: Container[str]) -> None:
        """Report which names of a setting's are not there; none at all is a failure."""
        if missing := [name for name in wanted if name not in there]:
            none = len(missing) == len(wanted) and not self.facts.fabric.refused
            self.problems.append(Problem(check, f"{what} {', '.join(missing)}", always=none))

    def _candidates(self) -> tuple[Link, ...]:
        """List the links that may be data links: the user's in their order, else all by name."""
        if wanted := self.settings.data_ifname:
            links = {link.name: link for link in self.facts.links}
            self._missing("data-link", "MPIBOOT_DATA_IFNAME: no link", wanted, links)
            return tuple(links[name] for name in dict.fromkeys(wanted) if name in links)
        kinds = _CARRIERS - {"veth", "netkit"} if self.host_network else _CARRIERS
        found = [x for x in self.facts.links if x is not self.control and x.kind in kinds]
        return tuple(sorted(found, key=lambda link: natural_order(link.name)))

    def _rails(self) -> tuple[Rail, ...]:
        """List the ports that are the pod's own: the user's, else all that NCCL does well to use.

        Of a node's ports those are left that can be used, as nothing shows which of them are meant
        for this pod.
        """
        if self.settings.rdma_device:
            return self._named()
        found = self._behind(self.candidates)
        if self.settings.data_ifname:
            return found or without_link(self.facts.fabric)
        if self.host_network:
            found = tuple(
                rail
                for rail in found
                if rail.ready
                and (rail.transport is Transport.INFINIBAND or (rail.link and usable(rail.link)))
            )
        # Ports that need no link: InfiniBand's beside others of its kind, any where none is.
        if not found or Transport.INFINIBAND in {rail.transport for rail in found}:
            names = {rail.name for rail in found}
            more = without_link(self.facts.fabric)
            found = (*found, *(rail for rail in more if rail.name not in names))
        return self._with_control(found)

    def _behind(self, links: Iterable[Link]) -> tuple[Rail, ...]:
        """Find the ports behind links; one rail a port, by a link that is in use if there is one.

        Where the user names devices, only these count.
        """
        found: dict[str, Rail] = {}
        for link in links:
            mine = behind(link, self.facts.fabric)
            if self.settings.rdma_device:
                mine = tuple(filter(self._is_named, mine))
            if len(mine) > 1:
                names = ", ".join(rail.name for rail in mine)
                message = f"{link.name} could belong to {names}: mpiboot uses none of them"
                self.problems.append(Problem("data-ambiguous", message))
                continue
            for rail in mine:
                other = found.setdefault(rail.name, rail)
                if other is not rail and _in_use(rail) and not _in_use(other):
                    found[rail.name] = rail
        return tuple(found.values())

    def _is_named(self, rail: Rail) -> bool:
        return bool({rail.device.name, rail.name} & {*self.settings.rdma_device})

    def _named(self) -> tuple[Rail, ...]:
        """Find the devices that the user names, also those without a link of this pod."""
        source, control = Source.ENVIRONMENT, [self.control] if self.control else []
        found = {
            rail.name: rail._replace(source=source, reason=f"{_RDMA_DEVICE}; {rail.reason}")
            for rail in self._behind((*self.candidates, *control))
        }
        every = [
            Rail(device, port, None, _RDMA_DEVICE, source)
            for device in self.facts.fabric.devices
            for port in device.ports
        ]
        names = {name for rail in every for name in (rail.device.name, rail.name)}
        wanted, what = self.settings.rdma_device, f"{_RDMA_DEVICE}: no device"
        self._missing("rdma-device", what, wanted, names)
        for rail in filter(self._is_named, every):
            found.setdefault(rail.name, rail)
        return tuple(found.values())

    def _with_control(self, found: tuple[Rail, ...]) -> tuple[Rail, ...]:
        """Add the control link's own port, as NCCL takes it too: a bond, or a VF as ``eth0``.

        Not beside faster ports, which would wait for it.
        """
        own = behind(self.control, self.facts.fabric) if self.control else ()
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

    def _of_one_transport(self, found: tuple[Rail, ...]) -> tuple[Rail, ...]:
        """Keep one transport: NCCL can't merge two, and peers of two kinds don't connect."""
        up = [x for x in found if x.device.usable and x.port.state is not PortState.DOWN] or found
        infiniband = any(rail.transport is Transport.INFINIBAND for rail in up)
        best = Transport.INFINIBAND if infiniband else up[0].transport if up else None
        kept = tuple(rail for rail in found if rail.transport is best)
        left = ", ".join(rail.name for rail in found if rail.transport is not best)
        for rail in kept:
            reason = f"{rail.reason}; of another kind, so left out: {left}" if left else rail.reason
            if rail.link and not left:
                reason = f"{rail.link.name}: {reason}"
            self.decisions.append(Decision("rdma-port", rail.name, rail.source, reason))
        return kept

    def _data(self) -> tuple[Link, ...]:
        """Choose the data links: the rails' own, else the links that TCP can use."""
        wanted, links = self.settings.data_ifname, self.candidates
        source, reason = Source.DETECTED, "a second link with an address and without RDMA: TCP"
        above = [rail.link for rail in self.rails if rail.link]
        if above:
            left = ", ".join(link.name for link in links if link not in above)
            links = tuple(link for link in links if link in above)
            reason = f"the RDMA ports' own links{f'; not used: {left}' if left else ''}"
        elif not wanted:
            # On the node's network, a link without RDMA may be anybody's.
            none = self.rails or self.host_network
            links = () if none else tuple(filter(carries_tcp, links))
        names = [link.name for link in links]
        if len(names) > 1 and not (above or wanted):
            message = f"{', '.join(names)}: which is the data network is not known; all are used"
            self.problems.append(Problem("data-ambiguous", message))
        if not links:
            reason = "no second link that TCP or RDMA could use"
        elif wanted:
            source, reason = Source.ENVIRONMENT, "MPIBOOT_DATA_IFNAME"
        if links or not self.rails:
            self.decisions.append(Decision("data-link", ",".join(names), source, reason))
        return links

    def check_links(self) -> None:
        """Report links that were given an address and have no carrier; rails go by port."""
        if self.host_network and not self.settings.data_ifname:
            return  # a node has links that nobody plugged in
        above = [rail.link for rail in self.rails]
        for link in self.candidates:
            if link not in above and usable(link) and not has_carrier(link):
                message = f"link {link.name} has an address, but has no carrier"
                self.problems.append(Problem("data-carrier", message))
            for address in routable(link.duplicate):
                message = f"another host of {link.name}'s network has its address {address}"
                hint = "check the network's IPAM: one address, once"
                self.problems.append(Problem("data-networks", message, hint))

    def pending(self) -> tuple[str, ...]:
        """List what may still come: InfiniBand VFs stay INIT for a while, IPAM takes seconds."""
        if self.settings.data_network is DataNetworkUse.OFF:
            return ()
        ports = (
            f"port {rail.name} is {rail.port.state.value}, not yet ACTIVE"
            for rail in self.rails
            if rail.port.state in (PortState.INIT, PortState.ARMED)
        )
        addresses = (self._pending_address(link) for link in self.candidates if not usable(link))
        entries = (
            f"port {rail.name} has no RoCE v2 entry for {rail.link.name} yet"
            for rail in self.rails
            if rail.link and rail.transport is Transport.ROCE and usable(rail.link)
            if not any(gid.kind is GidType.ROCE_V2 for gid in own_gids(rail))
        )
        return (*ports, *filter(None, addresses), *entries)

    def _pending_address(self, link: Link) -> str:
        """Report that a link's address may still come; empty where none is expected."""
        roce = any(rail.link is link and rail.transport is Transport.ROCE for rail in self.rails)
        opens = any(device.opens for device in self.facts.fabric.devices)
        expected = link.name in self.settings.data_ifname or (
            opens and link.kind in ("macvlan", "ipvlan")
        )
        tentative = ", ".join(str(item.ip) for item in routable(link.tentative))
        if tentative and has_carrier(link):
            line = f"link {link.name}: the kernel still checks whether another host has {tentative}"
        elif roce or (expected and not self.rails):
            line = f"link {link.name} has no address yet"
        else:
            return ""
        if not roce:  # of a rail another rule reports what never comes
            self.problems.append(Problem("data-address", line))
        return line


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
    # The control link is the user's, else by address; never by name.
    control = (
        next((link for link in facts.links if link.name == settings.control_ifname), None)
        or link_of(worker.address, facts.links)
        or link_of(facts.control_address, facts.links)
    )
    made = _Builder(facts, settings, control)
    made.check_links()
    over_tcp = Transport.TCP if any(map(carries_tcp, made.data)) else Transport.NONE
    transport = made.rails[0].transport if made.rails else over_tcp
    pending = made.pending()
    return WorkerNetwork(
        *(host.name, facts, host.slots, control, transport, made.data, made.rails),
        host_network=made.host_network,
        decisions=tuple(made.decisions),
        problems=tuple(made.problems),
        pending=pending,
        unseen=_unseen(facts.fabric),
        foreign=foreign(facts.fabric, made.rails),
    )


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


def _host_network(facts: PodFacts, link: Link | None) -> bool:
    """Whether the pod shares the node's network: other pods' ends are among its links."""
    if link is None or link.kind in _POD_KINDS:
        return False
    ends = sum(item.kind == "veth" for item in facts.links)
    return ends > 1 or any(item.kind in _NODE_KINDS for item in facts.links)


# Subnet managers and IPAM need seconds; a port that is INIT after a minute will hardly come.
_MAX_WAIT_S: Final = 60.0


def patience(settings: Settings) -> float:
    """Give the seconds for which a data network that is not ready yet may hold the start."""
    required = settings.data_network is DataNetworkUse.REQUIRE
    return settings.timeout if required else min(_MAX_WAIT_S, settings.timeout)


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
    used = [link_of(address, launcher) for address in own]
    used += [link_of(one.address, one.facts.links) if one.facts else None for one in workers]
    names = {link.name if link else "" for link in used}
    if own and len(names) == 1 and (name := names.pop()):
        reason = (
            f"the launcher's routes to {counted(len(workers), 'worker')} leave by it, "
            "and their addresses are on a link of that name"
        )
        return Decision("control-link", name, Source.DETECTED, reason), ""
    pods = [launcher, *(worker.facts.links for worker in workers if worker.facts)]
    ids = set(map(id, used))  # links of two pods may be equal
    others = [link for links in pods for link in links if id(link) not in ids]
    return _control_network({*own, *(one.address for one in workers)}, others)


def _control_network(
    controls: Collection[str], others: Iterable[Link]
) -> tuple[Decision | None, str]:
    """Choose the smallest network of all control addresses, unless another link is in it, too."""
    known = [found for found in map(parse, map(bare, controls)) if found]
    # A worker that ssh reaches by another host has a name alone.
    smallest = smallest_network(known) if len(known) == len(controls) else None
    if smallest is None:
        return None, "the control addresses are of both IP versions, or not all known"
    for address in (item for link in others for item in link.addresses):
        if parse(bare(address)) not in known and inside(address, smallest):
            return None, f"{smallest} would hold all control addresses but also {address}"
    reason = (
        "the smallest network that holds all control addresses and no other link's; "
        "the links' names differ or are not known"
    )
    return Decision("control-link", str(smallest), Source.DETECTED, reason), ""
