"""What NCCL and UCX do with a value or a GID table, and how they are brought to use ours. Pure.

NCCL's rules are from its sources (misc/utils.cc, net_ib.cc and net_ib/connect.cc) and from runs of
2.18.3, 2.21.5, 2.28.9, 2.30.7 and 2.32.3. Each library's own choice of an entry of a RoCE port's
GID table is simulated first: nothing is set where it is right.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from mpiboot.core.addresses import IPV4, IPV6, Address, Network, parse, smallest_network
from mpiboot.core.facts import Gid, GidType, PodFacts, RdmaPort
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
)
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


def conf_files(environ: Mapping[str, str], home: str) -> tuple[str, ...]:
    """List NCCL's own files, the strongest first; the environment comes before all of them."""
    return (environ.get("NCCL_CONF_FILE") or f"{home}/.nccl.conf", "/etc/nccl.conf")


def read_conf(text: str) -> dict[str, str]:
    """Read such a file: NAME=VALUE as it stands; of a name that stands twice the first counts."""
    lines = (line.partition("=") for line in reversed(text.split("\n")) if line[:1] != "#")
    return {name: value for name, equals, value in lines if equals and name.startswith("NCCL_")}


def names_there(facts: PodFacts) -> dict[str, list[str]]:
    """List the names of a pod's links and devices, by the variable that may name them."""
    return {
        "NCCL_SOCKET_IFNAME": [link.name for link in facts.links if link.addresses],
        "NCCL_IB_HCA": [device.name for device in facts.fabric.devices],
    }


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

    It ignores the link's name and the network namespace of an entry. Where nothing fits it
    stays at 0 silently.

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
    """Whether NCCL takes an entry as configured: 169.254 counts, fe80 does not."""
    return found is not None and not (found.version == IPV6 and found.is_link_local)


def _family(gid: Gid | None) -> int:
    """Give the family as NCCL does: whatever is no mapped IPv4 is IPv6, an empty slot too."""
    found = address(gid) if gid else None
    return found.version if found else IPV6


_Pair: TypeAlias = "tuple[Rail, Gid]"
_Set: TypeAlias = "tuple[dict[str, str], str]"  # variables, and why these
_UPGRADE: Final = "use NCCL 2.21 or later"
_SUBNET: Final = "give the rails a network that the node's own addresses are not in"
_AUTO: Final = SKIPS_HOLES
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


def ucx_index(port: RdmaPort, inside: Network | None = None) -> int | None:
    """Simulate UCX's own choice: by RoCE version and family, the first entry of the best sort."""

    def rank(gid: Gid) -> tuple[int, int, int] | None:
        found = address(gid)
        if found is None or (inside is not None and found not in inside):
            return None
        local = found.version == IPV6 and found.is_link_local
        return (
            gid.kind is not GidType.ROCE_V2,
            0 if found.version == IPV4 else 1 + local,
            gid.index,
        )

    ranks = [one for one in map(rank, port.gids) if one is not None]
    return min(ranks)[2] if ranks else None


def _libraries(
    pairs: Sequence[_Pair], known: Version | None
) -> Iterator[tuple[str, tuple[str, ...], _Set | None, str, str]]:
    """Give each library's name, the user's choices of it, what to set, why not, and a hint."""
    none = "no network holds their addresses alone"
    if known is not None and known < AUTOMATIC:
        why_not, hint = "it needs 2.21 or later", _UPGRADE
    else:
        why_not, hint = none, _SUBNET
    yield f"NCCL {_text(known)}".strip(), NCCL_GID, _nccl(pairs, known), why_not, hint
    yield "UCX", UCX_GID, _ucx(pairs), none, _SUBNET


def _text(known: Version | None) -> str:
    return ".".join(map(str, known or ()))


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
    for library, choices, chosen, why_not, hint in (
        _libraries(pairs, version(nccl_version)) if pairs else ()
    ):
        if mine := next((name for name in choices if name in own), ""):
            reasons.append(f"left to the user's {mine}")
        elif chosen is None:
            message = (
                f"the ports need different GID indexes ({_listed(pairs)}), which {library} "
                f"can't be told: {why_not}"
            )
            or_one = f"or keep to MPIBOOT_RDMA_DEVICE={pairs[0][0].name}"
            problems.append(Problem("rdma-gid-index", message, f"{hint}; {or_one}"))
        else:
            values |= chosen[0]
            reasons += filter(None, chosen[1:])
    # A port without an entry would send with another's address.
    used = tuple(rail.name for rail, _ in pairs)
    entries = tuple(gid for gid, _ in found)
    return GidChoice(entries, values, "; ".join(reasons), tuple(problems), used)


def _listed(pairs: Iterable[_Pair]) -> str:
    return ", ".join(f"{rail.name} {gid.index}" for rail, gid in pairs)


def _nccl(pairs: Sequence[_Pair], version: Version | None) -> _Set | None:
    """Find what makes NCCL take these entries, from the least to the most that is set."""
    indexes = {gid.index for _, gid in pairs}
    listed = _listed(pairs)

    def chooses(*, family: int = 4, inside: Network | None = None) -> bool:
        return all(
            gid_index(rail.port, version or _AUTO, family=family, inside=inside) == gid.index
            for rail, gid in pairs
        )

    # One value can't stand for several indexes, and only an old version needs one.
    if chooses() and (version or len(indexes) > 1):
        which = "one" if version else "ones from 2.21 on"
        return {}, f"left to NCCL, which finds the right {which} ({listed})"
    if len(indexes) == 1:
        (index,) = indexes
        why = f"NCCL {_text(version)} would take another"
        why = why if version else "NCCL's version is not known"
        return {"NCCL_IB_GID_INDEX": str(index)}, f"index {index} holds this pod's address; {why}"
    network = _one_network(pairs)
    if network is None or (version is not None and version < AUTOMATIC):
        return None
    family = {"NCCL_IB_ADDR_FAMILY": "AF_INET6"} if network.version != IPV4 else {}
    differ = f"the ports' indexes differ ({listed}); NCCL finds them by"
    if family and chooses(family=network.version):
        return family, f"{differ} the IP version"
    if chooses(family=network.version, inside=network):
        return {**family, "NCCL_IB_ADDR_RANGE": str(network)}, f"{differ} their network, {network}"
    return None


def _ucx(pairs: Sequence[_Pair]) -> _Set | None:
    """Find what makes UCX take these entries."""
    indexes = [gid.index for _, gid in pairs]
    if [ucx_index(rail.port) for rail, _ in pairs] == indexes:
        return {}, ""
    if len(set(indexes)) == 1:
        return {"UCX_IB_GID_INDEX": str(indexes[0])}, f"UCX would take another than {indexes[0]}"
    network = _one_network(pairs)
    if network is not None and [ucx_index(rail.port, network) for rail, _ in pairs] == indexes:
        return {"UCX_IB_ROCE_SUBNETS": str(network)}, f"UCX finds them by {network} (from 1.18 on)"
    return None


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
