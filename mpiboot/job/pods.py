"""The job's pods: problems and unusual conditions. Pure.

Usual conditions are not reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from mpiboot.core.checks import failed
from mpiboot.core.facts import Worker
from mpiboot.core.model import Decision, Finding, Level, MpiFamily, Source
from mpiboot.core.wording import first_few, grouped, majority
from mpiboot.job.names import short
from mpiboot.job.plan_input import Observed, PlanInput
from mpiboot.job.resolve import Item, warning
from mpiboot.network.worker_network import link_of


@dataclass(frozen=True, slots=True)
class EarlierAttempt:
    """The attempts before this one: how many, the last one's name, and its end where known."""

    number: int
    name: str
    ended: str

    @property
    def message(self) -> str:
        """One sentence for the log."""
        host, _, rest = self.name.partition("@")
        since = rest.partition("@")[0]
        who = " ".join(part for part in (host, since and f"of {since}") if part)
        how = f"ended: {self.ended}" if self.ended else "did not say how it ended (killed, or lost)"
        return f"attempt {self.number + 1}; the last one ({who}) {how}"


def earlier(workers: Iterable[Worker], own: str) -> EarlierAttempt | None:
    """Find the attempts before this one; None where it is the first, or a part of a command.

    A worker that was made anew remembers less than the others, and one that was out of reach at the
    end of a launcher does not know why it ended.

    Args:
        workers: who passed the gate.
        own: this launcher's name; a command's launches share it.
    """
    seen = [[item for item in worker.attempts if item[0] != own] for worker in workers]
    longest = max(seen, key=len, default=[])
    if not own or not longest:
        return None
    name = longest[-1][0]
    ended = (why for items in seen for other, why in items if other == name and why)
    return EarlierAttempt(len(longest), name, next(ended, ""))


def launcher(inp: PlanInput) -> Iterator[Item]:
    """Report what is unusual about the launcher's own pod."""
    yield from _rank_variables(inp)
    observed = inp.observed
    folder = inp.paths.launch_dir.rpartition("/")[0]
    if observed.environ.get("HOME") == folder:
        yield Decision("home", folder, Source.DETECTED, "this user has no home that can be used")
    temporary = observed.environ.get("TMPDIR", "")
    if temporary.rpartition("/")[0] == folder:
        yield Decision("tmpdir", temporary, Source.DETECTED, "MPI can't write its session to /tmp")


# Of what mpirun sets for ranks, what it or a program takes for the proof that this is one.
_RANK_VARIABLES: Final = ("OMPI_UNIVERSE_SIZE", "OMPI_COMM_WORLD_", "PMIX_RANK")


def _rank_variables(inp: PlanInput) -> Iterator[Item]:
    """Report variables of a rank in this pod's environment, over which 4.1 does not start."""
    named = [name for name in sorted(inp.environ) if name.startswith(_RANK_VARIABLES)]
    message = f"{', '.join(named)} in this pod's environment: a rank's, set by mpirun alone"
    hint = "remove it from the manifest or the image"
    if inp.implementation.family is MpiFamily.OPENMPI4 and _RANK_VARIABLES[0] in named:
        yield failed("usage", f"{message}, and mpirun refuses to start", hint=hint)
    elif named:
        yield warning("usage", message, hint)


_ONE_ADDRESS: Final = (
    "give each pod with hostNetwork a node of its own (podAntiAffinity on the job's label, with "
    "topologyKey kubernetes.io/hostname), the launcher none; else the nameserver has a wrong or an "
    "old address: compare the EndpointSlices of the job's headless Service"
)


def findings(observed: Observed) -> tuple[Finding, ...]:
    """Find the problems in what launcher and workers report."""
    return (
        *mpi_versions(observed),
        *shared_addresses(observed),
        *outliers(observed.workers),
        *working_directory(observed),
    )


def explaining_ends(found: Iterable[Finding]) -> dict[str, str]:
    """Give the messages that warn before the start and explain a bad end, by their checks."""
    checks = ("host-names", "working-directory")
    return {item.check: item.message for item in found if item.check in checks}


def working_directory(observed: Observed) -> Iterator[Finding]:
    """Find workers that lack the directory in which ranks are to start."""
    lacking = [worker.host.name for worker in observed.workers if worker.missing_workdir]
    if lacking:
        family = observed.mpi.family
        # Intel MPI goes home in any case, Open MPI where the line does not name the directory.
        given = "wdir" in observed.line.given and family is not MpiFamily.INTEL
        none = given or family is MpiFamily.MPICH
        then = "no rank can start there" if none else "they start in the home directory there"
        message = f"{observed.workdir}, where ranks are to start, is not on {first_few(lacking)}, "
        message += f"or this user may not enter it: {then}"
        yield failed("working-directory", message, level=Level.WARN)


def mpi_versions(observed: Observed) -> Iterator[Finding]:
    """Compare the MPIs of launcher and workers.

    An MPI that the line names by its path is the one whose daemons are started there. What comes
    first on a worker's PATH proves nothing: Hydra calls its proxy by path, Open MPI its daemon.
    """
    ours = observed.mpi
    for worker in observed.workers:
        theirs = worker.called_mpi or (worker.facts.mpi if worker.facts else worker.mpi)
        where = worker.host.name
        if theirs is None:
            if worker.facts:
                message = "no mpirun on its PATH"
                yield failed("mpi-versions", message, host=where, level=Level.WARN)
            continue
        # By its own words, too: of which family this pod's is, MPIBOOT_MPI may have said.
        is_ours = theirs.family == ours.family or theirs.banner == ours.banner
        if is_ours and theirs.version == ours.version:
            continue
        named = ", which the line names" if worker.called_mpi else ""
        message = f"has {theirs.banner}, the launcher {ours.banner}"
        if named or theirs.family is MpiFamily.UNKNOWN:
            message = f"{theirs.path}{named}: {theirs.banner}; the launcher: {ours.banner}"
        # What is not recognised proves nothing.
        known = theirs.family is not MpiFamily.UNKNOWN or theirs.banner == "is not there"
        proof = named and known and theirs.family != ours.family
        level = Level.FAIL if proof else Level.WARN
        yield failed("mpi-versions", message, host=where, level=level)


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


def outliers(workers: Sequence[Worker]) -> Iterator[Finding]:
    """Compare the workers' GPUs, RDMA ports and MTUs: a mixed set may be meant."""
    seen = {}
    for worker in workers:
        if worker.facts:
            gpus, link = worker.facts.gpus, link_of(worker.address, worker.facts.links)
            ports = sum(len(device.ports) for device in worker.facts.fabric.devices)
            seen[worker.host.name] = (
                f"{gpus.count} {gpus.kind}".strip()
                + f" GPUs, {ports} RDMA ports, MTU {link.mtu if link else 'not known'}"
            )
    found = majority(seen)
    if found:
        yield failed("workers-differ", f"workers differ: {found.message}", level=Level.WARN)
