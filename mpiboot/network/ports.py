"""Which RDMA ports of all that a worker sees are its own: behind its links, or without one. Pure.

A port that isn't ready is a diagnosis, never a reason to take another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from mpiboot.core.fabric import Gid, LinkLayer, PortState
from mpiboot.core.model import Link, Source
from mpiboot.network import nccl, rails
from mpiboot.network.link_addresses import usable
from mpiboot.network.records import NetworkBuilder, Rail, Transport

_ASKED: Final = "MPIBOOT_RDMA_DEVICE"
_SETTINGS: Final = "set MPIBOOT_DATA_IFNAME or MPIBOOT_RDMA_DEVICE"


def behind_links(builder: NetworkBuilder, candidates: Sequence[Link]) -> tuple[Rail, ...]:
    """Find the ports behind the candidates; one rail a port."""
    wanted = builder.settings.rdma_device
    found: dict[str, Rail] = {}
    doubled: list[str] = []
    for link in candidates:
        behind = rails.behind(link, builder.fabric, builder.facts.links)
        if wanted:
            behind = tuple(_asked(rail) for rail in behind if _named(rail, wanted))
        if len(behind) > 1:
            names = ", ".join(rail.name for rail in behind)
            builder.problem(
                "data-ambiguous",
                f"{link.name} could belong to {names}: mpiboot uses none of them",
                _SETTINGS,
            )
            continue
        for rail in behind:
            other = found.get(rail.name)
            if other is None:
                found[rail.name] = rail
            elif _in_use(other) == _in_use(rail):
                doubled.append(f"{link_name(other)} and {link.name} are both on {rail.name}")
            elif _in_use(rail):
                found[rail.name] = rail
    for said in doubled:
        builder.problem(
            "data-ambiguous", f"{said}: mpiboot uses the first", "set MPIBOOT_DATA_IFNAME"
        )
    if wanted:
        _asked_without_link(builder, found, wanted)
    return tuple(found.values())


def link_name(rail: Rail) -> str:
    """Give the name of a rail's link, ``-`` where it has none."""
    return rail.link.name if rail.link else "-"


def _in_use(rail: Rail) -> bool:
    """Tell whether a link has what its port needs of it; an IPoIB parent often has no address."""
    if rail.transport is Transport.INFINIBAND:
        return rail.link is not None and bool(usable(rail.link))
    return bool(own_gids(rail))


def own_gids(rail: Rail) -> list[Gid]:
    """List the entries that hold an address of the rail's link."""
    own = {item.ip for item in usable(rail.link)} if rail.link else set()
    return [gid for gid in rail.port.gids if nccl.address(gid) in own]


def _named(rail: Rail, words: Sequence[str]) -> bool:
    return rail.device.name in words or rail.name in words


def _asked(rail: Rail) -> Rail:
    return replace(rail, source=Source.ENVIRONMENT, because=f"{_ASKED}; {rail.because}")


def _asked_without_link(
    builder: NetworkBuilder, found: dict[str, Rail], words: Sequence[str]
) -> None:
    """Take the user's own devices although no link of this pod is theirs."""
    every = [
        Rail(device, port, None, _ASKED, Source.ENVIRONMENT)
        for device in builder.fabric.devices
        for port in device.ports
    ]
    missing = [word for word in words if not any(_named(rail, (word,)) for rail in every)]
    if missing:
        none = len(missing) == len(words)
        builder.problem("rdma-device", f"{_ASKED}: no device {', '.join(missing)}", always=none)
    for rail in every:
        if _named(rail, words):
            found.setdefault(rail.name, rail)


def without_link(builder: NetworkBuilder) -> tuple[Rail, ...]:
    """Find ports that need no link: InfiniBand's, then EFA; RoCE without a link has no address."""
    if builder.settings.rdma_device:
        return ()
    fabric = builder.fabric
    usable = [
        Rail(device, port, None, "InfiniBand needs no link, the device node opens")
        for device, port in rails.ports(fabric.devices)
        if port.link_layer is LinkLayer.INFINIBAND and device.opens
    ]
    # A port in INIT is waited for only where no other one is there.
    usable = [rail for rail in usable if rail.port.state is PortState.ACTIVE] or usable
    said = [rail for rail in usable if rails.named_by_platform(rail.device, fabric)]
    if said or usable:
        return tuple(said or usable)
    return tuple(
        Rail(device, port, None, "EFA: it has no link, and its device node opens")
        for device in fabric.devices
        if device.efa and device.opens
        for port in device.ports
    )


def of_host_network(builder: NetworkBuilder, tied: tuple[Rail, ...]) -> tuple[Rail, ...]:
    """Keep what can be used of a node's ports: active, openable, RoCE with an address.

    Nothing says which of them are meant for this pod; InfiniBand ports count without a link.
    """
    own = (
        rails.behind(builder.control, builder.fabric, builder.facts.links)
        if builder.control
        else ()
    )
    control_ports = {rail.name for rail in own}
    names = {rail.name for rail in tied}
    every = (*tied, *(rail for rail in without_link(builder) if rail.name not in names))
    return tuple(
        rail
        for rail in every
        if rail.ready
        and rail.name not in control_ports
        and (
            rail.transport is Transport.INFINIBAND or (rail.link is not None and usable(rail.link))
        )
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
        because = f"{rail.because}; of another kind, so left out: {left}" if left else rail.because
        if rail.link and not left:
            because = f"{rail.link.name}: {because}"
        builder.decide("rdma-port", rail.name, rail.source, because)
    return kept
