"""The hosts of a job, their slots, and which of them get how many ranks. Pure.

Computed are the simple forms alone: by slot, by node, a number per host. Everything else is left
to mpirun, and the plan says so; measured against the job maps of Open MPI 4.1.4 and 5.0.11.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mpiboot.core.checks import failed
from mpiboot.core.facts import Host, Hostfile
from mpiboot.core.model import Finding, Level, Source
from mpiboot.core.settings import Given
from mpiboot.core.wording import counted, first_few
from mpiboot.job.dialects import (
    ALSO_DEFAULT_SLOTS,
    HOSTFILE_VARS,
    Dialect,
    parameter,
    version_number,
)
from mpiboot.job.mpirun_line import UserLine
from mpiboot.job.names import canonical, is_local, same_host, short
from mpiboot.job.plan_builder import Observed, PlanBuilder

# How Open MPI reads a parameter that is true or false: mca_base_var_enum.c of 4.1.
_FALSE: Final = frozenset({"", "0", "false", "f", "disabled", "no", "n"})


def with_default_slots(builder: PlanBuilder) -> Observed:
    """Give the hosts the numbers of slots that count for this MPI.

    A host without one has the default of the user or the operator. Where nobody has set one each
    MPI has its own: MPICH one, the others the host's cores, which its daemon counts there.
    """
    observed, row, line = builder.observed, builder.row, builder.line
    own = "" if row.slots_option.lstrip("-") in line.given else row.default_slots_var
    files = (observed.hostfile, *observed.hostfile.parts)
    bare = [host.name for file in files for host in file.hosts if not host.slots_given]
    if bare:
        text, source, named = _default_slots(builder, own)
        reason = f"{named}, for hosts without slots: {first_few(dict.fromkeys(bare))}"
        builder.decide("default-slots", text, source, reason)
        observed = _sized(observed, text, only_bare=True)
    if row.slots_option and own and not numbers_by_option(builder, observed.hostfile.hosts):
        observed = _sized(observed, builder.environ.get(own, ""), only_bare=False)
    return observed


def _default_slots(builder: PlanBuilder, own: str) -> tuple[str, Source, str]:
    """Return the slots of hosts without a number, who says so, and by what; ``own`` is this MPI's.

    The operators set the variable of Open MPI for every MPI.
    """
    names = (own, *ALSO_DEFAULT_SLOTS)
    for name in map(parameter, names):
        if name in builder.line.mca:
            return builder.line.mca[name], Source.FLAG, f"--mca {name}"
    if builder.settings.slots:
        given = builder.given["slots"]
        return str(builder.settings.slots), given.source, str(given)
    for name in names:
        if builder.environ.get(name):
            return builder.environ[name], builder.set_by(name)[0], name
    return "cores" if own else "1", Source.DEFAULT, builder.row.title


def numbers_by_option(builder: PlanBuilder, hosts: Sequence[Host]) -> bool:
    """Return whether mpiboot names the hostfile by the option with which its numbers count.

    It would undo whatever of the user's says how many ranks a host gets.
    """
    row, line = builder.row, builder.line
    user_says = (
        row.slots_option.lstrip("-") in line.given
        or builder.environ.get(row.default_slots_var)
        or line.per_node
        or line.moves_hosts
        or line.unknown
    )
    return bool(row.slots_option and not user_says) and all(host.slots_given for host in hosts)


def _sized(observed: Observed, text: str, *, only_bare: bool) -> Observed:
    """Give hosts a number of slots, or none where the text isn't one; those of no slots keep it."""
    number = int(text) if text.isdecimal() else 0

    def sized(host: Host) -> Host:
        if host.slots_given and (only_bare or not host.slots):
            return host
        slots = min(number, host.max_slots or number) or 1
        return replace(host, slots=slots, slots_given=number > 0)

    def all_sized(file: Hostfile) -> Hostfile:
        return replace(
            file,
            hosts=tuple(map(sized, file.hosts)),
            parts=tuple(map(all_sized, file.parts)),
        )

    return replace(
        observed,
        hostfile=all_sized(observed.hostfile),
        local=tuple(map(sized, observed.local)),
        workers=tuple(replace(item, host=sized(item.host)) for item in observed.workers),
    )


def _source(builder: PlanBuilder, file: Hostfile) -> Source:
    """Return what named the hostfile: the line, a setting, the operator, or a default."""
    if builder.line.hostfiles:
        return Source.FLAG
    if file.source:
        return file.source
    if builder.settings.hostfile:
        return builder.given["hostfile"].source
    return builder.set_by(file.named_by)[0] if file.named_by in HOSTFILE_VARS else Source.DEFAULT


