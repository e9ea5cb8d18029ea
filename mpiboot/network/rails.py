"""Which RDMA ports are a worker's own: those behind its links, by rules in order, or without one.

A device's name is no evidence, nor is /dev/infiniband alone, nor an entry's link name alone
(another pod's link may have the same name). A port that isn't ready is reported, and no other one
is taken in its place. Pure.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from mpiboot.core.facts import Fabric, Gid, GidType, Link, LinkLayer, PortState, RdmaPort
from mpiboot.core.model import Decision, Source
from mpiboot.network import nccl
from mpiboot.network.records import (
    NetworkBuilder,
    Problem,
    Rail,
    Transport,
    port_name,
    ports,
    usable,
)

_IPOIB_BYTES: Final = 20


def _by_kernel(link: Link, port: RdmaPort) -> bool:
    # The kernel gives it only for a link of this network namespace: the one exact answer.
    return port.netdev == link.name


def _by_hardware(link: Link, port: RdmaPort) -> bool:
    # IPoIB: 4 bytes of flags and queue pair, then the port's GID; also for P_Key programs.
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
