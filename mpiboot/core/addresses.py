"""IP addresses in text, as kernel, hostfiles and users write them. Pure; nothing here raises."""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

Address: TypeAlias = "ipaddress.IPv4Address | ipaddress.IPv6Address"
Interface: TypeAlias = "ipaddress.IPv4Interface | ipaddress.IPv6Interface"
Network: TypeAlias = "ipaddress.IPv4Network | ipaddress.IPv6Network"

IPV4: Final = 4
IPV6: Final = 6
_CACHED_ADDRESSES: Final = 1 << 16  # every rule reads every table: a thousand workers are felt


def bare(text: str) -> str:
    """Cut prefix length and zone off: ``fe80::1%eth0/64`` is ``fe80::1``."""
    return text.partition("/")[0].partition("%")[0]


@functools.lru_cache(_CACHED_ADDRESSES)
def parse(text: str) -> Address | None:
    """Read an address without a prefix length, its zone left out; None where it is none."""
    kind = ipaddress.IPv6Address if ":" in text else ipaddress.IPv4Address
    try:
        found = kind(text)
    except ValueError:
        return None
    # With its zone an address equals no other one, and can't be in a network.
    return kind(bare(text)) if "%" in text else found


def is_address(text: str) -> bool:
    """Whether a host is named by its IPv4 or IPv6 address, which needs no resolver."""
    return parse(text) is not None


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Give each host's name up to its first dot where these differ, else the whole."""
    short = {name: name if is_address(name) else name.partition(".")[0] for name in names}
    return short if len(set(short.values())) == len(short) else dict(zip(names, names, strict=True))


def plain(text: str) -> str:
    """Write an address as the kernel's tables have it: no zone, IPv4 also where it is in IPv6."""
    found = parse(text)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found or text)


@functools.lru_cache(_CACHED_ADDRESSES)
def interface(text: str) -> Interface | None:
    """Read an address with its prefix length (without: the whole), its zone left out."""
    address, slash, prefix = text.partition("/")
    try:
        return ipaddress.ip_interface(bare(address) + slash + prefix)
    except ValueError:
        return None


def network(text: str) -> Network | None:
    """Read a network in CIDR form; bits beyond the prefix are overlooked."""
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None


def inside(text: str, where: Network) -> bool:
    """Whether an address, with or without its prefix length, is in a network."""
    found = interface(text)
    return found is not None and found.ip in where


def smallest_network(addresses: Iterable[Address]) -> Network | None:
    """Find the smallest network that holds all addresses; None where their versions differ."""
    known = list(addresses)
    if len({item.version for item in known}) != 1:
        return None
    numbers, width = [int(item) for item in known], known[0].max_prefixlen
    low, high = min(numbers), max(numbers)
    prefix = width - (low ^ high).bit_length()
    kind = ipaddress.IPv4Network if known[0].version == IPV4 else ipaddress.IPv6Network
    return kind((low >> (width - prefix) << (width - prefix), prefix))
