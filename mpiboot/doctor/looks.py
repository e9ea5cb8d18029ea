"""What doctor looks at in a pod, a function for each part: bounded in time, nothing is changed.

One folder is made, as every role makes its own, and taken away at doctor's end. No program of the
image is run but the loader (``ldd PROGRAM``) and ``mpirun --version``.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import socket
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from mpiboot.core.checks import MpibootError
from mpiboot.core.model import Finding, Mpi, MpiFamily
from mpiboot.core.settings import Settings
from mpiboot.doctor.checks import ok, warned
from mpiboot.doctor.pod import (
    ImagePart,
    LimitsPart,
    MemoryPart,
    Program,
    ServersPart,
    ShmPart,
    SshdPart,
    SshListener,
)
from mpiboot.launcher import shims as names
from mpiboot.network import pod
from mpiboot.network.sysfs import text
from mpiboot.ssh import openssh
from mpiboot.supervisor.state import FAMILIES
from mpiboot.system import control_groups, files, keys, processes, programs

_FOLDER_ROLE: Final = "doctor-"


def role() -> str:
    """Name the folder of this run: two people may ask at once in one pod."""
    return f"{_FOLDER_ROLE}{os.getpid()}"


def folder(settings: Settings, environ: Mapping[str, str]) -> list[Finding]:
    """Make the private folder of this role."""
    named = environ.get("TMPDIR", "")
    found = []
    try:
        made = files.runtime_dir(settings.runtime_dir, os.getuid(), role(), tmpdir=named)
        found.append(ok("runtime-folder", f"the private folder is {made}"))
    except MpibootError as problem:
        found.append(problem.finding)
    try:
        files.check_tmpdir(named)
    except MpibootError as problem:
        found.append(problem.finding)
    return found


def remove_folder(settings: Settings, environ: Mapping[str, str]) -> None:
    """Leave nothing behind: neither this run's folder nor that of a run that was killed."""
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
    except MpibootError as problem:
        return [problem.finding]
    about = mounted.stat()
    mode = f"mode {stat.S_IMODE(about.st_mode):04o} of uid {about.st_uid}"
    # The folder's own: each file of a Secret is a link into a folder beside it.
    read_only = ", read-only" if os.statvfs(mounted).f_flag & os.ST_RDONLY else ""
    kind = found.public.partition(" ")[0]
    message = f"the key is {mounted}, {kind} {found.fingerprint}, {mode}{read_only}"
    other = keys.check_authorized_keys(found, mounted)
    return [ok("ssh-key", message), *([other] if other else [])]


def shims(environ: Mapping[str, str]) -> list[Finding]:
    """Look for mpirun's shims, and for calls that bypass them."""
    try:
        good, bad = names.effects(environ)
    except MpibootError:  # started from a folder of sources, where no shim can lead to it
        good, bad = "", ""
    past = [warned("shims", message) for message in (bad, names.passed_by()) if message]
    return [*([ok("shims", good)] if good else []), *past]


PROC: Final = Path("/proc")
SHM: Final = Path("/dev/shm")  # noqa: S108 - looked at only
# Names of /proc/PID/limits that a job meets.
LIMITS: Final = {
    "locked memory": "Max locked memory",
    "open files": "Max open files",
    "processes": "Max processes",
}
_LIMIT: Final = re.compile(r"^(Max [a-z ]+?) {2,}(\S+)", re.MULTILINE)


def limits(server: str, proc: Path = PROC, groups: Path = control_groups.GROUPS) -> LimitsPart:
    """Read the limits of sessions and of the pod's first process.

    Args:
        server: the process whose limits SSH sessions have, as /proc names it; empty where none is.
        proc: where /proc is.
        groups: where control groups are mounted.
    """
    sessions = _limits(proc / server / "limits") if server else {}
    tasks = control_groups.processes(groups, proc)
    return LimitsPart(sessions, _limits(proc / "1/limits"), tasks.used, tasks.limit or 0)


def _limits(path: Path) -> dict[str, int]:
    rows = {match[1]: match[2] for match in _LIMIT.finditer(text(path))}
    known = {name: rows.get(row, "") for name, row in LIMITS.items()}
    return {
        name: -1 if value == "unlimited" else int(value)
        for name, value in known.items()
        if value == "unlimited" or value.isdigit()
    }


def shm(folder: Path = SHM) -> ShmPart:
    """Measure /dev/shm."""
    room = os.statvfs(folder)
    size = room.f_blocks * room.f_frsize
    return ShmPart(size, size - room.f_bfree * room.f_frsize)


