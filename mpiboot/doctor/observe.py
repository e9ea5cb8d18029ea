"""Observes a pod for doctor, a function for each part; bounded in time, changes nothing.

One private folder is made, as every role makes one, and removed at doctor's end. Of the image's
programs ``ldd PROGRAM`` and ``mpirun --version`` are run, and py-spy or gdb for a rank's stack; gdb
halts the rank meanwhile.
"""

from __future__ import annotations

import os
import resource
import shutil
import stat
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from mpiboot.core.checks import MpibootError
from mpiboot.core.launch_spec import LAUNCH_ID
from mpiboot.core.model import Finding, Mpi, MpiFamily
from mpiboot.core.settings import Settings
from mpiboot.doctor.checks import ImagePart, LimitsPart, Program, ShmPart, ok, warned
from mpiboot.doctor.ranks import (
    LOCAL_SIZES,
    NUMBERS,
    SIZES,
    HostRanks,
    Rank,
    number_in,
    one_process_a_rank,
    state_of,
)
from mpiboot.launcher import shims as names
from mpiboot.network import pod
from mpiboot.network.rdma import text
from mpiboot.ssh import openssh
from mpiboot.supervisor.job import FAMILIES
from mpiboot.system import files, keys, processes, programs
from mpiboot.system.processes import Activity

_FOLDER_ROLE: Final = "doctor-"
_STACK_TIMEOUT_S: Final = 20.0
_MAX_STACK_LINES, _MAX_STACK_CHARACTERS = 30, 200


def role() -> str:
    """Name this run's folder: doctor may run twice at once in a pod."""
    return f"{_FOLDER_ROLE}{os.getpid()}"


def folder(settings: Settings, environ: Mapping[str, str]) -> list[Finding]:
    """Make the private folder of this role."""
    named = environ.get("TMPDIR", "")
    found = []
    try:
        made = files.runtime_dir(settings.runtime_dir, os.getuid(), role(), tmpdir=named)
        found.append(ok("runtime-folder", f"the private folder is {made}"))
    except MpibootError as error:
        found.append(error.finding)
    try:
        files.check_tmpdir(named)
    except MpibootError as error:
        found.append(error.finding)
    return found


def remove_folder(settings: Settings, environ: Mapping[str, str]) -> None:
    """Remove this run's folder, and those of runs that were killed."""
    made = files.find_role(settings.runtime_dir, os.getuid(), role(), environ.get("TMPDIR", ""))
    if made:
        for folder in made.parent.glob(f"{_FOLDER_ROLE}*"):
            if folder == made or not os.path.exists(f"/proc/{folder.name[len(_FOLDER_ROLE) :]}"):  # noqa: PTH110
                files.remove_role(folder)


def key(settings: Settings, environ: Mapping[str, str]) -> list[Finding]:
    """Find the job's key as a launcher or worker finds it."""
    who = pod.identity(environ)
    homes = (who.home, environ.get("HOME", ""))
    mounted = keys.find(settings.ssh_key, homes, who.uid)
    if mounted is None:
        return [keys.missing(settings.ssh_key, homes, who.uid).finding]
    try:
        found = keys.load(mounted)
    except MpibootError as error:
        return [error.finding]
    about = mounted.stat()
    mode = f"mode {stat.S_IMODE(about.st_mode):04o} of uid {about.st_uid}"
    # By the file system: each file of a Secret is a link into a folder beside it.
    read_only = ", read-only" if os.statvfs(mounted).f_flag & os.ST_RDONLY else ""
    kind = found.public.partition(" ")[0]
    message = f"the key is {mounted}, {kind} {found.fingerprint}, {mode}{read_only}"
    return [ok("ssh-key", message)]


def shims(environ: Mapping[str, str]) -> list[Finding]:
    """Find mpirun's shims, and calls that bypass them."""
    try:
        good, bad = names.effects(environ)
    except MpibootError:  # started from a folder of sources, where no shim can lead to it
        good, bad = "", ""
    past = [warned("shims", message) for message in (bad, names.passed_by()) if message]
    return [*([ok("shims", good)] if good else []), *past]


PROC: Final = Path("/proc")
SHM: Final = Path("/dev/shm")  # noqa: S108 - read only
LIMITS: Final = {
    "locked memory": resource.RLIMIT_MEMLOCK,
    "open files": resource.RLIMIT_NOFILE,
    "processes": resource.RLIMIT_NPROC,
}


def limits(server: int) -> LimitsPart:
    """Read the limits of ``server``, which SSH sessions inherit (0: none), and of process 1."""
    return LimitsPart(_limits(server) if server else {}, _limits(1))


def _limits(pid: int) -> dict[str, int]:
    try:
        return {name: resource.prlimit(pid, kind)[0] for name, kind in LIMITS.items()}
    except OSError:  # another user's, or gone
        return {}


def session() -> dict[str, str]:
    """Read the uid and the limits of this very session."""
    limits = _limits(os.getpid()).items()
    shown = {name: "unlimited" if n == resource.RLIM_INFINITY else str(n) for name, n in limits}
    return {"uid": str(os.getuid()), **shown}


def shm(folder: Path = SHM) -> ShmPart:
    """Measure /dev/shm."""
    room = os.statvfs(folder)
    size = room.f_blocks * room.f_frsize
    return ShmPart(size, size - room.f_bfree * room.f_frsize)


