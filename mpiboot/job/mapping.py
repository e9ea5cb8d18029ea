"""How an mpirun deals ranks to hosts: the arithmetic of each mapping policy.

Measured against the job maps of Open MPI 4.1.4 and 5.0.11. Pure; who asks, and what is odd in
the answer, is ``placement``'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mpiboot.job.mpirun_options import HYDRA
from mpiboot.model import Host

# Policies that fill one host before the next, whatever they do inside a host.
_FILLING: Final = frozenset(
    {"", "slot", "core", "hwthread", "socket", "package", "numa", "l1cache", "l2cache", "l3cache"}
)
_HARMLESS: Final = frozenset(
    {"", "oversubscribe", "nooversubscribe", "nolocal", "pe=1", "inherit", "noinherit"}
)
_PPR: Final = 3


class RefusedError(Exception):
    """There is no room for ``asked`` ranks; the message goes on from "N ranks are asked for"."""

    def __init__(self, asked: int, offered: str) -> None:
        super().__init__(offered)
        self.asked = asked


class UnclearError(Exception):
    """The answer depends on something that isn't known here; the message says on what."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One question: ``np`` ranks (None: as many as fit) over hosts, by a policy as written."""

    hosts: tuple[Host, ...]
    np: int | None
    policy: str
    per_node: int | None
    oversubscribe: bool
    family: str

    @property
    def slots(self) -> int:
        """What the hosts offer in all."""
        return sum(host.slots for host in self.hosts)

    def refused(self, asked: int) -> RefusedError:
        """Refuse because the slots of all hosts are too few."""
        one = len(self.hosts) == 1
        hosts = "1 host offers" if one else f"{len(self.hosts)} hosts offer"
        return RefusedError(asked, f", and {hosts} {self.slots} slot{'s'[: self.slots != 1]}")


def _filled(slots: Sequence[int], np: int) -> list[int]:
    """Fill a host before the next; what is over the slots is spread evenly, first hosts first."""
    counts: list[int] = []
    left = np
    for room in slots:
        counts.append(min(room, left))
        left -= counts[-1]
    more, rest = divmod(left, len(slots))
    return [count + more + (at < rest) for at, count in enumerate(counts)]


def _dealt(slots: Sequence[int], np: int) -> list[int]:
    """Deal ranks host by host in rounds; a host that is full is left out of the next round."""
    low, high = 0, max(slots)
    while low < high:  # the number of whole rounds
        middle = (low + high + 1) // 2
        if sum(min(room, middle) for room in slots) <= np:
            low = middle
        else:
            high = middle - 1
    counts = [min(room, low) for room in slots]
    left = np - sum(counts)
    for at, room in enumerate(slots):
        if left and counts[at] < room:
            counts[at] += 1
            left -= 1
    return counts


def _dealt_by_orte(slots: Sequence[int], np: int) -> list[int]:
    """Deal the average to every host in each pass; who is found full is out of later averages.

    A host that can't take its part of the remainder uses it up all the same, so the last hosts
    may get fewer than an even deal would give them.
    """
    counts = [0] * len(slots)
    live: Sequence[int] = range(len(slots))
    left = np
    while left:
        average, extra = divmod(left, len(live))
        if not average:
            average, extra = 1, 0
        taking = [at for at in live if counts[at] < slots[at]]
        for turn, at in enumerate(taking):
            count = min(average + (turn < extra), slots[at] - counts[at], left)
            counts[at] += count
            left -= count
        live = taking
    return counts


def _by_node(ask: Ask, np: int) -> list[int]:
    # 5.0 forgets the slots as soon as oversubscription is allowed, 4.1 only when it is needed.
    if ask.oversubscribe and (ask.family == "openmpi5" or np > ask.slots):
        more, rest = divmod(np, len(ask.hosts))
        return [more + (at < rest) for at in range(len(ask.hosts))]
    deal = _dealt if ask.family == "openmpi5" else _dealt_by_orte
    return deal([host.slots for host in ask.hosts], np)


def _per_host(ask: Ask, each: int) -> list[int]:
    """Put the same number on every host, in order, until the ranks are used up."""
    most = each * len(ask.hosts)
    np = most if ask.np is None else ask.np
    if np > most:
        raise RefusedError(np, f", and {len(ask.hosts)} hosts at {each} each hold {most}")
    if not ask.oversubscribe and np > ask.slots:
        raise ask.refused(np)
    counts: list[int] = []
    left = np
    for host in ask.hosts:
        count = min(each, left)
        if count > host.slots and not ask.oversubscribe:
            if ask.family != "openmpi5":
                raise RefusedError(count, f" on {host.name}, which has {host.slots} slots")
            count = host.slots  # 5.0 goes on at the next host
        counts.append(count)
        left -= count
    if left:
        raise RefusedError(np, f", and at most {each} a host {np - left} fit")
    return counts


def _ppr(policy: str) -> tuple[int, list[str]]:
    """Read ``ppr:N:node`` and its modifiers; other resources depend on the hosts' cores."""
    parts = policy.split(":")
    each = parts[1] if len(parts) >= _PPR and parts[2] == "node" else ""
    if not each.isascii() or not each.isdigit() or not int(each):
        raise UnclearError(f"mapping {policy} depends on what the hosts are made of")
    return int(each), parts[_PPR:]


def _open_mpi(ask: Ask) -> list[int]:
    policy = ask.policy.lower().replace(",", ":")
    word, *modifiers = policy.split(":")
    per_node = ask.per_node
    if word == "ppr":
        per_node, modifiers = _ppr(policy)
    odd = [item for item in modifiers if item not in _HARMLESS]
    if odd and not (odd == ["span"] and word in ("slot", "node")):  # no difference for these
        raise UnclearError(f"mapping modifier {':'.join(odd)} is not computed")
    if per_node is not None:
        return _per_host(ask, per_node)
    np = ask.slots if ask.np is None else ask.np
    if np > ask.slots and not ask.oversubscribe:
        raise ask.refused(np)
    if word == "node":
        return _by_node(ask, np)
    if word not in _FILLING or (word not in ("", "slot") and ask.oversubscribe):
        raise UnclearError(f"mapping by {word} depends on what the hosts are made of")
    return _filled([host.slots for host in ask.hosts], np)


def _hydra(ask: Ask) -> list[int]:
    """Fill hosts in blocks, and begin again at the first when there are more ranks."""
    blocks = [host.slots if ask.per_node is None else ask.per_node for host in ask.hosts]
    room = sum(blocks)
    np = room if ask.np is None else ask.np
    if not room:
        raise ask.refused(np)
    rounds, left = divmod(np, room)
    counts = []
    for block in blocks:
        counts.append(rounds * block + min(block, left))
        left -= min(block, left)
    return counts


def counts(ask: Ask) -> list[int]:
    """Compute the number of ranks of each host, in the order of ``ask.hosts``.

    Raises:
        RefusedError: this mpirun would refuse for lack of room.
        UnclearError: the mapping depends on something that isn't known.
    """
    if not ask.hosts:
        raise UnclearError("there are no hosts")
    return _hydra(ask) if ask.family in HYDRA else _open_mpi(ask)
