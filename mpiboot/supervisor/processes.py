"""Processes of this pod: what mpirun runs here, and what it has left.

What is read is /proc and nothing else. ``root`` is a parameter for tests. As a program this ends
what a launcher that was killed has left: ``processes.py FOLDER LAUNCH_ID LOG_FORMAT``.
"""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

# Run by its path, it must find its package first.
if __name__ == "__main__":
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path.append(os.path.dirname(package))

from mpiboot.core import log
from mpiboot.core.launch_names import KEEP_KEY, KEY, LAUNCH_DIR, LAUNCH_ID, outside_launch
from mpiboot.core.setting_types import LogFormat
from mpiboot.core.wording import counted
from mpiboot.system.os_calls import process_handle
from mpiboot.system.spawn import spawn

# Programs that are mpirun under one of its names; a wrapper script above it is not.
MPIRUNS: Final = ("mpirun", "mpiexec", "orterun", "prterun", "prte")
_ESTABLISHED: Final = "01"


class Processes:
    """The process table, read on demand."""

    def __init__(self, root: str = "/proc") -> None:
        self.root = root
        self._table: dict[int, list[int]] | None = None

    def children(self, pid: int) -> list[int]:
        """List a process's children: from its own file, else from every process's parent."""
        found: list[int] = []
        try:
            for task in os.listdir(f"{self.root}/{pid}/task"):
                with open(f"{self.root}/{pid}/task/{task}/children", encoding="ascii") as file:
                    found += [int(word) for word in file.read().split()]
        except FileNotFoundError:  # the process ended, or this kernel has no such file
            return self.table().get(pid, [])
        except OSError:
            return []
        return found

    def table(self) -> dict[int, list[int]]:
        """Read every process's parent, once for this look."""
        if self._table is None:
            self._table = {}
            for name in os.listdir(self.root):
                if name.isdigit():
                    parent = self.parent(int(name))
                    self._table.setdefault(parent, []).append(int(name))
        return self._table

    def parent(self, pid: int) -> int:
        """Give a process's parent; -1 where it is gone."""
        try:
            with open(f"{self.root}/{pid}/stat", encoding="utf-8", errors="replace") as file:
                # The name is in brackets and may hold anything, brackets too.
                return int(file.read().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return -1

    def descendants(self, pid: int) -> Iterator[int]:
        """Give all processes below one, parents first."""
        queue = self.children(pid)
        seen: set[int] = set()
        while queue:
            child = queue.pop(0)
            if child not in seen:
                seen.add(child)
                yield child
                queue += self.children(child)

    def program(self, pid: int) -> str:
        """Give the path of what a process runs; empty where it is gone or another user's."""
        try:
            return os.readlink(f"{self.root}/{pid}/exe").removesuffix(" (deleted)")
        except OSError:
            return ""

    def name(self, pid: int) -> str:
        """Give a process's short name."""
        return self._text(pid, "comm").strip()

    def arguments(self, pid: int) -> list[str]:
        """Give a process's argument words."""
        return self._text(pid, "cmdline").split("\0")

    def environment(self, pid: int) -> list[str]:
        """Give the environment that a process was started with."""
        return self._text(pid, "environ").split("\0")

    def _text(self, pid: int, what: str) -> str:
        try:
            with open(f"{self.root}/{pid}/{what}", encoding="utf-8", errors="replace") as file:
                return file.read()
        except OSError:
            return ""


def find_mpiruns(child: int, table: Processes) -> Iterator[int]:
    """Find mpirun itself at or below the process that was started."""
    queue = [child]
    while queue:
        pid = queue.pop(0)
        if os.path.basename(table.program(pid)).startswith(MPIRUNS):
            yield pid
        else:
            queue += table.children(pid)


def unread(mpiruns: Iterable[int]) -> bool:
    """Whether mpirun has unread data on a TCP connection; False where that is hidden."""
    try:
        found = list(_connections(_sockets(mpiruns)))
    except OSError:
        return False
    return any(words[4].partition(":")[2].strip("0") for words in found)


def _sockets(mpiruns: Iterable[int]) -> set[str]:
    """Give the numbers of the sockets that mpirun has open."""
    sockets: set[str] = set()
    for pid in mpiruns:
        folder = f"/proc/{pid}/fd"
        try:
            names = os.listdir(folder)
        except FileNotFoundError:  # it ended
            continue
        for name in names:
            try:
                link = os.readlink(f"{folder}/{name}")
            except FileNotFoundError:
                continue
            if link.startswith("socket:["):
                sockets.add(link[8:-1])
    return sockets


def _connections(sockets: set[str]) -> Iterator[list[str]]:
    """Give the lines of the tables of TCP connections that are about these sockets."""
    for table in ("tcp", "tcp6"):
        try:
            with open(f"/proc/self/net/{table}", encoding="ascii") as file:
                lines = file.read().splitlines()[1:]
        except FileNotFoundError:
            if table == "tcp":
                raise
            continue  # a kernel without IPv6
        for words in map(str.split, lines):
            if words[3] == _ESTABLISHED and words[9] in sockets:
                yield words


_PATIENCE: Final = 2.0
_STEP: Final = 0.02


_PROGRAM_HEAD: Final = 4 << 20  # bytes; linkers put the names of libraries near the beginning
_MPI_LIBRARY: Final = re.compile(rb"\0(lib(?:mpi|mpich)\.so\.\d+)(?=\0)")


def linked_mpi(program: str, path: str) -> frozenset[str]:
    """Give the MPI libraries that a program of this pod is linked with; none where not known."""
    folders = [""] if "/" in program else [f"{folder or '.'}/" for folder in path.split(":")]
    for folder in folders:
        with suppress(OSError), open(folder + program, "rb") as file:
            data = file.read(_PROGRAM_HEAD)
            names = _MPI_LIBRARY.findall(data) if data.startswith(b"\x7fELF") else ()
            return frozenset(name.decode() for name in names)
    return frozenset()


def survivors(child: int, folder: str, *, reaped: bool, launch_id: str = "") -> list[int]:
    """Find what mpirun started on this pod and what still runs.

    That is what stands below it in the process tree, and, once it is gone and its children
    belong to somebody else, whatever was started with this launch's own ID in its environment
    and lives in this pod (two pods that share a process table don't share a mount namespace).
    With its ``launch_id`` a later launch in the same folder is told apart.
    """
    table = Processes()
    found = [] if reaped else list(table.descendants(child))
    wanted = {f"{LAUNCH_DIR}={folder}"} | ({f"{LAUNCH_ID}={launch_id}"} if launch_id else set())
    own = _mounts("self")
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) in (os.getpid(), child):
            continue
        if wanted.issubset(table.environment(int(name))) and _mounts(name) == own:
            found.append(int(name))
    return list(dict.fromkeys(found))


