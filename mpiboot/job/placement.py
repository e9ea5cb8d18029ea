"""Where an mpirun line puts its ranks, which daemons it starts, and what is odd in that.

What isn't known is said to be unknown. Pure: no mpirun is asked here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mpiboot.checks import failed
from mpiboot.job.mapping import Ask, RefusedError, UnclearError, counts
from mpiboot.job.mpirun_options import HYDRA
from mpiboot.job.names import is_local, same_host
from mpiboot.job.user_line import UserLine
from mpiboot.model import Finding, Host, Level

_ORTE: Final = ("openmpi4", "spectrum")
_SHOWN: Final = 5
_RUNTIME: Final = frozenset(("runtime-options", "output-proctable"))


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the ranks go.

    ``ranks`` has every host that the line uses, in mpirun's order; it is empty where mpirun
    would refuse (``findings`` say why) or where the placement isn't known (``unclear``).
    """

    ranks: tuple[tuple[str, int], ...]
    total: int | None
    unclear: str
    findings: tuple[Finding, ...]

    @property
    def idle(self) -> tuple[str, ...]:
        """Hosts without a rank."""
        return tuple(name for name, count in self.ranks if not count)


def _key(name: str) -> str:
    return name.removesuffix(".").lower()


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


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
        key, count = _key(spec.name), 1 if spec.slots is None else spec.slots
        if key in picked:
            picked[key] = replace(picked[key], slots=picked[key].slots + count)
        else:
            base = known.get(key, Host(spec.name))
            picked[key] = replace(base, slots=count, slots_given=True)
    return tuple(picked.values())


def outside(hosts: Sequence[Host], line: UserLine) -> tuple[str, ...]:
    """Name the hosts of ``-H`` that the hostfile lacks; mpirun would use them unverified."""
    known = {_key(host.name) for host in hosts}
    return tuple(host.name for host in chosen(hosts, line) if _key(host.name) not in known)


def daemons(hosts: Sequence[Host], line: UserLine, local: Collection[str]) -> tuple[str, ...]:
    """Name the remote hosts for which mpirun must start a launch agent.

    Open MPI starts a daemon on every host of the hostfile after the ``-H`` filter, with ``-n 1``
    too; Hydra only where it puts ranks. ``local`` are the names of this pod.

    Returns:
        Empty too where it can't be told: an option chooses hosts in a way not computed here
        (``line.launches``), or the part of the line that wasn't read may do so.
    """
    if line.launches or line.may_hide_hosts:
        return ()
    used = chosen(hosts, line)
    if line.family in HYDRA:
        busy = dict(place(hosts, line, np=line.np, family=line.family).ranks)
        used = tuple(host for host in used if busy.get(host.name, 1))
    return tuple(host.name for host in used if not _is_here(host.name, local))


def default_policy(family: str, *, oversubscribe: bool) -> str:
    """Return the mapping policy to set by environment where the line names none.

    Open MPI 5 takes policy and modifiers from one place: with ``slot`` in the environment an
    ``--oversubscribe`` on the line is ignored, and with nothing there it puts all ranks on the
    first host. So what the line asks must stand in the environment's value as well.
    """
    return "slot:oversubscribe" if oversubscribe and family == "openmpi5" else "slot"


def _asked(
    line: UserLine, used: tuple[Host, ...], np: int | None, family: str, policy: str, *, over: bool
) -> Ask:
    """Settle which policy counts: the line's, else the environment's."""
    written = line.map_by
    if not line.policy and (family not in _ORTE or not written):
        written = policy
        if family == "openmpi5" and policy:
            over = "oversubscribe" in policy.lower()
    return Ask(used, np, written, line.per_node, over, family)


def _unclear(line: UserLine, family: str) -> str:
    """Say what of a line keeps its placement from being computed; empty: nothing."""
    if line.unknown:
        return f"{line.because}, and what follows was not read"
    if line.launches or line.places:
        return f"{(*line.launches, *line.places)[0]} is not computed"
    if len(line.apps) > 1 and (line.hosts or line.np is None):
        return "several programs have hosts or numbers of their own"
    if family == "intel":
        return "Intel MPI takes the ranks of a host from variables too"
    return ""