def servers(ports: Collection[int]) -> tuple[str, ...]:
    """Name the processes of this pod that listen on these ports."""
    found: dict[int, set[int]] = {}
    for item in processes.sockets("LISTEN"):
        if item.laddr.port in ports and item.pid:
            found.setdefault(item.pid, set()).add(item.laddr.port)
    return tuple(
        f"port {' and '.join(map(str, sorted(taken)))}: process {pid} "
        f"({text(PROC / str(pid) / 'comm')})"
        for pid, taken in found.items()
    )


def process_of(port: int) -> int:
    """Give the process that listens on a port; 0 where none of this user's does."""
    return next((x.pid or 0 for x in processes.sockets("LISTEN") if x.laddr.port == port), 0)


_TIMEOUT_S: Final = 5.0
# Messages of glibc's loader and of musl's.
_NOT_FOUND: Final = ("=> not found", "Error loading shared library", "cannot open shared object")


def image(environ: Mapping[str, str]) -> ImagePart:
    """Find what a job needs of the image."""
    search = programs.search_path(environ)
    mpi = programs.detect_mpi(environ)
    ssh = shutil.which("ssh", path=search) or ""
    paths = {"mpirun": mpi.path if mpi else "", "ssh": ssh, "sshd": openssh.find(search)}
    found = (Program(name, path, _lacks(path, environ)) for name, path in paths.items())
    return ImagePart(mpi, tuple(found), _daemon(mpi, search, environ) if mpi else None, search)


def _daemon(mpi: Mpi, search: str, environ: Mapping[str, str]) -> Program | None:
    if mpi.family is MpiFamily.UNKNOWN or mpi.family.value not in FAMILIES:
        return None
    name = FAMILIES[mpi.family.value].daemon
    beside = (str(Path(mpi.path).parent), os.path.dirname(os.path.realpath(mpi.path)))  # noqa: PTH120
    path = shutil.which(name, path=os.pathsep.join((*beside, search))) or ""
    return Program(name, path, _lacks(path, environ))


def _lacks(path: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """List the lines of ``ldd`` about libraries that are missing."""
    try:
        done = programs.run(("ldd", path), _TIMEOUT_S, environ) if path else None
    except OSError:  # an image without ldd
        return ()
    lines = (done.stdout + done.stderr).splitlines() if done else []
    bad = (line for line in lines if any(word in line for word in _NOT_FOUND))
    return tuple(dict.fromkeys(line.strip() for line in bad))


def ranks(host: str, seconds: float, *, gdb: bool = False) -> HostRanks:
    """Sample the ranks twice.

    Args:
        host: the name by which it is shown.
        seconds: between the samples.
        gdb: whether gdb reads C stacks.
    """
    every = {pid: processes.environ(pid) for pid in processes.pids()}
    environs = {pid: found for pid, found in every.items() if number_in(found, NUMBERS) is not None}
    others = sum(not os.access(f"/proc/{pid}/environ", os.R_OK) for pid in every)
    before = {pid: processes.activity(pid) for pid in environs}
    began = time.monotonic()
    time.sleep(seconds)
    after = {pid: processes.activity(pid) for pid in environs}
    passed = time.monotonic() - began
    found = [
        _rank(pid, host, environ, was, now, passed)
        for pid, environ in environs.items()
        if (was := before[pid]) and (now := after[pid])
    ]
    chosen = sorted(one_process_a_rank(found), key=lambda one: one.number)
    return HostRanks(host, tuple(_details(rank, gdb=gdb) for rank in chosen), others)


def _rank(
    pid: int,
    host: str,
    environ: Mapping[str, str],
    before: Activity,
    now: Activity,
    seconds: float,
) -> Rank:
    cpu = (now.cpu - before.cpu) / seconds
    return Rank(
        number_in(environ, NUMBERS) or 0,
        host,
        pid,
        " ".join(filter(None, (environ.get(LAUNCH_ID), environ.get("PMIX_NAMESPACE")))),
        number_in(environ, SIZES) or 0,
        number_in(environ, LOCAL_SIZES) or 0,
        processes.program(pid).rpartition("/")[2],
        state_of(before.state, now.state, cpu),
        cpu,
        now.cpu / now.age if now.age > 0 else None,
        parent=now.parent,
        mpi="libmpi" in text(PROC / str(pid) / "maps"),
    )


def _details(rank: Rank, *, gdb: bool) -> Rank:
    """Add the kernel function that it waits in, and its stack."""
    process = PROC / str(rank.pid)
    # Of the thread in uninterruptible sleep, or else of the first one.
    stuck = (task for task in process.glob("task/*") if ") D " in text(task / "stat"))
    function = text(next(stuck, process) / "wchan").removeprefix("0")
    return replace(rank, function=function, stack=_stack(rank, gdb=gdb))


def _stack(rank: Rank, *, gdb: bool) -> tuple[str, ...]:
    """Read its stack by a program that is installed: py-spy does not halt the rank, gdb does."""
    pid = str(rank.pid)
    if rank.program.startswith("python") and shutil.which("py-spy"):
        done = programs.run(("py-spy", "dump", "--nonblocking", "--pid", pid), _STACK_TIMEOUT_S)
        lines = (done.stdout + done.stderr).splitlines() if done else []
    elif gdb and shutil.which("gdb"):
        done = programs.run(("gdb", "-nx", "-batch", "-p", pid, "-ex", "bt"), _STACK_TIMEOUT_S)
        lines = [line for line in done.stdout.splitlines() if line[:1] == "#"] if done else []
    else:
        return ()
    return tuple(line[:_MAX_STACK_CHARACTERS] for line in lines[:_MAX_STACK_LINES])
