"""The job's pods: problems and unusual conditions. Pure.

Usual conditions are not reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from mpiboot.core.checks import failed
from mpiboot.core.facts import Link, PodFacts, Worker
from mpiboot.core.model import Finding, Level, MpiFamily, Source, SshKind
from mpiboot.core.wording import first_few, grouped, majority
from mpiboot.job.names import short
from mpiboot.job.plan_builder import Observed, PlanBuilder
from mpiboot.network.worker_network import launcher_addresses, link_of


@dataclass(frozen=True, slots=True)
class EarlierAttempt:
    """The attempts before this one: how many, the last one's name, and its end where known."""

    number: int
    name: str
    ended: str

    @property
    def message(self) -> str:
        """Say it in one sentence."""
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


_SSH_PORT: Final = 22
# Where private files go when nothing stands against it (``system.files.runtime_dir``).
_FIRST_FOLDER: Final = "/run/mpiboot"
_REFUSED: Final = f"{_FIRST_FOLDER} can't be used"


def tell_launcher(builder: PlanBuilder) -> None:
    """Report what is unusual about the launcher's own pod."""
    _tell_rank_variables(builder)
    observed = builder.observed
    if observed.identity.own_users:
        builder.decide("users", "the pod's own", Source.DETECTED, "no user here is one of the node")
    folder = builder.paths.launch_dir.rpartition("/")[0]
    if observed.environ.get("HOME") == folder:
        builder.decide("home", folder, Source.DETECTED, "this user has no home that can be used")
    temporary = observed.environ.get("TMPDIR", "")
    if temporary.rpartition("/")[0] == folder:
        builder.decide("tmpdir", temporary, Source.DETECTED, "MPI can't write its session to /tmp")
    if folder.startswith(f"{_FIRST_FOLDER}/"):
        return
    given = builder.settings.runtime_dir
    if given:
        named_by = builder.given["runtime_dir"]
        source, reason = named_by.source, f"named by {named_by}"
    elif temporary.startswith("/") and folder.startswith(f"{temporary.rstrip('/')}/"):
        source, reason = Source.ENVIRONMENT, f"TMPDIR; {_REFUSED}"
    else:
        source, reason = Source.DETECTED, _REFUSED
    builder.decide("private-folder", folder, source, reason)


# Of what mpirun sets for ranks, what it or a program takes for the proof that this is one.
_RANK_VARIABLES: Final = ("OMPI_UNIVERSE_SIZE", "OMPI_COMM_WORLD_", "PMIX_RANK")


def _tell_rank_variables(builder: PlanBuilder) -> None:
    """Report variables of a rank in this pod's environment, over which 4.1 does not start."""
    named = [name for name in sorted(builder.environ) if name.startswith(_RANK_VARIABLES)]
    message = f"{', '.join(named)} in this pod's environment: a rank's, set by mpirun alone"
    hint = "remove it from the manifest or the image"
    if builder.row.family is MpiFamily.OPENMPI4 and _RANK_VARIABLES[0] in named:
        builder.fail("usage", f"{message}, and mpirun refuses to start", hint)
    elif named:
        builder.warn("usage", message, hint)


def tell_workers(builder: PlanBuilder) -> None:
    """Report SSH servers of workers that are not sshd on port 22, one line for each reason."""
    workers = builder.observed.workers
    reasons = grouped(
        (worker.facts.sshd_reason or "the worker did not say why", worker.host.name)
        for worker in workers
        if worker.facts and worker.facts.sshd == SshKind.EMBEDDED
    )
    named = ((worker.port, worker.host.name) for worker in workers)
    ports = grouped(item for item in named if item[0] not in (_SSH_PORT, 0))  # kubectl uses none
    for reason, names in reasons.items():
        builder.decide(
            "ssh-server", SshKind.EMBEDDED.value, Source.DETECTED, f"{reason}: {first_few(names)}"
        )
    for port, names in ports.items():
        builder.decide(
            "ssh-port",
            str(port),
            Source.DETECTED,
            f"the job's sshd answers there: {first_few(names)}",
        )


_ONE_ADDRESS: Final = (
    "give each pod with hostNetwork a node of its own (podAntiAffinity on the job's label, with "
    "topologyKey kubernetes.io/hostname); the launcher needs no hostNetwork"
)

_FABRIC_MANAGER: Final = (
    "look at nvidia-fabricmanager on that node (`systemctl status`, `nvidia-smi -q`); until then "
    "CUDA fails with error 802, system not yet initialized"
)
_SHELL: Final = "change it in the workers' image: usermod --shell /bin/bash USER"
PEER_MEMORY: Final = (
    "load nvidia_peermem on the nodes (`modprobe nvidia_peermem`), or use the open kernel driver; "
    "until then NCCL copies through the host's memory, which is slower"
)


def findings(observed: Observed) -> tuple[Finding, ...]:
    """Find the problems in what launcher and workers report."""
    return (
        *mpi_versions(observed),
        *login_shells(observed),
        *mtus(observed.links, observed.workers),
        *shared_addresses(observed),
        *gpus(observed.workers),
    )


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


