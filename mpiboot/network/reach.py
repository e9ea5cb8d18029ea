"""Whether workers reach each other over their data links, as far as addresses and routes say. Pure.

It proves nothing about switches and firewalls: it finds networks that can't work.
"""

from __future__ import annotations

import functools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from mpiboot.core import addresses
from mpiboot.core.addresses import Address, Interface, Network
from mpiboot.core.model import Link
from mpiboot.network.link_addresses import usable
from mpiboot.network.records import WorkerNetwork

Span: TypeAlias = "tuple[int, int, int]"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One worker's end of the data network: an address, its link and where that link leads.

    ``routes`` do not overlap or touch, and are in order: workers that reach the same have the same.
    """

    host: str
    link: str
    interface: Interface
    routes: tuple[Span, ...]


@functools.lru_cache(maxsize=1 << 16)  # on a routed fabric workers have the same routes
def _destination(text: str) -> Span | None:
    network = addresses.network(text)
    return _span(network) if network else None


def _span(network: Network) -> Span:
    low = int(network.network_address)
    return network.version, low, low + network.num_addresses - 1


def _endpoint(network: WorkerNetwork, link: Link, family: int) -> Endpoint | None:
    own = next((item for item in usable(link) if item.version == family), None)
    if own is None or network.facts is None:
        return None
    over = {route.destination for route in network.facts.fabric.routes if route.link == link.name}
    leads = [span for span in map(_destination, over) if span is not None and span[0] == family]
    return Endpoint(network.host, link.name, own, _merged([_span(own.network), *leads]))


def _merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Join spans that overlap or touch: an own /31 in the fabric's /16 makes no other way."""
    merged: list[Span] = []
    for version, low, high in sorted(spans):
        if merged and merged[-1][0] == version and low <= merged[-1][2] + 1:
            merged[-1] = (version, merged[-1][1], max(high, merged[-1][2]))
        else:
            merged.append((version, low, high))
    return tuple(merged)


def endpoints(networks: Sequence[WorkerNetwork], position: int) -> tuple[Endpoint, ...] | None:
    """Give every worker's end at one position of its data links.

    Returns:
        The ends, all of one IP version; None where a worker has none there.
    """
    links = [
        network.data[position] if position < len(network.data) else None for network in networks
    ]
    for family in (4, 6):
        found = [
            _endpoint(network, link, family) if link else None
            for network, link in zip(networks, links, strict=True)
        ]
        known = tuple(item for item in found if item is not None)
        if networks and len(known) == len(networks):
            return known
    return None


def unreachable(found: Sequence[Endpoint]) -> str:
    """Name the first pair of which one has no way to the other over its data link.

    Workers with the same ways are looked at once. Others are asked how many of all addresses lie in
    their ways, so that the work grows with the number of routes and not with that of pairs.
    """
    peers = {(end.interface.version, int(end.interface.ip)): end for end in found}
    numbers = sorted(peers)
    seen: set[tuple[Span, ...]] = set()
    for end in found:
        if end.routes in seen:
            continue
        seen.add(end.routes)
        within = sum(
            bisect_right(numbers, (version, high)) - bisect_left(numbers, (version, low))
            for version, low, high in end.routes
        )
        if within == len(numbers):
            continue
        for (version, value), peer in peers.items():
            if not any(v == version and low <= value <= high for v, low, high in end.routes):
                return (
                    f"{end.host} ({end.link} {end.interface}) has no route over {end.link} to "
                    f"{peer.host} ({peer.link} {peer.interface})"
                )
    return ""


def shared_address(found: Sequence[Endpoint]) -> str:
    """Name the first two workers that have one and the same data address."""
    owners: dict[Address, str] = {}
    for end in found:
        other = owners.setdefault(end.interface.ip, end.host)
        if other != end.host:
            return f"{other} and {end.host} both have {end.interface.ip}"
    return ""