def memory(groups: Path = control_groups.GROUPS, proc: Path = PROC) -> MemoryPart:
    """Read the container's control group.

    Raises:
        OSError: it can't be read.
    """
    seen = control_groups.memory(groups, proc)
    if not seen.seen:
        raise OSError(0, "no control group of this container can be read")
    return MemoryPart(seen.limit or 0, seen.used, control_groups.kills(groups, proc))


_MPIBOOT: Final = "mpiboot"  # what its SSH servers say of themselves
_GREETS_WITHIN: Final = 2.0  # seconds; a server greets at once, a proxy never
_GREETING: Final = 255  # RFC 4253, 4.2
# A socket that listens on every address is reached by loopback.
_ANY: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - read, not bound


def servers(own: int, ports: Iterable[int]) -> ServersPart:
    """Ask what listens on these ports for its greeting; what does not speak SSH is left out.

    Args:
        own: the port of this pod's worker, 0 where none runs.
        ports: where else to look.
    """
    found = []
    for port, listening in _listening(own, *ports).items():
        greeting = next(filter(None, (_greeting(item.address, port) for item in listening)), "")
        if greeting:
            pid = _process_of(listening)
            name = text(PROC / str(pid) / "comm") if pid else ""
            found.append(SshListener(port, greeting, pid, name, _MPIBOOT in greeting))
    return ServersPart(own, tuple(found))


def process_of(port: int) -> int:
    """Give the process that listens on a port; 0 where none of this user's does."""
    return _process_of(_listening(port)[port])


def _process_of(listening: Iterable[processes.Listener]) -> int:
    return next((item.pid for item in listening if item.pid), 0)


def _listening(*ports: int) -> dict[int, list[processes.Listener]]:
    """List by its port what listens there, in one look at the sockets."""
    every = processes.listeners()
    return {port: [item for item in every if item.port == port] for port in ports if port}


def _greeting(address: str, port: int) -> str:
    where = (_ANY.get(address, address), port)
    try:
        with socket.create_connection(where, _GREETS_WITHIN) as connection:
            data = connection.recv(_GREETING)
    except OSError:
        return ""
    line = data.partition(b"\n")[0].decode("utf-8", "replace").strip()
    return line if line.startswith("SSH-") else ""


_PATIENCE: Final = 5.0  # seconds that a program has


MODULES: Final = ("asyncssh", "click", "dns", "psutil", "pyroute2")
# glibc's loader and musl's, in their own words.
_NOT_FOUND: Final = ("=> not found", "Error loading shared library", "cannot open shared object")


def image(environ: Mapping[str, str]) -> ImagePart:
    """Look for what a job needs of the image."""
    search = programs.search_path(environ)
    mpi = programs.detect_mpi(environ)
    found = [Program("mpirun", mpi.path, _lacks(mpi.path, environ))] if mpi else []
    ssh = shutil.which("ssh", path=search) or ""
    found.append(Program("ssh", ssh, _lacks(ssh, environ)))
    sshd = openssh.find(search)
    if sshd:
        found.append(Program("sshd", sshd, _lacks(sshd, environ)))
    return ImagePart(
        mpi,
        tuple(found),
        _daemon(mpi, search, environ) if mpi else None,
        platform.python_version(),
        tuple(name for name in MODULES if importlib.util.find_spec(name) is None),
        search,
    )


def _daemon(mpi: Mpi, search: str, environ: Mapping[str, str]) -> Program | None:
    if mpi.family is MpiFamily.UNKNOWN or mpi.family.value not in FAMILIES:
        return None
    name = FAMILIES[mpi.family.value].daemon
    beside = (str(Path(mpi.path).parent), os.path.dirname(os.path.realpath(mpi.path)))  # noqa: PTH120
    path = shutil.which(name, path=os.pathsep.join((*beside, search))) or ""
    return Program(name, path, _lacks(path, environ))


def sshd(environ: Mapping[str, str]) -> SshdPart:
    """Ask what the worker asks before it starts a server; nothing is made."""
    who = pod.identity(environ)
    seen = openssh.conditions(who, programs.search_path(environ), make=False)
    return SshdPart(seen.path, openssh.reason_against(seen, who, "/run/mpiboot"))


def _lacks(path: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Give what the loader says of libraries that it does not find, in the words of ``ldd``."""
    try:
        done = programs.run(("ldd", path), _PATIENCE, environ) if path else None
    except OSError:  # an image without ldd
        return ()
    lines = (done.stdout + done.stderr).splitlines() if done else []
    bad = (line for line in lines if any(word in line for word in _NOT_FOUND))
    return tuple(dict.fromkeys(line.strip() for line in bad))