def place(
    hosts: Sequence[Host],
    line: UserLine,
    *,
    np: int | None,
    family: str,
    oversubscribe: bool = False,
    local: Collection[str] = (),
    policy: str = "",
) -> Placement:
    """Compute a line's placement.

    Args:
        hosts: the hostfile's hosts.
        line: what the user's line says; an empty record where mpiboot writes it.
        np: the ranks asked for; None where they follow from the line or the slots.
        family: the MPI, as ``model.Mpi.family`` has it.
        oversubscribe: more ranks than slots are allowed, by the line or by a setting.
        local: names of this pod; Open MPI 4.1 puts its own host first, wherever it stands.
        policy: the mapping that the *user's* environment sets; where it and ``line.policy`` are
            empty the caller sets ``default_policy``.

    Open MPI 5 refuses some maps by node over uneven slots that are computed here: loudly, so
    no harm comes of it.
    """
    used = chosen(hosts, line)
    if line.no_local:
        used = tuple(host for host in used if not _is_here(host.name, local))
    if family in _ORTE:
        used = tuple(sorted(used, key=lambda host: not _is_here(host.name, local)))
    over = oversubscribe or line.oversubscribe
    ask = _asked(line, used, np, family, policy, over=over)
    said = _filter_said(hosts, line)
    unclear = _unclear(line, family)
    if not unclear:
        try:
            ranks = tuple(zip((host.name for host in used), counts(ask), strict=True))
        except UnclearError as why:
            unclear = str(why)
        except RefusedError as refused:
            return Placement((), np, "", (*said, _too_few(refused, line)))
        else:
            more = (*_wrapped(ask, ranks, over=over), *_idle(ranks, line, np, policy))
            return Placement(ranks, sum(count for _, count in ranks), "", (*said, *more))
    warning = Finding("slots", Level.UNKNOWN, f"where the ranks go is not computed: {unclear}")
    return Placement((), np, unclear, (*said, warning))


def can_tell(line: UserLine, family: str, environ: Collection[str], path: str) -> bool:
    """Tell whether mpirun can be asked to write to a file which rank is where.

    Of a rank that ends badly Open MPI 5 tells no host on any other way than the job's stderr. The
    user's own options of that kind stay alone: given twice mpirun refuses them, and the variable
    gives way to the option.
    """
    taken = any("runtime_options" in name for name in environ)
    taken = taken or bool(_RUNTIME.intersection(line.given))
    return family == "openmpi5" and not (line.unknown or taken or "," in path)


def _filter_said(hosts: Sequence[Host], line: UserLine) -> tuple[Finding, ...]:
    """Say what ``-H`` leaves out of the hostfile, and what it adds to it."""
    if not line.hosts:
        return ()
    found = []
    used = {_key(host.name) for host in chosen(hosts, line)}
    left = [host.name for host in hosts if _key(host.name) not in used]
    if left:
        said = f"-H leaves out {len(left)} of {len(hosts)} hosts: {_listed(left)}"
        found.append(Finding("slots", Level.WARN, said))
    strays = outside(hosts, line)
    if strays:
        said = f"-H names {_listed(strays)}, which the hostfile does not have"
        hint = "write the names as the hostfile has them"
        found.append(Finding("slots", Level.WARN, said, hint=hint))
    return tuple(found)


def _too_few(refused: RefusedError, line: UserLine) -> Finding:
    """Say what is asked, what is offered, and what to do."""
    own = "-n on the mpirun line" if line.np == refused.asked else line.mapped_by
    by = f" ({own})" if own else ""
    slots = "; -H decides the slots" if line.hosts else ""
    return failed(
        "slots",
        f"{refused.asked} ranks are asked for{by}{refused}{slots}",
        hint="ask for fewer ranks, give the hosts more slots (slotsPerWorker of an MPIJob) or "
        "add workers; MPIBOOT_OVERSUBSCRIBE=true allows more ranks than slots",
    )


def _wrapped(ask: Ask, ranks: tuple[tuple[str, int], ...], *, over: bool) -> tuple[Finding, ...]:
    """Stop where Hydra would begin again at the first host without a word."""
    total = sum(count for _, count in ranks)
    if ask.family not in HYDRA or over or total <= ask.slots:
        return ()
    return (_too_few(ask.refused(total), UserLine()),)


def _idle(
    ranks: tuple[tuple[str, int], ...], line: UserLine, np: int | None, policy: str
) -> tuple[Finding, ...]:
    """Judge hosts without a rank.

    With fewer ranks than hosts some must stay idle, and a mapping of the user's own says where
    ranks go: both are asked for, and only said. Ranks enough for every host that all go to the
    first ones because nothing spreads them are the mistake that must not pass.
    """
    idle = [name for name, count in ranks if not count]
    if not idle:
        return ()
    total = sum(count for _, count in ranks)
    said = f"{len(idle)} of {len(ranks)} hosts would get no rank: {_listed(idle)}"
    own = line.mapped_by if line.policy or line.per_node else policy
    if own:
        return (Finding("slots", Level.WARN, f"{said} (by the mapping {own!r})"),)
    if np is not None and total < len(ranks):
        asked = f"{total} rank{'s are' if total > 1 else ' is'} asked for"
        return (Finding("slots", Level.WARN, f"{said} ({asked})"),)
    return (
        failed(
            "slots",
            f"{said}, because {total} ranks fill the slots of the hosts before",
            hint="give mpirun `--map-by node` to spread the ranks, `--map-by slot` to say that it "
            "is meant so, or ask for as many ranks as there are slots",
        ),
    )
