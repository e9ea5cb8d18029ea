"""The hosts of a job: slots, names, and what is wrong with their pods. Pure.

Which of them get ranks mpirun decides; usual conditions are not reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from mpiboot.core.addresses import canonical, short
from mpiboot.core.checks import failed
from mpiboot.core.facts import Host, Hostfile, Worker
from mpiboot.core.model import Decision, Finding, Level, MpiFamily, Source
from mpiboot.core.wording import counted, first_few, grouped
from mpiboot.job import hostfile, platforms
from mpiboot.job.mpirun_line import UserLine
from mpiboot.job.plan_input import Forced, Implementation, Item, Observed, PlanInput

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
    owned = {name: found for name in names if (found := inp.owned(name)) and found.value}
    flagged = {name: found for name, found in owned.items() if found.source is Source.FLAG}
    if inp.settings.slots and not flagged:
        given = inp.given["slots"]
        return str(inp.settings.slots), given.source, str(given)
    for name, found in (flagged or owned).items():
        return found.value or "", found.source, name
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


def copy_of(file: Hostfile, observed: Observed, mpi: Implementation) -> str:
    """Write mpiboot's copy of a hostfile."""
    return hostfile.render(in_copy(file, observed, mpi), colon=mpi.hostfile_colon)


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
    if line.decides_ranks:
        left = "the part of the line that was not read" if line.unknown else "the mpirun line"
        return None, Decision("ranks", "-", Source.FLAG, f"left to {left}")
    if not all(host.slots_given for host in listed):
        reason = "hosts without slots in the hostfile have as many as they have cores"
        return None, Decision("ranks", "-", Source.DEFAULT, reason)
    slots = sum(host.slots for host in listed)
    reason = f"all slots of {counted(len(listed), 'host')}"
    return slots or None, Decision("ranks", str(slots), Source.DEFAULT, reason)


# What may put rank 0 on another host than the first: options, mappings, parameters of Open MPI.
_MOVES_RANK_0: Final = frozenset(
    {"rankfile", "nolocal", "rankmap", "order-nodes", "machine", "skip-launch-node"}
)
_MAPPINGS: Final = ("rankfile", "rank_file", "seq", "dist", "mindist")
_PARAMETERS: Final = ("rankfile", "rank_file_path", "dash_host", "schedule_local")


def first_host(inp: PlanInput, hosts: Sequence[Host]) -> tuple[str, str]:
    """Find the host of rank 0, which is the first with a slot; else what may choose another one.

    Open MPI 4.1 puts its own host first, wherever it stands.
    """
    line = inp.line
    others = [f"--{name}" for name in line.given if name in _MOVES_RANK_0]
    others += [*line.moves_hosts, *([line.unknown] if line.unknown else [])]
    others += [f"--map-by {line.given['map-by']}"] if line.policy in _MAPPINGS else []
    others += [
        f"{name}={value}"
        for name, value in {**inp.environ, **line.mca}.items()
        if name.endswith(_PARAMETERS) or ("rmaps" in name and value.lower().startswith(_MAPPINGS))
    ]
    if len(line.apps) > 1 and (line.hosts or len(line.hostfiles) > 1):
        others.append("several programs with hosts of their own")
    left = next(iter(others), "")
    used = [host.name for host in hosts if host.slots]
    if left or not used:
        return "", left
    own_first = inp.observed.local_names if inp.implementation.launcher_first else ()
    here = [name for name in used if name in own_first]
    return (*here, *used)[0], ""


def of_line(line: UserLine, listed: Sequence[Host] = ()) -> tuple[Host, ...]:
    """Give the job's hosts where the line itself names those of all programs; else none.

    Open MPI and Hydra use these then, and no others, whatever a default hostfile has. ``listed``
    are a hostfile's: of a host that it has too its line counts.
    """
    if line.moves_hosts or not all(app.hosts for app in line.apps):
        return ()
    known = {canonical(host.name): host for host in listed}
    found: dict[str, Host] = {}
    for host in line.hosts:
        key = canonical(host.name)
        again = found.get(key)
        slots = host.slots + again.slots if again else host.slots
        found[key] = known.get(key, replace(host, slots=slots))
    return tuple(found.values())


