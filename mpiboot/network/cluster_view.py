"""The data network of all workers side by side: one row a worker, and what is wrong with it. Pure.

Some rules check one worker, others all; whether a problem warns or stops is decided last.
Every finding names the change, with the lines of the pod's specification where that is it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Final, TypeAlias

from mpiboot.core.addresses import IPV6
from mpiboot.core.checks import WARNINGS, failed
from mpiboot.core.facts import Fabric, Gid, Link, PodFacts, PortState
from mpiboot.core.model import DataNetworkUse, Finding, Level
from mpiboot.core.settings import Settings
from mpiboot.core.wording import MAX_LINES, assigned, first_few, grouped, majority, size_of
from mpiboot.network import nccl
from mpiboot.network.records import (
    PKEY,
    Owned,
    Problem,
    Rail,
    Transport,
    WorkerNetwork,
    has_carrier,
    owned_in_pod,
    usable,
)

_IPAM: Final = (
    "host-local IPAM gives the same addresses on each node: use whereabouts, or a range for each "
    "node"
)


def shared_address(networks: Iterable[WorkerNetwork]) -> str:
    """Name the first two workers whose data links have one and the same IP or MAC address.

    Workers that have their control link in common are pods on one node's network.
    """
    owners: dict[str, WorkerNetwork] = {}
    for one in networks:
        for link in one.data:
            # Links of kind ipvlan have the MAC address of the link below them.
            mac = f"MAC address {link.hardware}" if link.kind != "ipvlan" and link.hardware else ""
            for own in filter(None, (*(str(item.ip) for item in usable(link)), mac)):
                other = owners.setdefault(own, one)
                if other.host != one.host and other.control != one.control:
                    return f"{other.host} and {one.host} both have {own} on the data network"
    return ""


# A worker's row; a cell is empty where there is nothing to say.
Row: TypeAlias = tuple[str, ...]
HEADINGS: Final = ("worker", "control", "data", "HCA", "state", "Gb/s", "MTU", "GID")
# In JSON.
NAMES: Final = ("worker", "control", "data", "hca", "state", "rate", "mtu", "gid")
_EMPTY: Final = ("", "", "", "", "")


def row(network: WorkerNetwork) -> Row:
    """Make a worker's row; what is equal for all of its ports stands once."""
    if network.facts is None:
        return network.host, "", f"not known: the worker {network.no_facts.value}", *_EMPTY
    rails = network.rails
    links = [rail.link for rail in rails if rail.link] or list(network.data)
    gids = network.gids.wanted if network.transport is Transport.ROCE else ()
    return (
        network.host,
        _shown(network.control),
        _span(map(_shown, network.data)) or network.transport.value,
        _span(rail.name for rail in rails),
        _once(rail.port.state.value or "-" for rail in rails),
        _once(f"{rail.port.rate:g}" for rail in rails if rail.port.rate),
        _once(str(link.mtu) for link in links),
        _once(str(gid.index) if gid else "-" for gid in gids),
    )


def _shown(link: Link | None) -> str:
    if link is None:
        return ""
    own = usable(link)
    return f"{link.name} {own[0].ip}" if own else link.name


def _span(words: Iterable[str]) -> str:
    """Write a list in one cell: more than two as the first, the last and how many."""
    listed = list(words)
    long = len(listed) > 2  # noqa: PLR2004 - two still fit
    return f"{listed[0]} .. {listed[-1]} ({len(listed)})" if long else ", ".join(listed)


def _once(words: Iterable[str]) -> str:
    listed = list(words)
    return listed[0] if len(set(listed)) == 1 else ",".join(listed)


