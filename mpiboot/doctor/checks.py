"""The checks of one pod: its image, key, memory, data network, GPUs.

Each observes one thing and judges it; all run at once, bounded in time, and change nothing. One
private folder is made, as every role makes one, and removed at doctor's end. Of the image's
programs ``ldd PROGRAM`` and ``mpirun --version`` are run.
"""

from __future__ import annotations

import os
import resource
import shutil
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from mpiboot.core.checks import DATA_CHECKS, MpibootError, failed
from mpiboot.core.facts import Host, PodFacts, Worker
from mpiboot.core.model import Finding, Level, Mpi, Role
from mpiboot.core.settings import Resolved, Settings
from mpiboot.core.wording import counted, first_few, lasting, size_of
from mpiboot.launcher import shims as names
from mpiboot.network import decision, worker_network
from mpiboot.network import pod as this_pod
from mpiboot.ssh import openssh
from mpiboot.ssh.server import WorkerState
from mpiboot.supervisor.job import FAMILIES
from mpiboot.system import files, keys, processes, programs
from mpiboot.worker import facts


class Pod(NamedTuple):
    """This pod: settings, environment, and its worker where mpiboot runs as one."""

    resolved: Resolved
    environ: Mapping[str, str]
    worker: WorkerState | None = None


@dataclass(frozen=True, slots=True)
class PodCheck:
    """A check.

    ``references`` are the rows of its findings in ``core.checks``; what ``judge`` raises is one,
    too. ``role`` is the role it applies to (None: both).
    """

    references: tuple[str, ...]
    judge: Callable[[Pod], Iterable[Finding]]
    role: Role | None = None


warned: Final = partial(failed, level=Level.WARN)


def ok(reference: str, message: str, host: str = "") -> Finding:
    """Build a finding of a check that passed."""
    return Finding(reference, Level.OK, message, host)


def chosen(role: Role, only: Collection[str] = ()) -> tuple[PodCheck, ...]:
    """Select the checks of a pod of this role; with ``only`` those of these references.

    A pod without a role may become either.
    """
    found = (
        replace(row, references=tuple(name for name in row.references if not only or name in only))
        for row in POD
        if role is Role.NONE or row.role in (None, role)
    )
    return tuple(row for row in found if row.references)


def run(checks: Sequence[PodCheck], pod: Pod, seconds: float) -> Iterator[Finding]:
    """Run checks, a thread each; where one hangs or fails, its result is unknown.

    Args:
        checks: the checks.
        pod: this pod.
        seconds: how long they may take together.
    """
    found: dict[PodCheck, list[Finding]] = {}

    def unknown(check: PodCheck, why: str) -> list[Finding]:
        return [Finding(check.references[0], Level.UNKNOWN, f"not known: {why}")]

    def judge(check: PodCheck) -> None:
        try:
            found[check] = list(check.judge(pod))
        except MpibootError as exc:
            found[check] = [exc.finding]
        except OSError as exc:
            found[check] = unknown(check, exc.strerror or str(exc))
        except Exception as exc:  # noqa: BLE001 - one that fails must not end the others
            found[check] = unknown(check, f"internal error: {type(exc).__name__}: {exc}")

    threads = []
    deadline = time.monotonic() + seconds
    for check in checks:
        # No executor, which would wait at exit for a thread that hangs in the kernel.
        thread = threading.Thread(target=judge, args=(check,), daemon=True)
        try:
            thread.start()
            threads.append(thread)
        except RuntimeError:  # the pod may start no more threads, which doctor is to report
            judge(check)
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    for check in checks:
        late = f"no answer within {lasting(seconds)}"
        yield from found[check] if check in found else unknown(check, late)


# --- the image

_TIMEOUT_S: Final = 5.0
# Messages of glibc's loader and of musl's.
_NOT_FOUND: Final = ("=> not found", "Error loading shared library", "cannot open shared object")


