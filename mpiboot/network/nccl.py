"""What NCCL itself does with a value or with a GID table, per version; it decides nothing. Pure.

Told from NCCL's sources (misc/utils.cc, net_ib.cc and net_ib/connect.cc) and from runs of
2.18.3, 2.21.5, 2.28.9, 2.30.7 and 2.32.3.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from mpiboot.core.addresses import IPV6, Address, Network, parse
from mpiboot.core.model import Gid, GidType, RdmaPort

Version: TypeAlias = "tuple[int, int, int]"

# Up to 2.20 the index is 0, a link-local RoCE v1 entry, unless it is set.
AUTOMATIC: Final[Version] = (2, 21, 0)
# Before this a slot without a type ended the search with an error instead of the next slot.
SKIPS_HOLES: Final[Version] = (2, 26, 2)
# From here on devices are numbered in the order of their PCI paths, not libibverbs' order.
PCI_ORDER: Final[Version] = (2, 29, 7)
# Variables whose values are compared with what a pod has.
CHECKED: Final = ("NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_DISABLE")
_CODE_OF_2_9: Final = 10000  # NCCL_VERSION_CODE: 2804 is 2.8.4, 22105 is 2.21.5


def version(text: str) -> Version | None:
    """Read ``2.21.5``, ``2.21.5+cuda12.4`` or the code ``22105``; None where it is neither."""
    word = text.strip()
    if re.fullmatch(r"\d{4,6}", word, re.ASCII):
        code = int(word)
        big, middle = (10000, 100) if code >= _CODE_OF_2_9 else (1000, 100)
        return code // big, code % big // middle, code % middle
    found = re.match(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?![\d.])", word, re.ASCII)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else None


def matching(value: str, names: Iterable[str]) -> tuple[str, ...]:
    """Give the names that a list such as ``=eth0``, ``^docker,lo`` or ``eth`` leaves.

    The rule of NCCL_SOCKET_IFNAME and of NCCL_IB_HCA: one ``^`` and one ``=`` for the whole
    list, else prefixes; a value of one character counts as none.
    """
    listed = tuple(names)
    if len(value) <= 1:
        return listed
    without = value.startswith("^")
    rest = value[without:]
    whole = rest.startswith("=")
    words = [word.partition(":")[0] for word in rest[whole:].split(",") if word]
    return tuple(
        name
        for name in listed
        if any(name == word if whole else name.startswith(word) for word in words) != without
    )


def expressible(name: str) -> bool:
    """Whether a link's name can stand in a list; the kernel allows a comma in it."""
    return bool(name) and not set(name) & {",", ":"} and name[0] not in "^="


def exact(names: Iterable[str]) -> str:
    """Write names in the exact form; without ``=``, mlx5_1 takes mlx5_10 to mlx5_19 as well."""
    return "=" + ",".join(names)


def address(gid: Gid) -> Address | None:
    """Give the address that a GID stands for; None where it can't be read or is empty."""
    return _address(gid.value)


@functools.lru_cache(maxsize=1 << 16)  # every rule reads every entry of every table
def _address(text: str) -> Address | None:
    found = parse(text)
    if found is None or not int(found):
        return None
    return (found.version == IPV6 and found.ipv4_mapped) or found


def gid_index(
    port: RdmaPort, which: Version, *, family: int = 4, inside: Network | None = None
) -> int | None:
    """Simulate the index that this NCCL takes by itself on a RoCE port.

    It looks at neither the link's name nor the network namespace of an entry. Where nothing
    fits it stays at 0 without a word.

    Args:
        port: the port with its GID table.
        which: the version of NCCL.
        family: 4, or 6 with NCCL_IB_ADDR_FAMILY=AF_INET6.
        inside: NCCL_IB_ADDR_RANGE.

    Returns:
        The index, or None where this version ends with an error on such a table.
    """
    if which < AUTOMATIC:
        return 0
    table: Mapping[int, Gid] = {gid.index: gid for gid in port.gids}
    if which < SKIPS_HOLES and table and len(table) <= max(table):
        return None
    chosen = 0
    for index in sorted(table):
        candidate = address(table[index])
        if index == 0 or candidate is None or candidate.version != family:
            continue
        if inside is not None and candidate not in inside:
            continue
        if _family(table.get(chosen)) != family:
            chosen = index
        elif _valid(candidate) and table[index].kind is GidType.ROCE_V2:
            now = table.get(chosen)
            if now is None or now.kind is not GidType.ROCE_V2 or not _valid(address(now)):
                chosen = index
    return chosen


def _valid(found: Address | None) -> bool:
    """Tell whether NCCL takes an entry as configured: 169.254 counts, fe80 does not."""
    return found is not None and not (found.version == IPV6 and found.is_link_local)


def _family(gid: Gid | None) -> int:
    """Tell the family as NCCL does: whatever is no mapped IPv4 is IPv6, an empty slot too."""
    found = address(gid) if gid else None
    return found.version if found else IPV6
