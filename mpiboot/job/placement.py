"""Which hosts an mpirun line uses, which of them get a rank, and what is odd in that. Pure.

Computed are the simple forms alone: by slot, by node, a number per host. Everything else is left
to mpirun, and the plan says so; measured against the job maps of Open MPI 4.1.4 and 5.0.11.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mpiboot.core.checks import failed
from mpiboot.core.model import Finding, Host, Level
from mpiboot.core.wording import counted, first_few
from mpiboot.job.dialect import Dialect
from mpiboot.job.names import is_local, same_host
from mpiboot.job.user_line import UserLine

# Mappings that fill one host before the next, whatever they do inside a host.
_FILLING: Final = frozenset(
    {"", "core", "hwthread", "socket", "package", "numa", "l1cache", "l2cache", "l3cache"}
)
_KNOWN_MODIFIERS: Final = frozenset({"", "oversubscribe", "nooversubscribe"})


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the ranks go.

    ``idle`` are hosts without a rank; ``total`` is the number of ranks, None where mpirun finds
    it. ``left`` is what leaves the placement to mpirun: ``idle`` is not known then, nor ``first``,
    the host of rank 0 where there are several.
    """

    idle: tuple[str, ...] = ()
    total: int | None = None
    left: str = ""
    findings: tuple[Finding, ...] = ()
    first: str = ""


@dataclass(frozen=True, slots=True)
class _Spread:
    """How ranks are spread over hosts: one to each in turn, or a host filled before the next.

    A host is filled with ``per_node`` ranks, or with as many as it has slots. ``asked`` are the
    user's own words for it; ``left`` is the mapping where it is none of these forms.
    """

    by_node: bool
    per_node: int | None
    oversubscribe: bool
    asked: str
    left: str


def _key(name: str) -> str:
    return name.removesuffix(".").lower()


def _is_here(name: str, local: Collection[str]) -> bool:
    return is_local(name, "") or any(same_host(name, own) for own in local)


def chosen(hosts: Sequence[Host], line: UserLine) -> tuple[Host, ...]:
    """Return the hosts that a line uses: those of ``-H`` in its order, else the hostfile's.

    ``-H`` decides the slots too (``name:N``, one for a bare name, repeated names added up), even
    where the hostfile says otherwise, and a name that the hostfile lacks is used all the same.
    """
    if not line.hosts:
        return tuple(hosts)
    known = {_key(host.name): host for host in hosts}
    picked: dict[str, Host] = {}
    for spec in line.hosts:
        key = _key(spec.name)
        if key in picked:
            picked[key] = replace(picked[key], slots=picked[key].slots + spec.slots)
        else:
            base = known.get(key, Host(spec.name))
            picked[key] = replace(base, slots=spec.slots, slots_given=True)
    return tuple(picked.values())


def daemons(
    hosts: Sequence[Host], line: UserLine, row: Dialect, placed: Placement, local: Collection[str]
) -> tuple[str, ...]:
    """Name the remote hosts for which mpirun must start a launch agent.

    Open MPI starts a daemon on every host of the hostfile after the ``-H`` filter, with ``-n 1``
    too; Hydra only where it puts ranks. ``local`` are the names of this pod.

    Returns:
        Empty too where it can't be told: an option chooses hosts in a way not computed here
        (``line.moves_hosts``), or the part of the line that wasn't read may do so.
    """
    if line.moves_hosts or line.may_hide_hosts:
        return ()
    without = frozenset(() if row.daemon_without_ranks else placed.idle)
    names = (host.name for host in chosen(hosts, line))
    return tuple(name for name in names if name not in without and not _is_here(name, local))


def _spread(line: UserLine, row: Dialect, policy: str, *, over: bool) -> _Spread:
    """Settle which mapping counts, the line's or else the environment's, and read it."""
    text, asked = line.map_by, line.mapped_by if line.policy or line.per_node else policy
    if not line.policy and (row.oversubscribes_by_mapping or not text):
        text = policy
        over = over and not (row.oversubscribes_by_mapping and policy)
    word, *rest = text.lower().replace(",", ":").split(":")
    over = over or "oversubscribe" in rest
    per_node = line.per_node
    known = word in _FILLING or word in ("slot", "node")
    if word == "ppr":
        each, resource, *rest = [*rest, "", ""]
        known = resource == "node" and each.isdecimal() and int(each) > 0
        per_node = int(each) if known else None
    inside = word in _FILLING and word and over  # then it depends on what the hosts are made of
    known = known and not inside and _KNOWN_MODIFIERS.issuperset(rest)
    by_node = word == "node" and per_node is None
    return _Spread(by_node, per_node, over, asked, "" if known else f"the mapping {text}")


def _left_to_mpirun(line: UserLine) -> str:
    """Say what of a line leaves its placement to mpirun, apart from the mapping; empty: nothing."""
    if line.unknown:
        return f"the line from {line.unknown} on"
    if len(line.hostfiles) > 1:
        return "several programs with hostfiles of their own"
    if len(line.apps) > 1 and (line.hosts or line.np is None):
        return "several programs with hosts or numbers of their own"
    return ", ".join((*line.moves_hosts, *line.moves_ranks))


