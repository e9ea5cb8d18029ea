"""The checks of one pod: its image, user, key, SSH servers, limits, data network, GPUs. Pure.

A check is a function with a decorator that names its rows of the table in ``core.checks``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

from mpiboot.core.checks import DATA_CHECKS, failed
from mpiboot.core.facts import Host, PodFacts, Worker
from mpiboot.core.model import Finding, Identity, Level, Mpi, Role
from mpiboot.core.settings import Settings
from mpiboot.core.wording import counted, first_few, size_of
from mpiboot.job.control_links import NAME_LINKS, link_names, links_gone
from mpiboot.network import cluster_view, worker_network
from mpiboot.network.records import RDMA

Judge = Callable[..., Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """A check: its function gets the observed parts that its parameters name.

    ``references`` are the rows of its findings in ``core.checks``; ``role`` is the role it applies
    to (None: both); ``at_build``: it can run while an image is built. If the tests have no broken
    pod for it, the page of checks describes it by the docstring's text after "Looks at".
    """

    references: tuple[str, ...]
    judge: Judge
    role: Role | None = None
    at_build: bool = False

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the parts that the function gets."""
        code = self.judge.__code__
        return tuple(code.co_varnames[: code.co_argcount])

    def __call__(self, *parts: object) -> Iterable[Finding]:
        """Judge the parts."""
        return self.judge(*parts)


def check(
    *references: str, role: Role | None = None, at_build: bool = False
) -> Callable[[Judge], DoctorCheck]:
    """Turn a function into a check; its references are rows of ``core.checks``."""
    return lambda judge: DoctorCheck(references, judge, role, at_build)


worker_check: Final = partial(check, role=Role.WORKER)
warned: Final = partial(failed, level=Level.WARN)


def of_area(area: Mapping[str, object]) -> tuple[DoctorCheck, ...]:
    """List a module's checks, in order of definition."""
    return tuple(item for item in area.values() if isinstance(item, DoctorCheck))


def judge_all(
    checks: Iterable[DoctorCheck], parts: Mapping[str, object], unseen: Mapping[str, str]
) -> Iterator[Finding]:
    """Run each check; if a part was not observed the result is unknown, with the reason."""
    for row in checks:
        missing = [name for name in row.needs if name not in parts]
        if missing:
            why = dict.fromkeys(unseen.get(name, "not observed") for name in missing)
            yield Finding(row.references[0], Level.UNKNOWN, f"not known: {'; '.join(why)}")
        else:
            yield from row(*(parts[name] for name in row.needs))


def ok(reference: str, message: str, host: str = "") -> Finding:
    """Build a finding of a check that passed."""
    return Finding(reference, Level.OK, message, host)


class Program(NamedTuple):
    """A program of the image; ``path`` is empty if it is not installed.

    ``lacks`` are the loader's lines about missing libraries.
    """

    name: str
    path: str
    lacks: tuple[str, ...] = ()


class ImagePart(NamedTuple):
    """The image: its MPI, the programs that a job needs, and their search path.

    ``daemon`` is the program that mpirun starts on every host (None: unknown).
    """

    mpi: Mpi | None
    programs: tuple[Program, ...]
    daemon: Program | None
    search: str = ""


@check("program-missing", at_build=True)
def programs(image: ImagePart) -> Iterable[Finding]:
    """Judge whether mpirun is there."""
    if image.mpi is None:
        yield failed(
            "program-missing",
            "no mpirun or mpiexec on PATH",
            evidence=(f"PATH={image.search}",),
            hint="install an MPI in the image, or put its bin folder on PATH",
        )
    else:
        yield ok("program-missing", f"mpirun is {image.mpi.path}, {image.mpi.banner}")


@check("mpi-daemon", at_build=True)
def daemon(image: ImagePart) -> Iterable[Finding]:
    """Judge whether the daemon of the MPI is there."""
    if image.mpi is None or image.daemon is None:
        return  # reported by program-missing; or the MPI's daemon is not known
    name = image.daemon.name
    if image.daemon.path:
        yield ok("mpi-daemon", f"{name} is {image.daemon.path}")
    else:
        yield failed("mpi-daemon", f"{image.mpi.path} has no {name} beside it or on PATH")


@check("shared-libraries", at_build=True)
def libraries(image: ImagePart) -> Iterable[Finding]:
    """Judge whether the programs find their libraries."""
    daemon = (image.daemon,) if image.daemon else ()
    listed = [item for item in (*image.programs, *daemon) if item.path]
    for item in listed:
        if item.lacks:
            message = f"{item.path} does not find all of its shared libraries"
            yield failed("shared-libraries", message, evidence=item.lacks)
    if listed and not any(item.lacks for item in listed):
        names = ", ".join(item.name for item in listed)
        yield ok("shared-libraries", f"shared libraries: all are found for {names}")


@check("passwd-entry")
def passwd(identity: Identity) -> Iterable[Finding]:
    """Judge the user's entry."""
    if identity.known:
        yield ok("passwd-entry", f"uid {identity.uid} is {identity.user}, home {identity.home}")
    else:
        yield warned("passwd-entry", f"uid {identity.uid} has no passwd entry")