def login_shells(observed: Observed) -> Iterator[Finding]:
    """Find those that can't read the commands of Open MPI 5.0, which are for the launcher's."""
    ours = observed.identity.shell
    for worker in observed.workers if observed.mpi.family is MpiFamily.OPENMPI5 else ():
        if worker.shell.endswith(("/fish", "csh")) and worker.shell != ours:
            message = f"its login shell is {worker.shell}, and mpirun's commands are for {ours}"
            yield failed(
                "daemon-failed", message, host=worker.host.name, hint=_SHELL, level=Level.WARN
            )


def gpus(workers: Sequence[Worker]) -> Iterator[Finding]:
    """Compare the workers' GPUs; a mixed set may be meant, so it only warns."""
    kinds = {}
    for worker in workers:
        if worker.facts is None:
            continue
        own, where = worker.facts.gpus, worker.host.name
        kinds[where] = f"{own.count} {own.kind}".strip()
        if own.lost:
            message = f"{own.lost} of {own.lost + own.count} GPUs in /dev, the kernel has no more"
            yield failed("gpus", message, host=where, level=Level.WARN)
        if own.fabric not in ("", own.FABRIC_READY):
            message = f"NVLink fabric: {own.fabric}; CUDA starts when Fabric Manager has set it up"
            yield failed("gpus", message, host=where, hint=_FABRIC_MANAGER, level=Level.WARN)
    found = majority(kinds)
    if found:
        yield failed("gpus", f"GPUs differ: {found.message}", level=Level.WARN)


def gpu_memory(builder: PlanBuilder) -> None:
    """Report how RDMA devices reach the memory of NVIDIA GPUs; warn where they can't.

    Without it NCCL works all the same, by a copy through the host's memory, and says so at its own
    level INFO alone.
    """
    ways = grouped(
        (" or ".join(worker.facts.gpus.peer_memory), worker.host.name)
        for worker in builder.observed.workers
        if worker.facts and wants_gpu_memory(worker.facts)
    )
    without = ways.pop("", [])
    for way, names in ways.items():
        reason = f"RDMA devices reach GPU memory by it (GPUDirect RDMA) on {first_few(names)}"
        builder.decide("gpu-memory", way, Source.DETECTED, reason)
    if without:
        where = "all of them" if not ways else first_few(without)
        message = f"RDMA devices reach no GPU memory on {where}: neither nvidia_peermem nor DMA-BUF"
        builder.warn("gpus", message, PEER_MEMORY)


def wants_gpu_memory(facts: PodFacts) -> bool:
    """Return whether a pod has NVIDIA GPUs, and RDMA devices that could reach their memory."""
    return bool(facts.fabric.devices) and facts.gpus.kind.startswith("NVIDIA")


def _why_shared(workers: Sequence[Worker]) -> str:
    """Return the hint: pods share a node's network, or the nameserver has a wrong address."""
    names = {short(worker.host.name) for worker in workers}
    one_name_each = len(names) == len(workers)
    there = {short(worker.facts.hostname) for worker in workers if worker.facts}
    if len(there) != 1 or not there <= names or not one_name_each:
        return _ONE_ADDRESS
    return (
        f"that pod is {there.pop()}, so that the nameserver has a wrong or an "
        "old address for the other name: look at the EndpointSlices of the job's headless Service "
        "and at the cluster's DNS pods, and start the launcher again"
    )


def shared_addresses(observed: Observed) -> Iterator[Finding]:
    """Find hosts of the hostfile that are not each a pod of its own.

    Pods that share a node's network (hostNetwork) share an address: which of them a name means
    can't be told there, and mpirun would put two hosts' ranks into one of them, or a worker's into
    the launcher.
    """
    servers = grouped(((worker.address, worker.port), worker) for worker in observed.workers)
    for (address, port), workers in servers.items():
        if len(workers) > 1:
            names = first_few(worker.host.name for worker in workers)
            message = f"{names} lead to one and the same SSH server, {address} port {port}"
            yield failed("settings-conflict", message, hint=_why_shared(workers))
    pattern = observed.platform.worker_names
    for host in observed.local:
        if pattern and re.search(pattern, short(host.name)):
            message = "this worker's name leads to the launcher's own address"
            yield failed("settings-conflict", message, hint=_ONE_ADDRESS, host=host.name)


def mtus(launcher: Iterable[Link], workers: Sequence[Worker]) -> tuple[Finding, ...]:
    """Report the MTUs of the pods' control links, where they differ.

    Both ends of a connection agree on the smaller of theirs, so that only what lies between them
    can be too small for it; pods of one network with different MTUs are how that shows.
    """
    mine = tuple(launcher)
    links = [(link_of(item, mine), "the launcher") for item in launcher_addresses(workers)]
    links += [
        (link_of(worker.address, worker.facts.links), worker.host.name)
        for worker in workers
        if worker.facts
    ]
    pods = grouped((link.mtu, name) for link, name in links if link)
    if len(pods) < 2:  # noqa: PLR2004 - two that differ
        return ()
    parts = [f"{size} on {first_few(dict.fromkeys(names))}" for size, names in sorted(pods.items())]
    message = f"MTUs of the control links differ: {'; '.join(parts)}"
    return (failed("control-mtu", message, level=Level.WARN),)