def in_copy(file: Hostfile, observed: Observed, row: Dialect) -> tuple[Host, ...]:
    """Give a hostfile's hosts as mpiboot's copy of it has them."""
    return tuple(
        replace(
            host,
            name=observed.called(host.name),
            user="",  # ssh_config has each host's user
            binding=host.binding if row.hostfile_binding else "",
        )
        for host in file.hosts
    )


def settle_hosts(builder: PlanBuilder) -> tuple[Host, ...]:
    """Settle the hosts and point every hostfile variable at mpiboot's own copy."""
    observed = builder.observed
    file = observed.hostfile
    hosts = in_copy(file, observed, builder.row)
    builder.decide(
        "hostfile",
        file.path,
        _source(builder, file),
        f"named by {file.named_by}",
    )
    builder.decide(
        "hosts", str(len(hosts)), Source.DETECTED, first_few(host.name for host in hosts)
    )
    longer = {old: new for old, new in observed.renamed.items() if new.startswith(f"{old}.")}
    others = {old: new for old, new in observed.renamed.items() if old not in longer}
    for name, what in (("fqdn-rewriting", longer), ("host-names", others)):
        if what:
            message = first_few(f"{old} -> {new}" for old, new in what.items())
            builder.decide(name, counted(len(what), "name"), Source.DETECTED, message)
    reason = f"mpiboot's normalised copy of {file.path}"
    for name in HOSTFILE_VARS:
        if name == builder.row.hostfile_var:
            builder.force(name, builder.paths.hostfile, reason, Source.DETECTED)
        elif observed.environ.get(name):
            builder.set_env[name] = builder.paths.hostfile
    if builder.row.keep_fqdn_var and any("." in host.name for host in hosts):
        builder.variable(
            builder.row.keep_fqdn_var,
            "1",
            "the hostfile has names with dots, and this version would cut them",
            Source.DETECTED,
        )
    if builder.row.keep_own_names_var and _own_names_are_alike(observed):
        builder.variable(
            builder.row.keep_own_names_var,
            "1",
            "the pods' own names are alike up to the first dot, where this version would cut them",
            Source.DETECTED,
        )
    return hosts


def keep_from_resolving(builder: PlanBuilder) -> None:
    """Keep mpirun from resolving the hosts again: the gate knows their addresses."""
    row, line = builder.row, builder.line
    may_name_this_pod = line.moves_ranks or line.moves_hosts or line.unknown
    if row.resolves_since and version_number(builder.observed.mpi.version) >= row.resolves_since:
        reason = "it looks for its own host among their addresses, and nothing keeps it from that"
        builder.decide("names", "asked again by mpirun", Source.DETECTED, reason)
    elif row.not_resolve_var and builder.observed.local and may_name_this_pod:
        reason = "what chooses hosts there may name this pod otherwise than the hostfile"
        builder.decide("names", "asked again by mpirun", Source.FLAG, reason)
    elif row.not_resolve_var:
        reason = "the gate knows each host's address, and mpirun would ask for them in turn"
        builder.variable(row.not_resolve_var, "1", reason, Source.DETECTED)


def _own_names_are_alike(observed: Observed) -> bool:
    pods = (observed.own, *(worker.facts for worker in observed.workers))
    own = {pod.hostname for pod in pods if pod}
    return len({short(name) for name in own}) < len(own)


def settle_ranks(builder: PlanBuilder, hosts: tuple[Host, ...]) -> int | None:
    """Settle the number of ranks; None where the user's own line leaves it to mpirun."""
    slots = sum(host.slots for host in hosts)
    if builder.line.np is not None:
        builder.decide("ranks", str(builder.line.np), Source.FLAG, "-n on the mpirun line")
        return builder.line.np
    if builder.line.unknown:
        builder.decide("ranks", "-", Source.FLAG, "left to the part of the line that was not read")
        return None
    if builder.line.settles_ranks:
        builder.decide("ranks", "-", Source.FLAG, "left to the mpirun line")
        return None
    if not all(host.slots_given for host in hosts):
        title = builder.row.title
        reason = (
            f"hosts without slots in the hostfile have as many as cores, as {title} counts them"
        )
        builder.decide("ranks", "-", Source.DEFAULT, reason)
        return None
    reason = f"all slots of {counted(len(hosts), 'host')}"
    builder.decide("ranks", str(slots), Source.DEFAULT, reason)
    return slots or None


def asks_oversubscribe(builder: PlanBuilder) -> Given | None:
    """Find what asks for more ranks than slots: the line, a setting, this MPI's own variable."""
    row = builder.row
    if builder.line.oversubscribe:
        return Given(Source.FLAG, "the mpirun line")
    if builder.settings.oversubscribe:
        return builder.given["oversubscribe"]
    value = "" if row.oversubscribes_by_mapping else builder.environ.get(row.oversubscribe_var, "")
    if value.strip().lower() in _FALSE:
        return None
    return Given(builder.set_by(row.oversubscribe_var)[0], row.oversubscribe_var)


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