def findings(
    networks: Sequence[WorkerNetwork],
    settings: Settings,
    users: Mapping[str, Owned],
) -> tuple[Finding, ...]:
    """Apply every rule to all workers: one finding a problem, whichever workers have it.

    Args:
        networks: all workers.
        settings: ``require`` makes most findings failures; ``off`` gives none.
        users: what the user has set for all ranks.
    """
    if settings.data_network is DataNetworkUse.OFF:
        return ()
    expected = settings.data_network is DataNetworkUse.REQUIRE or any(
        network.usable for network in networks
    )
    problems = (
        (problem, network.host)
        for network in networks
        for problem in dict.fromkeys(
            (
                *network.problems,
                *network.gids.problems,
                *_of_one(network, expected=expected),
                *(Problem("nccl-value", text) for text in _user_values(network, users)),
            )
        )
    )
    found = [_finding(problem, hosts, settings) for problem, hosts in grouped(problems).items()]
    found += _different(networks)
    if shared := shared_address(networks):
        found.append(_finding(Problem("data-networks", shared, _IPAM), (), settings))
    return tuple(found)


def level(check: str, settings: Settings, *, always: bool = False) -> Level:
    """Give the level of a problem of this row under the user's ``MPIBOOT_DATA_NETWORK``."""
    strict = settings.data_network is DataNetworkUse.REQUIRE and check not in WARNINGS
    return Level.FAIL if strict or always else Level.WARN


def _finding(problem: Problem, hosts: Sequence[str], settings: Settings) -> Finding:
    known = level(problem.check, settings, always=problem.always)
    return failed(problem.check, problem.message, hint=problem.hint, level=known).on(hosts)


def _different(networks: Sequence[WorkerNetwork]) -> Iterator[Finding]:
    """Compare the workers' GPUs, RDMA ports and MTUs: a mixed set may be meant.

    Where one lacks RDMA or has another kind, other findings name it, and its rails follow from it.
    """
    alike = len({one.transport for one in networks if one.facts}) == 1

    def described(network: WorkerNetwork, gpus: int) -> str:
        entries = [nccl.address(gid) for gid in network.gids.wanted if gid is not None]
        # A GID of one version does not talk to one of the other.
        family = " by IPv6" if any(item and item.version == IPV6 for item in entries) else ""
        ports = f", {len(network.rails)} RDMA ports{family}" if alike else ""
        links = (network.control, *(network.data if alike else ()))
        mtus = ", ".join(dict.fromkeys(str(link.mtu) for link in links if link)) or "not known"
        return f"{gpus} GPUs{ports}, MTU {mtus}"

    found = majority(
        {one.host: described(one, one.facts.gpus.count) for one in networks if one.facts}
    )
    if found:
        yield failed("workers-differ", f"workers differ: {found.message}", level=Level.WARN)


# Below this, memory registration fails soon; container runtimes give 64 KiB or 8 MiB.
_MIN_MEMLOCK_BYTES: Final = 256 << 20
_DEFAULT_SHM_BYTES: Final = 64 << 20  # a container's default
_IPC_LOCK: Final = 1 << 14
_HOST_USERS: Final = (
    "spec: {hostUsers: true} beside securityContext: {capabilities: {add: [IPC_LOCK]}}; "
    "or raise the container runtime's limit (LimitMEMLOCK=infinity)"
)


def _of_one(network: WorkerNetwork, *, expected: bool) -> Iterator[Problem]:
    """Apply the rules that check one worker.

    Args:
        network: its networks.
        expected: whether it should have RDMA: the user requires it, or another worker has it.
    """
    if network.facts is None:
        message = f"it {network.no_facts.value}, so its data network is not known"
        yield Problem("data-facts", message)
        return
    for rail in network.rails:
        yield from _port(rail)
    if network.unseen and not network.usable:
        yield Problem("data-facts", f"its RDMA is not known: {network.unseen}", "")
    elif not network.rails:
        yield from _no_rails(network, network.facts.fabric, expected=expected)
    yield from _limits(network, network.facts)
    yield from _shared_subnets(network)
    if network.control is None and network.facts.links:
        yield Problem("control-link", "no link of its own has the control address")