@check("shims", role=Role.LAUNCHER)
def shims(shims: Iterable[Finding]) -> Iterable[Finding]:
    """Report the shims that start mpiboot, and calls that bypass them."""
    return shims


class LimitsPart(NamedTuple):
    """Soft limits of a process (-1: none), by their names in /proc/PID/limits.

    ``sessions`` are those that an SSH session gets, ``first`` those of the pod's first process.
    """

    sessions: Mapping[str, int]
    first: Mapping[str, int]


class ShmPart(NamedTuple):
    """Shared memory, /dev/shm: its size and usage, in bytes."""

    size: int
    used: int


@check("runtime-folder", "tmpdir")
def folder(folder: Iterable[Finding]) -> Iterable[Finding]:
    """Report the private folder and TMPDIR, which every role needs."""
    return folder


@check("ssh-key")
def key(key: Iterable[Finding]) -> Iterable[Finding]:
    """Report the job's key. Its mode does not matter: roles use a copy of mode 0600."""
    return key


_NEARLY_FULL: Final = 0.9  # of a limit


@worker_check("other-ssh-server")
def ssh_servers(servers: Sequence[str]) -> Iterable[Finding]:
    """Report other SSH servers in a pod that does not run mpiboot's worker."""
    for server in servers:
        yield warned("other-ssh-server", f"{server} listens, which mpiboot did not start")


@worker_check("session-limits")
def limits(limits: LimitsPart) -> Iterable[Finding]:
    """Compare the limits of sessions with those of the pod's first process."""
    if not limits.sessions or not limits.first:
        return
    lower = [
        f"{name} {_limit(name, own)} (the first process: {_limit(name, limits.first[name])})"
        for name, own in limits.sessions.items()
        # Below 0: unlimited.
        if own >= 0 and not 0 <= limits.first.get(name, 0) <= own
    ]
    if lower:
        yield warned("session-limits", f"SSH sessions get less: {', '.join(lower)}")
    else:
        parts = ", ".join(f"{name} {_limit(name, own)}" for name, own in limits.sessions.items())
        yield ok("session-limits", f"SSH sessions have the limits of the first process: {parts}")


def _limit(name: str, value: int) -> str:
    if value < 0:
        return "unlimited"
    return size_of(value) if name == "locked memory" else str(value)


@worker_check("shm-full")
def shm(shm: ShmPart) -> Iterable[Finding]:
    """Judge how full /dev/shm is; its size is judged with the data network."""
    message = f"{size_of(shm.used)} of {size_of(shm.size)} in /dev/shm in use"
    full = shm.size and shm.used > _NEARLY_FULL * shm.size
    yield warned("shm-full", message) if full else ok("shm-full", message)


@check("memory-limit")
def memory(memory: int | None) -> Iterable[Finding]:
    """Report how many of the container's processes the kernel killed for want of memory."""
    if memory:
        killed = counted(memory, "process", "processes")
        yield warned("memory-limit", f"out of memory: the kernel killed {killed} here")
    elif memory == 0:
        yield ok("memory-limit", "the kernel killed no process here for want of memory")


# -- the data network, GPUs and the links that variables name --


# A launcher's plan reports these for all pods.
@worker_check(*(row.reference for row in DATA_CHECKS))
def data_network(facts: PodFacts, settings: Settings) -> Iterable[Finding]:
    """Apply the rules for one worker."""
    host = Host(facts.hostname, slots=max(facts.gpus.count, 1))
    alone = Worker(host, facts.control_address, 22, "", "", facts)
    network = worker_network.choose(alone, settings)
    found = cluster_view.findings((network,), settings, {})
    yield from (replace(item, host="") for item in found)
    if network.transport in RDMA:
        rails = first_few(rail.name for rail in network.rails)
        message = f"{counted(len(network.rails), network.transport.value + ' port')}: {rails}"
        yield ok("rdma-missing", message)
    elif not network.unseen:
        links = first_few(link.name for link in network.data)
        message = f"no RDMA device of this pod; data goes over TCP{f' on {links}' if links else ''}"
        yield ok("rdma-missing", message)


@worker_check("gpus")
def gpus(facts: PodFacts) -> Iterable[Finding]:
    """Compare the GPUs in /dev with those on the PCI bus."""
    own = facts.gpus
    if own.lost:
        message = f"{own.lost} of {own.lost + own.count} GPUs in /dev are no longer on the PCI bus"
        yield warned("gpus", message)
    elif own.count:
        yield ok("gpus", counted(own.count, "GPU"))


@worker_check("named-links")
def named_links(environ: Mapping[str, str], facts: PodFacts) -> Iterable[Finding]:
    """Report variables that name a link which this pod lacks."""
    for name in NAME_LINKS:
        if gone := links_gone(facts, environ.get(name, "")):
            message = f"{name}={environ[name]}: no link {first_few(gone)} here"
            yield warned("named-links", f"{message} (there are {first_few(link_names(facts))})")


# The checks of one pod.
POD: Final = of_area(globals())
