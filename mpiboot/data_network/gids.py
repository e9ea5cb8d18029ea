"""Which entry of a RoCE port's GID table is ours, and how NCCL and UCX are brought to use it. Pure.

Each library's own choice is simulated on the table first: nothing is set where it is right.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from mpiboot.addresses import IPV4, IPV6, Network, smallest_network
from mpiboot.data_network import nccl, rails
from mpiboot.data_network.records import GidChoice, Problem, Rail, Transport
from mpiboot.fabric import Gid, GidType, RdmaPort
from mpiboot.network.link_addresses import usable

_UPGRADE: Final = "use NCCL 2.21 or later"
_SUBNET: Final = "give the rails a network that the node's own addresses are not in"
_AUTO: Final = nccl.SKIPS_HOLES
# Who sets one of these has chosen devices or entries himself.
_OWN_NCCL: Final = (
    "NCCL_IB_HCA",
    "NCCL_IB_GID_INDEX",
    "NCCL_IB_ADDR_RANGE",
    "NCCL_IB_ADDR_FAMILY",
    "NCCL_IB_DISABLE",
)
_OWN_UCX: Final = ("UCX_NET_DEVICES", "UCX_TLS", "UCX_IB_GID_INDEX", "UCX_IB_ROCE_SUBNETS")


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
            if rails.is_entry_of(gid, rail.link) and nccl.address(gid) == item.ip
        ]
        if found:
            indexes = ", ".join(str(gid.index) for gid in found)
            twice = (
                f"entries {indexes} of {rail.name} are all {item.ip} on a link named "
                f"{rail.link.name}: one of them is another pod's"
            )
            return found[0], twice if len(found) > 1 else ""
    kinds = sorted({gid.kind.value or "unknown" for gid in rail.port.gids}) or ["nothing"]
    return None, (
        f"the GID table of {rail.name} has no RoCE v2 entry for "
        f"{', '.join(str(item.ip) for item in own)} (it has {', '.join(kinds)})"
    )


def ucx_index(port: RdmaPort, inside: Network | None = None) -> int | None:
    """Simulate UCX's own choice: by RoCE version and family, the first entry of the best sort."""

    def rank(gid: Gid) -> tuple[int, int, int] | None:
        found = nccl.address(gid)
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


def choose(found: Sequence[Rail], nccl_version: str, own: Collection[str] = ()) -> GidChoice:
    """Decide how a worker's ports get the right GID index.

    Args:
        found: the worker's rails; InfiniBand and EFA need nothing.
        nccl_version: as ``nccl.version`` reads it; empty where it isn't known.
        own: names that the user has set; whoever names devices or indexes answers for them.
    """
    if not found or found[0].transport is not Transport.ROCE:
        return GidChoice((None,) * len(found), {}, "only RoCE has an index to choose")
    pairs = [wanted(rail) for rail in found]
    entries = tuple(gid for gid, _ in pairs)
    problems = [
        Problem("rdma-gid" if gid is None else "data-ambiguous", said)
        for gid, said in pairs
        if said
    ]
    ours = [gid for gid in entries if gid is not None]
    if len(ours) < len(entries):
        because = "left alone: not every port has an entry for an address of this pod"
        return GidChoice(entries, {}, because, tuple(problems))
    reasons: list[str] = []
    for_nccl = _nccl(found, ours, nccl.version(nccl_version), reasons)
    for_ucx = _ucx(found, ours, reasons)
    asked = [
        (for_nccl, _OWN_NCCL),
        (for_ucx, _OWN_UCX),
    ]
    able = []
    for made, names in asked:
        mine = next((name for name in names if name in own), "")
        if isinstance(made, Problem) and mine:
            reasons.append(f"left to the user's {mine}")
        elif isinstance(made, Problem):
            problems.append(made)
        able.append(bool(mine) or not isinstance(made, Problem))
    values = {
        name: value
        for made, _ in asked
        if not isinstance(made, Problem)
        for name, value in made.items()
    }
    return GidChoice(entries, values, "; ".join(reasons), tuple(problems), *able)