def earlier(workers: Iterable[Worker], own: str) -> tuple[int, str, str]:
    """Count the attempts before this one; give the last one's end where known, and a sentence.

    0 where this is the first one, or a part of a command.

    A worker that was made anew remembers less than the others, and one that was out of reach at the
    end of a launcher does not know why it ended.

    Args:
        workers: who passed the gate.
        own: this launcher's name; a command's launches share it.
    """
    seen = [[item for item in worker.answer.attempts if item[0] != own] for worker in workers]
    longest = max(seen, key=len, default=[])
    if not own or not longest:
        return 0, "", ""
    name = longest[-1][0]
    ended = next((why for items in seen for other, why in items if other == name and why), "")
    host, since, *_ = (*name.split("@"), "")
    who = " ".join(filter(None, (host, since and f"of {since}")))
    how = f"ended: {ended}" if ended else "did not say how it ended (killed, or lost)"
    message = f"attempt {len(longest) + 1}; the last one ({who}) {how}"
    return len(longest), ended, message


_ONE_ADDRESS: Final = (
    "give each pod with hostNetwork a node of its own (podAntiAffinity on the job's label, with "
    "topologyKey kubernetes.io/hostname), the launcher none; else the nameserver has a wrong or an "
    "old address: compare the EndpointSlices of the job's headless Service"
)


def findings(observed: Observed) -> Iterable[Finding]:
    """Find the problems in what launcher and workers report."""
    return chain(mpi_versions(observed), shared_addresses(observed), working_directory(observed))


def explaining_ends(found: Iterable[Finding]) -> dict[str, str]:
    """Give the messages that warn before the start and explain a bad end, by their checks."""
    checks = ("host-names", "working-directory")
    return {item.check: item.message for item in found if item.check in checks}


def working_directory(observed: Observed) -> Iterator[Finding]:
    """Find workers that lack the directory in which ranks are to start."""
    lacking = [worker.host.name for worker in observed.workers if worker.answer.lacks]
    if lacking:
        family = observed.mpi.family
        # Intel MPI goes home in any case, Open MPI where the line does not name the directory.
        given = "wdir" in observed.line.given and family is not MpiFamily.INTEL
        none = given or family is MpiFamily.MPICH
        then = "no rank can start there" if none else "they start in the home directory there"
        message = (
            f"{observed.workdir} is not on {first_few(lacking)}, or this user may not enter it"
        )
        yield failed("working-directory", f"{message}: {then}", level=Level.WARN)


def mpi_versions(observed: Observed) -> Iterator[Finding]:
    """Compare the MPIs of launcher and workers.

    No difference proves that the daemons don't start: 5.0 calls those beside its own prterun, Hydra
    calls its proxy by path.
    """
    launchers = observed.mpi
    for worker in observed.workers:
        by_path = worker.called_mpi if observed.line.daemons_mpirun else None
        installed = by_path or worker.path_mpi
        where = worker.host.name
        if installed is None:
            if worker.facts:
                message = "no mpirun on its PATH"
                yield failed("mpi-versions", message, host=where, level=Level.WARN)
            continue
        # By its own words, too: of which family this pod's is, MPIBOOT_MPI may have said.
        is_equal = installed.family == launchers.family or installed.banner == launchers.banner
        if is_equal and installed.version == launchers.version:
            continue
        named = ", which the line names" if by_path else ""
        message = f"{installed.path}{named}: {installed.banner}; the launcher: {launchers.banner}"
        yield failed("mpi-versions", message, host=where, level=Level.WARN)


def shared_addresses(observed: Observed) -> Iterator[Finding]:
    """Find hosts of the hostfile that are not each a pod of its own.

    Pods that share a node's network (hostNetwork) share an address: which of them a name means
    is unknown there, and mpirun would put two hosts' ranks into one of them, or a worker's into
    the launcher.
    """
    servers = grouped(((worker.address, worker.port), worker) for worker in observed.workers)
    for (address, port), workers in servers.items():
        if len(workers) > 1:
            names = first_few(worker.host.name for worker in workers)
            message = f"{names} lead to one and the same SSH server, {address} port {port}"
            yield failed("settings-conflict", message, hint=_ONE_ADDRESS)
    pattern = observed.platform.worker_names
    for host in observed.local:
        if pattern and re.search(pattern, short(host.name)):
            message = "this worker's name leads to the launcher's own address"
            yield failed("settings-conflict", message, hint=_ONE_ADDRESS, host=host.name)