def _port(rail: Rail) -> Iterator[Problem]:
    device, port = rail.device, rail.port
    if not device.opens:
        message = f"device {device.name} does not open ({device.open_error})"
        yield Problem("rdma-node", message)
    elif device.library_error:
        yield Problem("rdma-library", f"device {device.name}: {device.library_error}")
    if port.state is not PortState.ACTIVE and not device.efa:
        message = f"port {rail.name} is {port.state.value or 'in an unknown state'}, not ACTIVE"
        if port.state in (PortState.INIT, PortState.ARMED):
            message += ": the subnet manager has not brought it up"
        yield Problem("rdma-port", message)
    if rail.link is not None and not has_carrier(rail.link):
        yield Problem("rdma-port", f"link {rail.link.name} of {rail.name} has no carrier")


def _no_rails(network: WorkerNetwork, fabric: Fabric, *, expected: bool) -> Iterator[Problem]:
    """Report why there is no RDMA where it is expected, or something hints at it."""
    there = {device.pci for device in fabric.devices}
    if bare := [pci for pci in fabric.functions if pci not in there]:
        message = f"the device plugin gave PCI function {', '.join(bare)}, without an RDMA device"
        hint = "switch RDMA on for these functions (SriovNetworkNodePolicy: `isRdma: true`)"
        yield Problem("rdma-missing", message, hint)
    elif network.foreign:
        names = first_few(network.foreign)
        message = f"RoCE ports open ({names}), but none of them has a link in this pod"
        yield Problem("rdma-missing", message)
    elif expected:
        message = f"no RDMA device is this pod's, of {len(fabric.devices)} that can be seen"
        yield Problem("rdma-missing", message)


def _limits(network: WorkerNetwork, facts: PodFacts) -> Iterator[Problem]:
    who = facts.identity
    # The kernel requires it in the node's user namespace (ib_umem_get).
    may_exceed = who.capabilities & _IPC_LOCK and not who.own_users
    if network.rails and 0 <= facts.memlock < _MIN_MEMLOCK_BYTES and not may_exceed:
        why = " (a user other than root does not get added capabilities)" if who.uid else ""
        hint = None
        if who.own_users:
            why = " of the node (the pod has users of its own: hostUsers is false)"
            hint = _HOST_USERS
        message = f"memory lock limit {size_of(facts.memlock)}, without IPC_LOCK{why}"
        yield Problem("memlock", message, hint)
    if 0 < facts.shm <= _DEFAULT_SHM_BYTES and network.slots > 1:
        message = f"/dev/shm has {facts.shm >> 20} MiB for {network.slots} ranks"  # noqa: S108 - no file is made
        yield Problem("shm", message)


def _shared_subnets(network: WorkerNetwork) -> Iterator[Problem]:
    """Find links that share a subnet: answers may leave by the other one."""
    links = filter(None, (network.control, *network.data))
    found = set[str]()
    pairs = combinations([(link, item) for link in links for item in usable(link)], 2)
    for (link, one), (other, two) in pairs:
        shared = link is not other and one.network.overlaps(two.network)
        if shared and one.network.prefixlen < one.max_prefixlen and link.name not in found:
            found.add(link.name)
            check = "control-subnet" if link is network.control else "data-subnet"
            message = f"{link.name} ({one}) and {other.name} ({two}) are in one subnet"
            yield Problem(check, message)


def _user_values(network: WorkerNetwork, users: Mapping[str, Owned]) -> Iterator[str]:
    """Check the user's own values with the rules of NCCL and UCX; they are never changed.

    What is set for all ranks comes before what the worker's pod sets.
    """
    facts = network.facts
    if facts is None:
        return
    known = {**owned_in_pod(facts), **users}
    values = {name: own.value or "" for name, own in known.items()}
    for name, there in (
        ("NCCL_SOCKET_IFNAME", [link.name for link in facts.links if link.addresses]),
        ("NCCL_IB_HCA", [device.name for device in facts.fabric.devices]),
    ):
        value = values.get(name, "")
        # Loopback reaches no other worker: it counts where it is named, not where it is left over.
        left = [item for item in there if item != "lo" or not value.startswith("^")]
        if value and there and not nccl.matching(value, left):
            yield f"{assigned(name, value)} fits nothing here (there are {first_few(there)})"
    for name in ("NCCL_IB_GID_INDEX", "UCX_IB_GID_INDEX"):
        yield from _gid_index(network, name, values.get(name, ""))
    yield from _partition(network, values.get("NCCL_IB_PKEY", ""), values.get("UCX_IB_PKEY", ""))
    off = values.get("NCCL_IB_DISABLE", "").strip() == "1"
    if off and network.usable and network.transport is not Transport.EFA:
        ports = first_few(rail.name for rail in network.rails)
        yield f"NCCL_IB_DISABLE=1 keeps NCCL from {ports}, which could carry its data"