def _is_here(name: str, local: Collection[str]) -> bool:
    return is_local(name, "") or any(same_host(name, own) for own in local)


def chosen(hosts: Sequence[Host], line: UserLine) -> tuple[Host, ...]:
    """Return the hosts that a line uses: those of ``-H`` in its order, else the hostfile's.

    ``-H`` decides the slots too (``name:N``, one for a bare name, repeated names added up), even
    where the hostfile says otherwise, and a name that the hostfile lacks is used all the same.
    """
    if not line.hosts:
        return tuple(hosts)
    known = {canonical(host.name): host for host in hosts}
    picked: dict[str, Host] = {}
    for spec in line.hosts:
        key = canonical(spec.name)
        if key in picked:
            picked[key] = replace(picked[key], slots=picked[key].slots + spec.slots)
        else:
            picked[key] = replace(known.get(key, spec), slots=spec.slots, slots_given=True)
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
    """Return what in a line, apart from the mapping, leaves the placement to mpirun; else empty."""
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
    """Compute which hosts get a rank, and whether there are enough slots.

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
    findings = (*_several_programs(line, row), *_filter_findings(hosts, used, line))
    spread = _spread(line, row, policy, over=oversubscribe or line.oversubscribe)
    left = _left_to_mpirun(line) or spread.left
    if not left and not all(host.slots_given for host in used):
        left = "hosts without a number of slots"
    only = used[0].name if len(used) == 1 and not line.moves_hosts and not line.unknown else ""
    if left:
        return Placement(total=np, left=left, findings=findings, first=only)
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
        return Placement(total=total, findings=(*findings, found), first=used[0].name)
    idle, small = _idle(used, spread, total, over=spread.oversubscribe or row.wraps_around)
    if small:
        left = f"{spread.asked}, where {small.name} has {counted(small.slots, 'slot')}"
        return Placement(total=np, left=left, findings=findings)
    if idle:
        findings = (*findings, _idle_finding(idle, used, spread, total, row))
    return Placement(idle, total, "", findings, used[0].name)


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
    """Return whether mpirun can be asked for a file of which rank is where.

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
    """Warn of a line with several programs, at which some MPIs fail."""
    if len(line.apps) > 1 and row.several_programs:
        yield failed("several-programs", row.several_programs, level=Level.WARN)


def _filter_findings(
    hosts: Sequence[Host], used: Sequence[Host], line: UserLine
) -> tuple[Finding, ...]:
    """Warn of hosts that ``-H`` leaves out, and of names that the hostfile lacks."""
    if not line.hosts:
        return ()
    found = []
    known, kept = ({canonical(host.name) for host in some} for some in (hosts, used))
    without = [host.name for host in hosts if canonical(host.name) not in kept]
    if without:
        message = f"-H leaves out {len(without)} of {len(hosts)} hosts: {first_few(without)}"
        found.append(Finding("slots", Level.WARN, message))
    strays = [host.name for host in used if canonical(host.name) not in known]
    if strays:
        message = f"-H names {first_few(strays)}, which the hostfile does not have"
        hint = "write the names as the hostfile has them"
        found.append(Finding("slots", Level.WARN, message, hint=hint))
    return tuple(found)


def _too_few(asked: int, offered: str, line: UserLine, row: Dialect) -> Finding:
    """A warning: more ranks than slots. Only mpirun knows everything that may allow it."""
    own = "-n on the mpirun line" if line.np == asked else line.mapped_by
    by = f" ({own})" if own else ""
    slots = "; -H decides the slots" if line.hosts else ""
    return Finding(
        "slots",
        Level.WARN,
        f"{asked} ranks requested{by}, {offered}{slots}: {row.title} refuses more ranks than "
        "slots unless it is told to oversubscribe",
        hint="ask for fewer ranks, give the hosts more slots (slotsPerWorker of an MPIJob) or "
        "add workers; MPIBOOT_OVERSUBSCRIBE=true allows more ranks than slots",
    )


def _idle_finding(
    idle: Sequence[str], used: Sequence[Host], spread: _Spread, total: int, row: Dialect
) -> Finding:
    """A warning that names the hosts without a rank, and the reason."""
    asked = f"{counted(total, 'rank')} asked for"
    reason = f"the mapping {spread.asked!r}" if spread.asked else asked
    could_spread = not spread.asked and total >= len(used)
    message = f"{len(idle)} of {counted(len(used), 'host')} will get no rank: {first_few(idle)}"
    hint = f"{row.spread_option} gives every host a rank" if could_spread else ""
    return Finding("slots", Level.WARN, f"{message} ({reason})", hint=hint)
