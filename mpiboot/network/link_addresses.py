"""What the addresses of a link are good for, and whether it runs. Pure."""

from __future__ import annotations

import functools

from mpiboot.core import addresses
from mpiboot.core.addresses import Interface
from mpiboot.core.model import Link


def usable(link: Link) -> tuple[Interface, ...]:
    """Give the addresses that a peer can use: no loopback and no link-local ones."""
    if link.tentative or link.duplicate:
        unusable = {*link.tentative, *link.duplicate}
        return _global(tuple(item for item in link.addresses if item not in unusable))
    return _global(link.addresses)


def coming(link: Link) -> tuple[Interface, ...]:
    """Give those that can't be used yet: the kernel still looks whether another host has them."""
    return _global(link.tentative)


def refused(link: Link) -> tuple[Interface, ...]:
    """Give those that the kernel refuses: another host has them."""
    return _global(link.duplicate)


def has_carrier(link: Link) -> bool:
    """Tell whether a link is up and its other end is there."""
    return link.up and link.carrier


@functools.lru_cache(maxsize=1 << 16)  # every rule asks this of every worker's links
def _global(texts: tuple[str, ...]) -> tuple[Interface, ...]:
    found = map(addresses.interface, texts)
    return tuple(
        item
        for item in found
        if item and not (item.is_loopback or item.is_link_local or item.is_unspecified)
    )