def _gid_index(network: WorkerNetwork, name: str, text: str) -> Iterator[str]:
    """Compare the user's GID index with each RoCE port's table."""

    def shown(gid: Gid) -> str:
        return f"{gid.kind.value} with {nccl.address(gid)}"

    if not text.isdecimal() or network.transport is not Transport.ROCE:
        return
    for rail, own in zip(network.rails, network.gids.wanted, strict=True):
        entry = next((gid for gid in rail.port.gids if str(gid.index) == text), None)
        if entry is None and rail.port.gids:
            wrong = f"{rail.name} has no entry {text}"
        elif entry and own and shown(entry) != shown(own):
            wrong = f"entry {text} of {rail.name} is {shown(entry)}"
        else:
            continue
        yield f"{name}={text}: {wrong}{f'; {shown(own)} is {own.index}' if own else ''}"


def _partition(network: WorkerNetwork, index: str, key: str) -> Iterator[str]:
    """Compare the user's partition with each port's table: NCCL's is an index, UCX's a key."""
    for rail in network.rails:
        keys = {str(at): own & 0x7FFF for at, own in enumerate(rail.port.pkeys) if own}
        has = f"{rail.name} has {first_few(f'{own:#x} at {at}' for at, own in keys.items())}"
        if keys and index.isdecimal() and index not in keys:
            yield f"NCCL_IB_PKEY={index}: {has}"
        if keys and PKEY.fullmatch(key) and int(key, 16) not in keys.values():
            yield f"UCX_IB_PKEY={key}: {has}"


# Behind a link's name: `net1 10.0.0.1 .. net8 10.0.7.1 (8)`.
_ADDRESS: Final = re.compile(r" [0-9a-f]+[.:][0-9a-f.:]+")


# Of very many workers one row a kind is shown. The whole is in ``plan --json``.
def merge_rows(table: Sequence[Row]) -> tuple[Row, ...]:
    """Make one row of those that differ by name and address alone, the rarest kinds first."""
    if len(table) <= MAX_LINES:
        return tuple(table)

    kinds = grouped(
        ((_ADDRESS.sub("", control), _ADDRESS.sub("", data), *ports), host)
        for host, control, data, *ports in table
    )
    rows = sorted(kinds.items(), key=lambda item: len(item[1]))
    shown = [(_names(hosts), *kind) for kind, hosts in rows[:MAX_LINES]]
    if rest := sum(len(hosts) for _, hosts in rows[MAX_LINES:]):
        shown.append((f"{rest} more, of other kinds", "", "", *_EMPTY))
    return tuple(shown)


def variable_lines(per_host: Mapping[str, Mapping[str, str]]) -> list[tuple[str, str, str]]:
    """List hosts, name and value of the variables of single hosts: a line for each value."""
    pairs = [(item, host) for host, mine in per_host.items() for item in mine.items()]
    if len(per_host) <= MAX_LINES:
        return [(host, *item) for item, host in pairs]
    listed = sorted(grouped(pairs).items(), key=lambda entry: -len(entry[1]))
    lines = [(_names(hosts), *item) for item, hosts in listed[:MAX_LINES]]
    if more := len(listed) - len(lines):
        lines.append((f"{more} more values", "", ""))
    return lines


def _names(hosts: Sequence[str]) -> str:
    return hosts[0] if len(hosts) == 1 else f"{len(hosts)}: {first_few(hosts, 3)}"
