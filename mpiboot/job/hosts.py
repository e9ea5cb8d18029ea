"""The job's hosts by the names that mpirun gets, their slots, and the number of ranks. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from mpiboot.core.model import Host, Hostfile, Source
from mpiboot.core.settings import Given, Resolved
from mpiboot.core.wording import counted, first_few
from mpiboot.job.dialect import Dialect, parameter, version_number
from mpiboot.job.dialects import ALSO_DEFAULT_SLOTS, HOSTFILE_VARS
from mpiboot.job.names import short
from mpiboot.job.plan_builder import LaunchPaths, Observed, PlanBuilder

# How Open MPI reads a parameter that is true or false: mca_base_var_enum.c of 4.1.
_FALSE: Final = frozenset({"", "0", "false", "f", "disabled", "no", "n"})


def with_default_slots(builder: PlanBuilder, observed: Observed, resolved: Resolved) -> Observed:
    """Give hosts without a number of slots those that the user, or the operator, names for them.

    mpirun itself would not: mpiboot's copy of the hostfile has a number for each host.
    """
    files = (observed.hostfile, *observed.hostfile.parts)
    bare = [
        host
        for host in dict.fromkeys(host for file in files for host in file.hosts)
        if not host.slots_given and host.slots == 1
    ]
    names = (builder.row.default_slots_var, *ALSO_DEFAULT_SLOTS)
    by = next((name for name in names if parameter(name) in builder.line.mca), "")
    text, source = builder.line.mca.get(parameter(by), ""), Source.FLAG
    named = f"--mca {parameter(by)}"
    if not by and resolved.settings.slots:
        by, text = "slots", str(resolved.settings.slots)
        source, named = resolved.given["slots"].source, str(resolved.given["slots"])
    if not by:
        by = next((name for name in names if name and builder.environ.get(name)), "")
        text, source, named = builder.environ.get(by, ""), builder.set_by(by)[0], by
    if not by or not bare:
        return observed
    if not text.isdecimal() or not int(text):
        said = f"{by} is {text!r}, expected a number: hosts without slots get one rank"
        builder.warn("slots", said)
        return observed
    without = first_few(host.name for host in bare)
    unsized = frozenset(bare)
    builder.decide("default-slots", text, source, f"{named}, for hosts without slots: {without}")

    def sized(host: Host) -> Host:
        slots = min(int(text), host.max_slots or int(text))
        return replace(host, slots=slots) if host in unsized else host

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


def _source(builder: PlanBuilder, file: Hostfile, resolved: Resolved) -> Source:
    """Tell by what the hostfile was named: the line, a setting, the operator, or nothing."""
    if builder.line.hostfiles:
        return Source.FLAG
    if file.source:
        return file.source
    if resolved.settings.hostfile:
        return resolved.given["hostfile"].source
    return builder.set_by(file.named_by)[0] if file.named_by in HOSTFILE_VARS else Source.DEFAULT


def in_copy(file: Hostfile, observed: Observed, row: Dialect) -> tuple[Host, ...]:
    """Give a hostfile's hosts as mpiboot's copy of it has them."""
    return tuple(
        Host(
            name=observed.called(host.name),
            slots=host.slots,
            slots_given=True,
            max_slots=host.max_slots,
            user="",  # ssh_config has each host's user
            binding=host.binding if row.hostfile_binding else "",
            line=host.line,
        )
        for host in file.hosts
    )


def settle(
    builder: PlanBuilder, observed: Observed, resolved: Resolved, paths: LaunchPaths
) -> tuple[Host, ...]:
    """Settle the hosts and point every hostfile variable at mpiboot's own copy."""
    file = observed.hostfile
    hosts = in_copy(file, observed, builder.row)
    builder.decide(
        "hostfile", file.path, _source(builder, file, resolved), f"named by {file.named_by}"
    )
    builder.decide(
        "hosts", str(len(hosts)), Source.DETECTED, first_few(host.name for host in hosts)
    )
    longer = {old: new for old, new in observed.renamed.items() if new.startswith(f"{old}.")}
    others = {old: new for old, new in observed.renamed.items() if old not in longer}
    for name, what in (("fqdn-rewriting", longer), ("host-names", others)):
        if what:
            said = first_few(f"{old} -> {new}" for old, new in what.items())
            builder.decide(name, counted(len(what), "name"), Source.DETECTED, said)
    because = f"mpiboot's normalised copy of {file.path}"
    for name in HOSTFILE_VARS:
        if name == builder.row.hostfile_var:
            builder.force(name, paths.hostfile, because, Source.DETECTED)
        elif observed.environ.get(name):
            builder.set_env[name] = paths.hostfile
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


def keep_from_resolving(builder: PlanBuilder, observed: Observed) -> None:
    """Have mpirun take the hosts as the gate found them, without asking a nameserver again."""
    row, line = builder.row, builder.line
    may_name_this_pod = line.moves_ranks or line.moves_hosts or line.unknown
    if row.not_resolve_var in builder.set_env:
        return
    if row.resolves_since and version_number(observed.mpi.version) >= row.resolves_since:
        because = "it looks for its own host among their addresses, and nothing keeps it from that"
        builder.decide("names", "asked again by mpirun", Source.DETECTED, because)
    elif row.not_resolve_var and observed.local and may_name_this_pod:
        because = "what chooses hosts there may name this pod otherwise than the hostfile"
        builder.decide("names", "asked again by mpirun", Source.FLAG, because)
    elif row.not_resolve_var:
        because = "the gate knows each host's address, and mpirun would ask for them in turn"
        builder.variable(row.not_resolve_var, "1", because, Source.DETECTED)


def _own_names_are_alike(observed: Observed) -> bool:
    pods = (observed.own, *(worker.facts for worker in observed.workers))
    own = {pod.hostname for pod in pods if pod}
    return len({short(name) for name in own}) < len(own)


def ranks(builder: PlanBuilder, hosts: tuple[Host, ...], resolved: Resolved) -> int | None:
    """Settle the number of ranks; None where the user's own line leaves it to mpirun."""
    settings, given = resolved.settings, resolved.given
    slots = sum(host.slots for host in hosts)
    if builder.line.np is not None:
        builder.decide("ranks", str(builder.line.np), Source.FLAG, "-n on the mpirun line")
        return builder.line.np
    if builder.line.unknown:
        builder.decide("ranks", "-", Source.FLAG, "left to the part of the line that was not read")
        return None
    if settings.np is not None:
        builder.decide("ranks", str(settings.np), given["np"].source, str(given["np"]))
        return settings.np
    if builder.line.settles_ranks:
        builder.decide("ranks", "-", Source.FLAG, "left to the mpirun line")
        return None
    because = f"all slots of {counted(len(hosts), 'host')}"
    builder.decide("ranks", str(slots), Source.DEFAULT, because)
    return slots


def oversubscribe(builder: PlanBuilder, resolved: Resolved) -> Given | None:
    """Find what asks for more ranks than slots: the line, a setting, this MPI's own variable."""
    row = builder.row
    if builder.line.oversubscribe:
        return Given(Source.FLAG, "the mpirun line")
    if resolved.settings.oversubscribe:
        return resolved.given["oversubscribe"]
    value = "" if row.oversubscribes_by_mapping else builder.environ.get(row.oversubscribe_var, "")
    if value.strip().lower() in _FALSE:
        return None
    return Given(builder.set_by(row.oversubscribe_var)[0], row.oversubscribe_var)
