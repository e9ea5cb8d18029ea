"""Which RDMA ports of all that a worker sees are its own: behind its links, or without one. Pure.

A port that isn't ready is a diagnosis, never a reason to take another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mpiboot.data_network import nccl, rails
from mpiboot.data_network.rails import Rail
from mpiboot.data_network.records import Kind, Seen
from mpiboot.model import Link, Source

_ASKED: Final = "MPIBOOT_RDMA_DEVICE"
_SETTINGS: Final = "set MPIBOOT_DATA_IFNAME or MPIBOOT_RDMA_DEVICE"


def tied(seen: Seen, candidates: Sequence[Link]) -> tuple[Rail, ...]:
    """Find the ports behind the candidates; one rail a port."""
    allowed = _allowed(seen)
    found: dict[str, Rail] = {}
    doubled: list[str] = []
    asked = f"{_ASKED}; " if allowed is not None else ""
    for link in candidates:
        ports, because = rails.behind(link, seen.fabric, seen.facts.links)
        ports = tuple(item for item in ports if allowed is None or _asked(item, allowed))
        if len(ports) > 1:
            names = ", ".join(f"{device.name}:{port.number}" for device, port in ports)
            seen.problem(
                "data-ambiguous", f"{link.name} could belong to {names}: none is taken", _SETTINGS
            )
            continue
        for device, port in ports:
            rail = Rail(device, port, link, asked + because)
            other = found.get(rail.name)
            if other is None:
                found[rail.name] = rail
            elif _in_use(other) == _in_use(rail):
                doubled.append(f"{link_name(other)} and {link.name} are both on {rail.name}")
            elif _in_use(rail):
                found[rail.name] = rail
    for said in doubled:
        seen.problem("data-ambiguous", f"{said}: the first is taken", "set MPIBOOT_DATA_IFNAME")
    if allowed is not None:
        _asked_without_link(seen, found, allowed)
    return tuple(found.values())


def link_name(rail: Rail) -> str:
    """Give the name of a rail's link, ``-`` where it has none."""
    return rail.link.name if rail.link else "-"


def _in_use(rail: Rail) -> bool:
    """Tell whether a link has what its port needs of it; an IPoIB parent often has no address."""
    if rail.infiniband:
        return rail.link is not None and bool(rails.interfaces(rail.link))
    return bool(own_gids(rail))


def own_gids(rail: Rail) -> list[int]:
    """List the GID indexes that hold an address of the rail's link."""
    own = {item.ip for item in rails.interfaces(rail.link)} if rail.link else set()
    return [gid.index for gid in rail.port.gids if nccl.address(gid) in own]


def _allowed(seen: Seen) -> tuple[str, ...] | None:
    return seen.settings.rdma_device or None


def _asked(found: rails.Found, words: Sequence[str]) -> bool:
    device, port = found
    return device.name in words or f"{device.name}:{port.number}" in words


def _asked_without_link(seen: Seen, found: dict[str, Rail], words: Sequence[str]) -> None:
    """Take the user's own devices although no link of this pod is theirs."""
    every = [(device, port) for device in seen.fabric.devices for port in device.ports]
    missing = [word for word in words if not any(_asked(item, (word,)) for item in every)]
    if missing:
        none = len(missing) == len(words)
        seen.problem("rdma-device", f"{_ASKED}: no device {', '.join(missing)}", always=none)
    for device, port in every:
        rail = Rail(device, port, None, _ASKED)
        if _asked((device, port), words) and rail.name not in found:
            found[rail.name] = rail


def without_link(seen: Seen) -> tuple[Rail, ...]:
    """Find ports that need no link: InfiniBand's, then EFA; RoCE without a link has no address."""
    if seen.settings.rdma_device:
        return ()
    fabric = seen.fabric
    usable = [
        Rail(device, port, None, "InfiniBand needs no link, the device node opens")
        for device, port in rails.ports(fabric.devices)
        if port.link_layer == "InfiniBand" and device.opens == "ok"
    ]
    # A port in INIT is waited for only where no other one is there.
    usable = [rail for rail in usable if rail.port.state == "ACTIVE"] or usable
    said = [rail for rail in usable if rails.named_by_platform(rail.device, fabric)]
    if said or usable:
        return tuple(said or usable)
    return tuple(
        Rail(device, port, None, "EFA: it has no link, and its device node opens")
        for device in fabric.devices
        if rails.is_efa(device) and device.opens == "ok"
        for port in device.ports
    )


def of_the_node(seen: Seen, tied: tuple[Rail, ...]) -> tuple[Rail, ...]:
    """Keep what can be used of a node's ports: active, openable, RoCE with an address.

    Nothing says which of them are meant for this pod; InfiniBand ports count without a link.
    """
    own = rails.behind(seen.control, seen.fabric, seen.facts.links)[0] if seen.control else ()
    control_ports = {f"{device.name}:{port.number}" for device, port in own}
    names = {rail.name for rail in tied}
    every = (*tied, *(rail for rail in without_link(seen) if rail.name not in names))
    return tuple(
        rail
        for rail in every
        if rail.ready
        and rail.name not in control_ports
        and (rail.infiniband or (rail.link is not None and rails.interfaces(rail.link)))
    )


def one_class(seen: Seen, found: tuple[Rail, ...]) -> tuple[Rail, ...]:
    """Keep one link layer: NCCL can't merge two, and peers of two kinds don't connect."""
    kinds = {kind_of((rail,)) for rail in found}
    for rail in found if len(kinds) == 1 else ():
        because = f"{rail.link.name}: {rail.because}" if rail.link else rail.because
        seen.decide("rdma-port", rail.name, _source(rail), because)
    if len(kinds) <= 1:
        return found
    best = Kind.INFINIBAND if Kind.INFINIBAND in kinds else kind_of(found)
    kept = tuple(rail for rail in found if kind_of((rail,)) is best)
    left = ", ".join(rail.name for rail in found if rail not in kept)
    for rail in kept:
        because = f"{rail.because}; of another kind, so left out: {left}"
        seen.decide("rdma-port", rail.name, _source(rail), because)
    return kept


def _source(rail: Rail) -> Source:
    if rail.because.startswith(_ASKED):
        return Source.ENVIRONMENT
    return Source.PLATFORM if "platform" in rail.because else Source.DETECTED


def kind_of(found: Sequence[Rail]) -> Kind:
    """Tell the kind of a network made of these rails."""
    if rails.is_efa(found[0].device):
        return Kind.EFA
    return Kind.INFINIBAND if found[0].infiniband else Kind.ROCE
