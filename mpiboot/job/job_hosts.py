"""The hosts of a job, their slots and names; which of them get ranks mpirun decides. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from mpiboot.core.facts import Host, Hostfile
from mpiboot.core.model import Decision, Source
from mpiboot.core.wording import counted, first_few
from mpiboot.job import platforms
from mpiboot.job.implementation import Implementation
from mpiboot.job.mpirun_line import UserLine
from mpiboot.job.names import canonical
from mpiboot.job.parameter_files import parameter
from mpiboot.job.plan_input import Observed, PlanInput
from mpiboot.job.resolve import Forced, Item

# Every variable by which a user or an operator names a hostfile, for whichever MPI. What
# mpirun finds there must be mpiboot's own copy, whatever the family.
HOSTFILE_VARS: Final = (*platforms.HOSTFILE_VARS, "MPI_HOSTFILE", "MPIBOOT_HOSTFILE")
# The MPI Operator and Trainer set the first one for every MPI.
_ALSO_DEFAULT_SLOTS: Final = ("OMPI_MCA_orte_set_default_slots", "PRTE_MCA_prte_set_default_slots")


def default_slots(inp: PlanInput) -> tuple[Observed, tuple[Item, ...]]:
    """Give the hosts the numbers of slots that count for this MPI.

    A host without one has the default of the user or the operator. Where nobody has set one each
    MPI has its own: MPICH one, the others the host's cores, which its daemon counts there.
    """
    observed, items = inp.observed, list[Item]()
    own = inp.implementation.default_slots(inp.line)
    files = (observed.hostfile, *observed.hostfile.parts)
    bare = [host.name for file in files for host in file.hosts if not host.slots_given]
    if bare:
        text, source, named = _default_slots(inp, own)
        reason = f"{named}, for hosts without slots: {first_few(dict.fromkeys(bare))}"
        items.append(Decision("default-slots", text, source, reason))
        observed = _sized(observed, text, only_bare=True)
    if inp.implementation.one_number(replace(inp, observed=observed)):
        observed = _sized(observed, inp.environ.get(own, ""), only_bare=False)
    return observed, tuple(items)


def _default_slots(inp: PlanInput, own: str) -> tuple[str, Source, str]:
    """The slots of hosts without a number, their source and its name; ``own`` is this MPI's.

    The operators set the variable of Open MPI for every MPI.
    """
    names = (own, *_ALSO_DEFAULT_SLOTS)
    for name in map(parameter, names):
        if name in inp.line.mca:
            return inp.line.mca[name], Source.FLAG, f"--mca {name}"
    if inp.settings.slots:
        given = inp.given["slots"]
        return str(inp.settings.slots), given.source, str(given)
    for name in names:
        if inp.environ.get(name):
            return inp.environ[name], inp.set_by(name)[0], name
    return "cores" if own else "1", Source.DEFAULT, inp.implementation.title


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


def _source(inp: PlanInput, file: Hostfile) -> Source:
    """Return what named the hostfile: the line, a setting, the operator, or a default."""
    if inp.line.hostfiles:
        return Source.FLAG
    if file.source:
        return file.source
    if inp.settings.hostfile:
        return inp.given["hostfile"].source
    return inp.set_by(file.named_by)[0] if file.named_by in HOSTFILE_VARS else Source.DEFAULT


def in_copy(file: Hostfile, observed: Observed, mpi: Implementation) -> tuple[Host, ...]:
    """Give a hostfile's hosts as mpiboot's copy of it has them."""
    return tuple(
        replace(
            host,
            name=observed.called(host.name),
            user="",  # ssh_config has each host's user
            binding=host.binding if mpi.hostfile_binding else "",
        )
        for host in file.hosts
    )


def hosts(inp: PlanInput, listed: Sequence[Host]) -> Iterator[Item]:
    """Show the hosts, and point every hostfile variable at mpiboot's own copy."""
    observed, file = inp.observed, inp.observed.hostfile
    yield Decision("hostfile", file.path, _source(inp, file), f"named by {file.named_by}")
    names = first_few(host.name for host in listed)
    yield Decision("hosts", str(len(listed)), Source.DETECTED, names)
    if what := observed.renamed:
        message = first_few(f"{old} -> {new}" for old, new in what.items())
        yield Decision("host-names", counted(len(what), "name"), Source.DETECTED, message)
    for name in () if inp.implementation.passes_over(listed) else HOSTFILE_VARS:
        if name == inp.implementation.hostfile_var:
            reason = f"mpiboot's normalised copy of {file.path}"
            yield Forced(name, inp.paths.hostfile, reason)
        elif observed.environ.get(name):
            yield Forced(name, inp.paths.hostfile)
    yield from inp.implementation.hosts(inp, listed)