def place(
    hosts: Sequence[Host],
    line: UserLine,
    row: Dialect,
    *,
    np: int | None,
    oversubscribe: bool = False,
    local: Collection[str] = (),
    policy: str = "",
) -> Placement:
    """Tell which hosts get a rank, and whether there is room.

    Args:
        hosts: the hostfile's hosts.
        line: what the user's line says.
        row: the MPI that reads it.
        np: the ranks asked for; None where they follow from the line or the slots.
        oversubscribe: more ranks than slots are allowed, by the line or by a setting.
        local: names of this pod; Open MPI 4.1 puts its own host first, wherever it stands.
        policy: the mapping that the user's environment sets.
    """
    used = chosen(hosts, line)
    if row.own_host_first:
        used = tuple(sorted(used, key=lambda host: not _is_here(host.name, local)))
    said = (*_several_programs(line, row), *_filter_said(hosts, used, line))
    spread = _spread(line, row, policy, over=oversubscribe or line.oversubscribe)
    left = _left_to_mpirun(line) or spread.left
    only = used[0].name if len(used) == 1 and not line.moves_hosts and not line.unknown else ""
    if left:
        return Placement(total=np, left=left, findings=said, first=only)
    each = spread.per_node
    slots = sum(host.slots for host in used)
    total = np if np is not None else each * len(used) if each else slots
    offered = ""
    if row.wraps_around:
        pass
    elif each and total > each * len(used):
        offered = f"and {len(used)} hosts at {each} each hold {each * len(used)}"
    elif total > slots and not spread.oversubscribe:
        verb = "offers" if len(used) == 1 else "offer"
        offered = f"and {counted(len(used), 'host')} {verb} {counted(slots, 'slot')}"
    if offered:
        found = _too_few(total, offered, line, row)
        return Placement(total=total, findings=(*said, found), first=used[0].name)
    idle, small = _idle(used, spread, total, over=spread.oversubscribe or row.wraps_around)
    if small:
        left = f"{spread.asked}, where {small.name} has {counted(small.slots, 'slot')}"
        return Placement(total=np, left=left, findings=said)
    if idle:
        said = (*said, _said_idle(idle, used, spread, total, row))
    return Placement(idle, total, "", said, used[0].name)


def _idle(
    used: Sequence[Host], spread: _Spread, left: int, *, over: bool
) -> tuple[tuple[str, ...], Host | None]:
    """Find the hosts without a rank; or the first that lacks slots for its ranks, unless ``over``.

    ``left`` is the number of ranks.
    """
    if spread.by_node:
        return tuple(host.name for host in used[left:]), None
    for at, host in enumerate(used):
        if not left:
            return tuple(host.name for host in used[at:]), None
        count = min(spread.per_node or host.slots, left)
        if count > host.slots and not over:
            return (), host
        left -= count
    return (), None


def can_tell(line: UserLine, row: Dialect, environ: Collection[str], path: str) -> bool:
    """Tell whether mpirun can be asked to write to a file which rank is where.

    Of a rank that ends badly Open MPI 5 tells no host on any other way than the job's stderr. The
    user's own options of that kind stay alone: given twice mpirun refuses them, and the variable
    gives way to the option. A comma would end the path.
    """
    if not row.rank_table or line.unknown or "," in path:
        return False
    names = [word.strip("-=") for word in row.rank_table]
    in_environ = any(names[0].replace("-", "_") in name for name in environ)
    return not in_environ and not set(names).intersection(line.given)


def _several_programs(line: UserLine, row: Dialect) -> Iterator[Finding]:
    """Judge a line with several programs, at which some MPIs fail."""
    if len(line.apps) > 1 and row.several_programs:
        yield replace(failed("several-programs", row.several_programs), level=Level.WARN)


def _filter_said(
    hosts: Sequence[Host], used: Sequence[Host], line: UserLine
) -> tuple[Finding, ...]:
    """Say what ``-H`` leaves out of the hostfile, and what it adds to it unverified."""
    if not line.hosts:
        return ()
    found = []
    known, kept = ({_key(host.name) for host in some} for some in (hosts, used))
    without = [host.name for host in hosts if _key(host.name) not in kept]
    if without:
        said = f"-H leaves out {len(without)} of {len(hosts)} hosts: {first_few(without)}"
        found.append(Finding("slots", Level.WARN, said))
    strays = [host.name for host in used if _key(host.name) not in known]
    if strays:
        said = f"-H names {first_few(strays)}, which the hostfile does not have"
        hint = "write the names as the hostfile has them"
        found.append(Finding("slots", Level.WARN, said, hint=hint))
    return tuple(found)


def _too_few(asked: int, offered: str, line: UserLine, row: Dialect) -> Finding:
    """Say what is asked, what is offered, and what to do: mpirun alone knows all that allows it."""
    own = "-n on the mpirun line" if line.np == asked else line.mapped_by
    by = f" ({own})" if own else ""
    slots = "; -H decides the slots" if line.hosts else ""
    return Finding(
        "slots",
        Level.WARN,
        f"{asked} ranks are asked for{by}, {offered}{slots}: {row.title} refuses more ranks than "
        "slots unless it is told to oversubscribe",
        hint="ask for fewer ranks, give the hosts more slots (slotsPerWorker of an MPIJob) or "
        "add workers; MPIBOOT_OVERSUBSCRIBE=true allows more ranks than slots",
    )


def _said_idle(
    idle: Sequence[str], used: Sequence[Host], spread: _Spread, total: int, row: Dialect
) -> Finding:
    """Name the hosts without a rank, and what leaves them out."""
    asked = f"{counted(total, 'rank')} asked for"
    because = f"the mapping {spread.asked!r}" if spread.asked else asked
    could_spread = not spread.asked and total >= len(used)
    said = f"{len(idle)} of {counted(len(used), 'host')} will get no rank: {first_few(idle)}"
    hint = f"{row.spread_option} gives every host a rank" if could_spread else ""
    return Finding("slots", Level.WARN, f"{said} ({because})", hint=hint)
