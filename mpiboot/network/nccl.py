"""What NCCL and UCX do with a value or a GID table, and how they are brought to use ours. Pure.

NCCL's rules are from its sources (misc/utils.cc, net_ib.cc and net_ib/connect.cc) and from runs of
2.18.3, 2.21.5, 2.28.9, 2.30.7 and 2.32.3. Each library's own choice of an entry of a RoCE port's
GID table is simulated first: nothing is set where it is right.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from mpiboot.core.addresses import IPV4, IPV6, Address, Network, parse, smallest_network
from mpiboot.core.facts import Gid, GidType, RdmaPort
from mpiboot.network.records import GidChoice, Problem, Rail, Transport, usable

Version: TypeAlias = "tuple[int, int, int]"

# Up to 2.20 the index is 0, a link-local RoCE v1 entry, unless it is set.
AUTOMATIC: Final[Version] = (2, 21, 0)
# Before this a slot without a type ended the search with an error instead of the next slot.
SKIPS_HOLES: Final[Version] = (2, 26, 2)
# Variables whose values are compared with what a pod has.
CHECKED: Final = (
    *("NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_DISABLE", "NCCL_IB_GID_INDEX"),
    *("NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_CONF_FILE"),
    *("NCCL_IB_PKEY", "UCX_IB_GID_INDEX", "UCX_IB_PKEY"),
)


def version(text: str) -> Version | None:
    """Read ``2.21.5`` or ``2.21.5+cuda12.4``; None where it is neither."""
    form = r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?![\d.])"
    found = re.match(form, text.strip(), re.ASCII)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else None


def conf_files(environ: Mapping[str, str], home: str) -> tuple[str, ...]:
    """List NCCL's own files, the strongest first; the environment comes before all of them."""
    return (environ.get("NCCL_CONF_FILE") or f"{home}/.nccl.conf", "/etc/nccl.conf")


def read_conf(text: str) -> dict[str, str]:
    """Read such a file: NAME=VALUE as it stands; of a name that stands twice the first counts."""
    lines = (line.partition("=") for line in reversed(text.split("\n")) if line[:1] != "#")
    return {name: value for name, equals, value in lines if equals and name.startswith("NCCL_")}


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


def gid_index(port: RdmaPort, which: Version) -> int | None:
    """Simulate the index that this NCCL takes on a RoCE port where no variable tells it one.

    It ignores the link's name and the network namespace of an entry. Where nothing fits it
    stays at 0 silently.

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
        if index == 0 or _family(table[index]) != IPV4:
            continue
        # The first one of that version, then the first of them that is RoCE v2.
        newer = table[index].kind is GidType.ROCE_V2
        now = table.get(chosen)
        if _family(now) != IPV4 or (newer and now and now.kind is not GidType.ROCE_V2):
            chosen = index
    return chosen


def _family(gid: Gid | None) -> int:
    """Give the family as NCCL does: whatever is no mapped IPv4 is IPv6, an empty slot too."""
    found = address(gid) if gid else None
    return found.version if found else IPV6


_Pair: TypeAlias = "tuple[Rail, Gid]"
# Whoever sets one of these has chosen devices or entries already.
NCCL_GID: Final = (
    *("NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_IB_ADDR_RANGE", "NCCL_IB_ADDR_FAMILY"),
    "NCCL_IB_ROCE_VERSION_NUM",
)
UCX_GID: Final = ("UCX_NET_DEVICES", "UCX_TLS", "UCX_IB_GID_INDEX", "UCX_IB_ROCE_SUBNETS")


def wanted(rail: Rail) -> tuple[Gid | None, str]:
    """Find the RoCE v2 entry of the link's own address: IPv4 before IPv6, in the link's order.

    Returns:
        The entry, or None; and what is wrong, empty where nothing is.
    """
    if rail.link is None:
        return None, f"no link of this pod belongs to {rail.name}, so its RoCE entry is not known"
    own = usable(rail.link)
    if not own:
        return None, f"link {rail.link.name} of {rail.name} has no address"
    for item in sorted(own, key=lambda one: one.version):
        found = [
            gid
            for gid in rail.port.gids
            # The name is missing where sysfs is only partly there.
            if gid.kind is GidType.ROCE_V2
            and gid.netdev in (rail.link.name, "")
            and address(gid) == item.ip
        ]
        if found:
            indexes = ", ".join(str(gid.index) for gid in found)
            twice = (
                f"entries {indexes} of {rail.name} are all {item.ip} on a link named "
                f"{rail.link.name}: one of them is another pod's"
            )
            return found[0], twice if len(found) > 1 else ""
    if not rail.port.gids:
        return None, ""
    kinds = sorted({gid.kind.value or "unknown" for gid in rail.port.gids})
    return None, (
        f"the GID table of {rail.name} has no RoCE v2 entry for "
        f"{', '.join(str(item.ip) for item in own)} (it has {', '.join(kinds)})"
    )


def ucx_index(port: RdmaPort) -> int | None:
    """Simulate UCX's own choice: by RoCE version and family, the first entry of the best sort."""

    def rank(gid: Gid, found: Address) -> tuple[int, int, int]:
        local = found.version == IPV6 and found.is_link_local
        family = 0 if found.version == IPV4 else 1 + local
        return gid.kind is not GidType.ROCE_V2, family, gid.index

    return min((rank(gid, own) for gid in port.gids if (own := address(gid))), default=[None])[-1]


