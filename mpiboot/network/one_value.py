"""The data networks of all workers as one value, which is no longer than a variable may be. Pure.

The kernel takes 128 KiB for a variable (MAX_ARG_STRLEN, execve(2)), and each process of the job has
it: 4,096 workers with 8 rails of /31 would fill half a MiB.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from itertools import zip_longest
from typing import Final

from mpiboot.core.addresses import IPV4, smallest_network
from mpiboot.core.model import Link
from mpiboot.network.link_addresses import usable
from mpiboot.network.records import WorkerNetwork

LONGEST: Final = 4096  # characters


def networks(known: Sequence[WorkerNetwork]) -> tuple[str, str]:
    """List the IPv4 networks of the data links, as Open MPI takes them in place of links' names.

    Too many are written as fewer that mean the same: such that hold neighbours, else one for each
    rail where it holds no address of any other link.

    Returns:
        The value; or why there is none.
    """
    own = [[item for link in network.plain for item in _ipv4(link)] for network in known]
    if not all(own):
        return "", "the data links' names differ, and Open MPI takes no IPv6 network instead"
    spans = {item.network for mine in own for item in mine}
    value = ",".join(sorted(map(str, spans)))
    if len(value) <= LONGEST:
        return value, ""
    joined = ",".join(map(str, ipaddress.collapse_addresses(spans)))
    if len(joined) <= LONGEST:
        return joined, ""
    rails = zip_longest(*own)
    wide = [smallest_network(item.ip for item in rail if item) for rail in rails]
    kept = [item for item in wide if isinstance(item, ipaddress.IPv4Network)]
    others = (
        item
        for network in known
        for link in (network.facts.links if network.facts else ())
        if link not in network.plain
        for item in _ipv4(link)
    )
    inside = next((item for item in others if any(item.ip in one for one in kept)), None)
    if inside is not None:
        said = f"{len(spans)} networks are too many for one variable, and what holds all of them "
        return "", f"{said}holds {inside.ip} of another link too"
    return ",".join(dict.fromkeys(map(str, kept))), ""


def _ipv4(link: Link) -> list[ipaddress.IPv4Interface]:
    return [
        item
        for item in usable(link)
        if item.version == IPV4 and isinstance(item, ipaddress.IPv4Interface)
    ]