def image(pod: Pod) -> Iterator[Finding]:
    """Check for mpirun, its daemon, and the shared libraries of a job's programs."""
    search = programs.search_path(pod.environ)
    mpi = programs.detect_mpi(pod.environ)
    ssh = shutil.which("ssh", path=search) or ""
    paths = {"mpirun": mpi.path if mpi else "", "ssh": ssh, "sshd": openssh.find(search)}
    if mpi is None:
        yield failed(
            "program-missing",
            "no mpirun or mpiexec on PATH",
            evidence=(f"PATH={search}",),
            hint="install an MPI in the image, or put its bin folder on PATH",
        )
    else:
        yield ok("program-missing", f"mpirun is {mpi.path}, {mpi.banner}")
        if family := FAMILIES.get(mpi.family.value):
            name = family.daemon
            if path := _daemon(mpi, name, search):
                paths[name] = path
                yield ok("mpi-daemon", f"{name} is {path}")
            else:
                yield failed("mpi-daemon", f"{mpi.path} has no {name} beside it or on PATH")
    there = {name: path for name, path in paths.items() if path}
    lacking = {path: lines for path in there.values() if (lines := _lacks(path, pod.environ))}
    for path, lines in lacking.items():
        message = f"{path} does not find all of its shared libraries"
        yield failed("shared-libraries", message, evidence=lines)
    if there and not lacking:
        yield ok("shared-libraries", f"shared libraries: all are found for {', '.join(there)}")


def _daemon(mpi: Mpi, name: str, search: str) -> str:
    beside = (str(Path(mpi.path).parent), os.path.dirname(os.path.realpath(mpi.path)))  # noqa: PTH120
    return shutil.which(name, path=os.pathsep.join((*beside, search))) or ""