class _Library(NamedTuple):
    """A library that chooses an entry for each port.

    ``choices`` are the user's; ``right`` is whether it takes the wanted ones where it is told
    nothing; ``variable`` sets one index for all, ``networks`` those of one network,
    empty where that is not possible.
    """

    name: str
    choices: tuple[str, ...]
    right: bool
    variable: str
    networks: Mapping[str, str]


def _libraries(pairs: Sequence[_Pair], known: Version | None) -> tuple[_Library, ...]:
    network = _one_network(pairs)
    nccl, ucx = dict[str, str](), {"UCX_IB_ROCE_SUBNETS": str(network)} if network else {}
    taken = [gid_index(rail.port, known or SKIPS_HOLES) for rail, _ in pairs]
    wanted = [gid.index for _, gid in pairs]
    if network and (known or AUTOMATIC) >= AUTOMATIC and None not in taken:
        nccl = {"NCCL_IB_ADDR_RANGE": str(network)}
        nccl |= {"NCCL_IB_ADDR_FAMILY": "AF_INET6"} if network.version == IPV6 else {}
    # One value can't stand for several indexes, and only an old version needs one.
    right = taken == wanted and (known is not None or len(set(wanted)) > 1)
    name = f"NCCL {'.'.join(map(str, known or ()))}".strip()
    found = [ucx_index(rail.port) for rail, _ in pairs]
    return (
        _Library(name, NCCL_GID, right, "NCCL_IB_GID_INDEX", nccl),
        _Library("UCX", UCX_GID, found == wanted, "UCX_IB_GID_INDEX", ucx),
    )


def choose(rails: Sequence[Rail], own: Collection[str], nccl_version: str) -> GidChoice:
    """Decide how a worker's ports get the right GID index: one index, or one network, for all.

    Args:
        rails: its ports; InfiniBand and EFA need nothing.
        own: the names that the user has set there: whoever names devices or indexes answers for
            them.
        nccl_version: as ``version`` reads it; empty where it isn't known.
    """
    names = tuple(rail.name for rail in rails)
    found = [wanted(rail) for rail in rails if rail.transport is Transport.ROCE]
    if not found:
        return GidChoice((None,) * len(rails), {}, "only RoCE has an index to choose", (), names)
    pairs = [(rail, gid) for rail, (gid, _) in zip(rails, found, strict=True) if gid is not None]
    problems = [
        Problem("rdma-gid" if gid is None else "data-ambiguous", message)
        for gid, message in found
        if message
    ]
    values, reasons = dict[str, str](), list[str]()
    for library in _libraries(pairs, version(nccl_version)) if pairs else ():
        reason, variables = _way(library, pairs, own)
        if variables is None:
            problems.append(Problem("rdma-gid-index", reason))
        else:
            values |= variables
            reasons.append(reason)
    # A port without an entry would send with another's address.
    used = tuple(rail.name for rail, _ in pairs)
    entries = tuple(gid for gid, _ in found)
    return GidChoice(entries, values, "; ".join(reasons), tuple(problems), used)


def _way(
    library: _Library, pairs: Sequence[_Pair], own: Collection[str]
) -> tuple[str, Mapping[str, str] | None]:
    """Decide what leads a library to the wanted entries: the reason, and None where nothing can."""
    listed = ", ".join(f"{rail.name} {gid.index}" for rail, gid in pairs)
    if mine := next((name for name in library.choices if name in own), ""):
        return f"left to the user's {mine}", {}
    if library.right:
        return f"left to {library.name}, which finds the right entries ({listed})", {}
    if len({gid.index for _, gid in pairs}) == 1:
        reason = f"{library.name} would take another entry than this pod's ({listed})"
        return reason, {library.variable: str(pairs[0][1].index)}
    if library.networks:
        return f"{library.name} finds the entries ({listed}) by their network", library.networks
    reason = f"the ports need different GID indexes ({listed}), which {library.name} can't be told"
    return reason, None


def _one_network(pairs: Sequence[_Pair]) -> Network | None:
    """Find the smallest network that holds all of these addresses, and no other of the tables.

    What else is in it might stand before ours tomorrow: the tables change with other pods.
    """
    own = {item for _, gid in pairs if (item := address(gid)) is not None}
    every = (address(gid) for rail, _ in pairs for gid in rail.port.gids)
    network = smallest_network(own)
    if network is None or any(item in network for item in every if item and item not in own):
        return None
    return network