def _nccl(
    found: Sequence[Rail],
    ours: Sequence[Gid],
    version: nccl.Version | None,
    reasons: list[str],
) -> dict[str, str] | Problem:
    """Find what makes NCCL take these entries, from the least to the most that is set."""
    indexes = [gid.index for gid in ours]
    listed = ", ".join(f"{rail.name} {index}" for rail, index in zip(found, indexes, strict=True))

    def chooses(*, family: int = 4, inside: Network | None = None) -> bool:
        return all(
            nccl.gid_index(rail.port, version or _AUTO, family=family, inside=inside) == index
            for rail, index in zip(found, indexes, strict=True)
        )

    name = ".".join(map(str, version)) if version else ""
    if version and chooses():
        reasons.append(f"left to NCCL, which finds the right one ({listed})")
        return {}
    why = f"NCCL {name} would take another" if version else "NCCL's version is not known"
    if len(set(indexes)) == 1:
        reasons.append(f"index {indexes[0]} holds this pod's address; {why}")
        return {"NCCL_IB_GID_INDEX": str(indexes[0])}
    if chooses():
        # One value can't tell them all, and only an old version needs to be told.
        reasons.append(f"left to NCCL, which finds the right ones from 2.21 on ({listed})")
        return {}
    network = _one_network(found, ours)
    old = version is not None and version < nccl.AUTOMATIC
    if network is not None and not old:
        family = {"NCCL_IB_ADDR_FAMILY": "AF_INET6"} if network.version != IPV4 else {}
        if family and chooses(family=network.version):
            reasons.append(
                f"the ports' indexes differ ({listed}); NCCL finds them by the IP version"
            )
            return family
        if chooses(family=network.version, inside=network):
            reasons.append(
                f"the ports' indexes differ ({listed}); NCCL finds them by their network, {network}"
            )
            return {**family, "NCCL_IB_ADDR_RANGE": str(network)}
    reasons.append(f"not settled: {listed}")
    return Problem(
        "rdma-gid-index",
        f"the ports need different GID indexes ({listed}), which NCCL {name} can't be told: "
        + ("it needs 2.21 or later" if old else "no network holds their addresses alone")
        + "; none of them is used",
        f"{_UPGRADE if old else _SUBNET}; or keep to one: MPIBOOT_RDMA_DEVICE={found[0].name}",
    )


def _ucx(
    found: Sequence[Rail], ours: Sequence[Gid], reasons: list[str]
) -> dict[str, str] | Problem:
    """Find what makes UCX take these entries."""
    indexes = [gid.index for gid in ours]
    if [ucx_index(rail.port) for rail in found] == indexes:
        return {}
    if len(set(indexes)) == 1:
        reasons.append(f"UCX would take another than {indexes[0]}")
        return {"UCX_IB_GID_INDEX": str(indexes[0])}
    network = _one_network(found, ours)
    if network is not None and [ucx_index(rail.port, network) for rail in found] == indexes:
        reasons.append(f"UCX finds them by {network} (from 1.18 on)")
        return {"UCX_IB_ROCE_SUBNETS": str(network)}
    return Problem(
        "rdma-gid-index",
        f"UCX can't be told these ports' GID indexes ({', '.join(map(str, indexes))}) by one "
        "value; it gets none of them",
        f"{_SUBNET}; or keep to one: MPIBOOT_RDMA_DEVICE={found[0].name}",
    )


def _one_network(found: Sequence[Rail], ours: Sequence[Gid]) -> Network | None:
    """Find the smallest network that holds all of these addresses, and no other of the tables.

    What else is in it might stand before ours tomorrow: the tables change with other pods.
    """
    own = {item for gid in ours if (item := nccl.address(gid)) is not None}
    every = (nccl.address(gid) for rail in found for gid in rail.port.gids)
    network = smallest_network(own)
    if network is None or any(item in network for item in every if item and item not in own):
        return None
    return network