def _lacks(path: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """List the lines of ``ldd`` about libraries that are missing."""
    try:
        done = programs.run(("ldd", path), _TIMEOUT_S, environ)
    except OSError:  # an image without ldd
        return ()
    lines = (done.stdout + done.stderr).splitlines() if done else []
    bad = (line for line in lines if any(word in line for word in _NOT_FOUND))
    return tuple(dict.fromkeys(line.strip() for line in bad))


def shims(_: Pod) -> Iterator[Finding]:
    """Report an mpirun that is the container's first process without mpiboot."""
    if message := names.passed_by():
        yield warned("shims", message)


# --- files

_FOLDER_ROLE: Final = "doctor-"


def role_name() -> str:
    """Name this run's folder: doctor may run twice at once in a pod."""
    return f"{_FOLDER_ROLE}{os.getpid()}"


def folder(pod: Pod) -> Iterator[Finding]:
    """Make the private folder of this role."""
    wanted, named = pod.resolved.settings.runtime_dir, pod.environ.get("TMPDIR", "")
    made = files.runtime_dir(wanted, os.getuid(), role_name(), tmpdir=named)
    yield ok("runtime-folder", f"the private folder is {made}")


def tmpdir(pod: Pod) -> tuple[Finding, ...]:
    """Check TMPDIR."""
    files.check_tmpdir(pod.environ.get("TMPDIR", ""))
    return ()


def remove_folder(settings: Settings, environ: Mapping[str, str]) -> None:
    """Remove this run's folder, and those of runs that were killed."""
    named = environ.get("TMPDIR", "")
    made = files.find_role(settings.runtime_dir, os.getuid(), role_name(), named)
    for one in made.parent.glob(f"{_FOLDER_ROLE}*") if made else ():
        if one == made or not os.path.exists(f"/proc/{one.name[len(_FOLDER_ROLE) :]}"):  # noqa: PTH110
            files.remove_role(one)


def key(pod: Pod) -> Iterator[Finding]:
    """Find the job's key as a launcher or worker does, which uses a copy of mode 0600."""
    wanted, who = pod.resolved.settings.ssh_key, this_pod.identity(pod.environ)
    homes = (who.home, pod.environ.get("HOME", ""))
    mounted = keys.find(wanted, homes, who.uid)
    if mounted is None:
        raise keys.missing(wanted, homes, who.uid)
    found = keys.load(mounted)
    about, kind = mounted.stat(), found.public.partition(" ")[0]
    mode = f"mode {stat.S_IMODE(about.st_mode):04o} of uid {about.st_uid}"
    yield ok("ssh-key", f"the key is {mounted}, {kind} {found.fingerprint}, {mode}")


# --- limits


LIMITS: Final = {
    "locked memory": resource.RLIMIT_MEMLOCK,
    "open files": resource.RLIMIT_NOFILE,
    "processes": resource.RLIMIT_NPROC,
}


def session() -> dict[str, str]:
    """Read the uid and the limits of this very session."""
    limits = {name: resource.getrlimit(kind)[0] for name, kind in LIMITS.items()}.items()
    shown = {name: "unlimited" if value < 0 else str(value) for name, value in limits}
    return {"uid": str(os.getuid()), **shown}


_NEARLY_FULL: Final = 0.9  # of a limit


def shm(_: Pod) -> Iterator[Finding]:
    """Check how full /dev/shm is; its size is judged with the data network."""
    room = os.statvfs("/dev/shm")  # noqa: S108 - read only
    size = room.f_blocks * room.f_frsize
    used = size - room.f_bfree * room.f_frsize
    message = f"{size_of(used)} of {size_of(size)} in /dev/shm in use"
    full = size and used > _NEARLY_FULL * size
    yield warned("shm-full", message) if full else ok("shm-full", message)


def memory(_: Pod) -> Iterator[Finding]:
    """Report how many of the container's processes the kernel killed for want of memory."""
    if kills := processes.memory_kills():
        killed = counted(kills, "process", "processes")
        yield warned("memory-limit", f"out of memory: the kernel killed {killed} here")
    elif kills == 0:
        yield ok("memory-limit", "the kernel killed no process here for want of memory")
    else:
        message = "memory kills: no control group of this container can be read"
        yield failed("memory-limit", message, level=Level.UNKNOWN)


# --- the data network, GPUs and the links that variables name: a launcher's plan reports these


def devices(pod: Pod) -> Iterator[Finding]:
    """Check what this worker's facts show."""
    found = facts.gather(pod.resolved, pod.environ, mpi=None, pid=1, state=pod.worker)
    yield from data_network(found, pod.resolved.settings)
    yield from gpus(found)


def data_network(found: PodFacts, settings: Settings) -> Iterator[Finding]:
    """Apply the rules for one worker."""
    host = Host(found.hostname, slots=max(found.gpus.count, 1))
    alone = Worker(host, found.control_address, 22, "", "", found)
    made = decision.decide((worker_network.choose(alone, settings),), settings, {})
    (network,) = made.networks
    yield from (replace(item, host="") for item in made.findings)
    if network.usable:
        rails = first_few(rail.name for rail in network.rails)
        message = f"{counted(len(network.rails), network.transport.value + ' port')}: {rails}"
        yield ok("rdma-missing", message)
    elif not network.unseen:
        links = first_few(link.name for link in network.data)
        message = f"no usable RDMA port; data goes over TCP{f' on {links}' if links else ''}"
        yield ok("rdma-missing", message)


def gpus(found: PodFacts) -> Iterator[Finding]:
    """Compare the GPUs in /dev with those on the PCI bus."""
    count, lost = found.gpus.count, found.gpus.lost
    if lost:
        message = f"{lost} of {lost + count} GPUs in /dev are no longer on the PCI bus"
        yield warned("gpus", message)
    elif count:
        yield ok("gpus", counted(count, "GPU"))


_DATA: Final = (*(row.reference for row in DATA_CHECKS), "gpus")
IMAGE: Final = ("program-missing", "mpi-daemon", "shared-libraries")
POD: Final = (
    PodCheck(IMAGE, image),
    PodCheck(("shims",), shims, Role.LAUNCHER),
    PodCheck(("runtime-folder",), folder),
    PodCheck(("tmpdir",), tmpdir),
    PodCheck(("ssh-key",), key),
    PodCheck(("shm-full",), shm, Role.WORKER),
    PodCheck(("memory-limit",), memory),
    PodCheck(_DATA, devices, Role.WORKER),
)