def _mounts(pid: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return ""


def send(pids: list[int], number: int) -> None:
    """Send a signal to those processes that still run."""
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, number)


def end_all(child: int, folder: str, *, launch_id: str = "", running: bool = False) -> int:
    """End what mpirun left here: SIGTERM, and after some time SIGKILL; give their number.

    With ``running`` that includes mpirun, the ``child``, and all that stands below it.
    """
    left = survivors(child, folder, reaped=not running, launch_id=launch_id)
    if running:
        left.append(child)
    if not left:
        return 0
    count = len(left)
    for number in (signal.SIGTERM, signal.SIGKILL):
        send(left, number)
        wait_gone(left)
        # Those that were ended may have started others; a zombie has no environment any more.
        left = survivors(child, folder, reaped=True, launch_id=launch_id)
        if not left:
            break
    return count


def wait_gone(pids: list[int], patience: float = _PATIENCE) -> None:
    """Wait until processes are gone, whoever their parent is."""
    deadline = time.monotonic() + patience
    poll, handles, unseen = select.poll(), [], []
    for pid in pids:
        with suppress(ProcessLookupError):
            handle = process_handle(pid)
            if handle is None:
                unseen.append(pid)
                continue
            handles.append(handle)
            poll.register(handle, select.POLLIN)
    alive = set(handles)
    while alive and (left := deadline - time.monotonic()) > 0:
        for handle, _ in poll.poll(left * 1000):
            poll.unregister(handle)
            alive.discard(handle)
    for handle in handles:
        os.close(handle)
    while time.monotonic() < deadline and any(os.path.exists(f"/proc/{pid}") for pid in unseen):
        time.sleep(_STEP)


# A line on the pipe tells that nothing is left to be done. What ends the parent's group or its
# terminal is none of the guard's business.
_GUARD: Final = 'trap "" TERM INT HUP QUIT USR1 USR2 TTOU; read -r _ || exec "$@"'


class GuardShell(NamedTuple):
    """A guard that sleeps, and the end of the pipe that keeps it asleep."""

    pid: int
    writer: int


def start_guard(folder: str, environ: Mapping[str, str], form: LogFormat) -> GuardShell | None:
    """Start the guard of a launch; None where no shell can be started.

    As PID 1 of its container the parent takes everything there along when it is killed. Elsewhere
    (below a script or an init, or in a process table that containers share) mpirun would go on
    without anybody to end it or to tell its status. So a shell sleeps on a pipe whose other end the
    parent alone holds: the pipe is closed by the parent's death, whatever it died of. Until then it
    costs no wake-up and a tenth of a megabyte of its own; only then it becomes this program.

    Args:
        folder: the launch folder.
        environ: mpirun's environment; the guard has none of its marks.
        form: how log lines are written.
    """
    reader, writer = os.pipe()
    own = os.path.abspath(__file__)
    argv = ("sh", "-c", _GUARD, "guard", sys.executable, "-I", "-S", own, folder)
    try:
        pid = spawn(
            (*argv, environ.get(LAUNCH_ID, ""), form),
            outside_launch(environ),
            path="/bin/sh",
            streams={0: reader, 1: None},
            own_group=True,
        )
    except OSError:
        os.close(writer)
        return None
    finally:
        os.close(reader)
    return GuardShell(pid, writer)


def dismiss_guard(guard: GuardShell) -> None:
    """Let the guard go: mpirun has ended, and nothing of it is left here."""
    with suppress(OSError):
        os.write(guard.writer, b"over\n")
    os.close(guard.writer)
    # A first process such as `sleep` would never reap it.
    with suppress(ChildProcessError):
        os.waitpid(guard.pid, 0)


def remove_key(folder: str) -> None:
    """Remove a launch's copy of the job's key: no agent logs in any more."""
    with suppress(OSError):
        os.unlink(f"{folder}/{KEY}")


def main(folder: str, launch_id: str, form: str) -> None:
    """End what the launch has left in this pod, and say so; its copy of the key goes too."""
    if not os.environ.get(KEEP_KEY):
        remove_key(folder)
    count = end_all(0, folder, launch_id=launch_id)
    log.configure(form=LogFormat(form), role="launcher")
    # Where all sessions were mpiboot's own, mpirun may have ended over their loss before this.
    many = counted(count, "process", "processes")
    what = f"ended {many} of its job in this pod" if count else "its job has ended with it"
    log.warning("killed", f"the launcher was killed: {what}")


if __name__ == "__main__":
    main(*sys.argv[1:])