def ranks(inp: PlanInput, listed: Sequence[Host]) -> tuple[int | None, Decision]:
    """Decide the number of ranks; None where the user's own line leaves it to mpirun."""
    line = inp.line
    if line.np:
        return line.np, Decision("ranks", str(line.np), Source.FLAG, "-n on the mpirun line")
    if line.settles_ranks:
        left = "the part of the line that was not read" if line.unknown else "the mpirun line"
        return None, Decision("ranks", "-", Source.FLAG, f"left to {left}")
    if not all(host.slots_given for host in listed):
        reason = "hosts without slots in the hostfile have as many as cores, as"
        reason += f" {inp.implementation.title} counts them"
        return None, Decision("ranks", "-", Source.DEFAULT, reason)
    slots = sum(host.slots for host in listed)
    reason = f"all slots of {counted(len(listed), 'host')}"
    return slots or None, Decision("ranks", str(slots), Source.DEFAULT, reason)


# What may put rank 0 on another host than the first: options, mappings, and parameters of Open MPI.
_MOVES_RANK_0: Final = frozenset(
    {"rankfile", "nolocal", "rankmap", "order-nodes", "machine", "skip-launch-node"}
)
_MAPPINGS: Final = ("rankfile", "rank_file", "seq", "dist", "mindist")
_PARAMETERS: Final = ("rankfile", "rank_file_path", "dash_host", "schedule_local")


def first_host(
    hosts: Sequence[Host],
    line: UserLine,
    mpi: Implementation,
    environ: Mapping[str, str],
    local: Collection[str],
) -> tuple[str, str]:
    """Find the host of rank 0, which is the first with a slot; else what may choose another one.

    Args:
        hosts: the job's.
        line: the user's line.
        mpi: the MPI that reads it.
        environ: the launcher's environment, with what the MPI's own files set.
        local: names of this pod; Open MPI 4.1 puts its own host first, wherever it stands.
    """
    others = [f"--{name}" for name in line.given if name in _MOVES_RANK_0]
    others += [f"--map-by {line.given['map-by']}"] if line.policy in _MAPPINGS else []
    others += [
        f"{name}={value}"
        for name, value in {**environ, **line.mca}.items()
        if name.endswith(_PARAMETERS) or ("rmaps" in name and value.lower().startswith(_MAPPINGS))
    ]
    others += [line.unknown, *line.moves_hosts]
    if len(line.apps) > 1 and (line.hosts or len(line.hostfiles) > 1):
        others.append("several programs with hosts of their own")
    left = next(filter(None, others), "")
    used = [host.name for host in hosts if host.slots]
    if left or not used:
        return "", left
    here = [name for name in used if mpi.own_host_first and name in local]
    return (*here, *used)[0], ""


def of_line(line: UserLine, listed: Sequence[Host] = ()) -> tuple[Host, ...]:
    """Give the job's hosts where the line itself names those of all programs; else none.

    Open MPI and Hydra use these then, and no others, whatever a default hostfile has. ``listed``
    are a hostfile's: of a host that it has too its line counts.
    """
    if line.moves_hosts or line.may_hide_hosts or not all(app.hosts for app in line.apps):
        return ()
    known = {canonical(host.name): host for host in listed}
    found: dict[str, Host] = {}
    for host in line.hosts:
        key = canonical(host.name)
        again = found.get(key)
        slots = host.slots + again.slots if again else host.slots
        found[key] = known.get(key, replace(host, slots=slots))
    return tuple(found.values())
