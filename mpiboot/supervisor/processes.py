"""Processes of this pod: what mpirun runs here, and what it has left.

``main`` is what the guard becomes: it ends what a launcher that was killed has left. psutil is
imported by the first call that needs it: none does while a job runs well.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from mpiboot.core import log
from mpiboot.core.launch_spec import KEY, LAUNCH_DIR, LAUNCH_ID, outside_launch
from mpiboot.core.model import LogFormat
from mpiboot.core.wording import counted
from mpiboot.system import process, processes
from mpiboot.system.spawn import spawn

# Programs that are mpirun under one of its names; a wrapper script above it is not.
MPIRUNS: Final = ("mpirun", "mpiexec", "orterun", "prterun", "prte")
_ESTABLISHED: Final = "01"


def find_mpiruns(child: int) -> Iterator[int]:
    """Find mpirun itself at or below the process that was started, and none below it."""
    found: set[int] = set()
    for pid, parent in ((child, 0), *processes.descendants(child)):
        if parent in found:
            found.add(pid)
        elif os.path.basename(processes.program(pid)).startswith(MPIRUNS):
            found.add(pid)
            yield pid


def unread(mpiruns: Iterable[int]) -> bool:
    """Whether mpirun has unread data on a TCP connection; False where that is hidden."""
    files = set[str]()
    for pid in mpiruns:
        with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    files.add(os.readlink(entry))
    for table in ("tcp", "tcp6"):
        for row in map(str.split, processes.text(Path("/proc/self/net", table)).splitlines()[1:]):
            state, received, inode = row[3], row[4].partition(":")[2], row[9]
            if state == _ESTABLISHED and received.strip("0") and f"socket:[{inode}]" in files:
                return True
    return False


_END_TIME_S: Final = 2.0
_POLL_S: Final = 0.02


def survivors(launch_id: str, folder: str) -> list[int]:
    """Find what a launch started on this pod, mpirun too, and what still runs.

    That has the launch's ID and folder in its environment (a nested launch has the outer one's ID,
    a later one this folder), and lives in this pod: two pods that share a process table don't share
    a mount namespace.
    """
    here, found = _mounts(os.getpid()), list[int]()
    marks = {LAUNCH_ID: launch_id, LAUNCH_DIR: folder}.items()
    for pid in processes.pids():
        if pid != os.getpid() and marks <= processes.environ(pid).items():
            found += [pid] if _mounts(pid) == here else []
    return found


def _mounts(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return ""


def send(pids: Iterable[int], number: int) -> None:
    """Send a signal to those processes that still run."""
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, number)


def end_all(launch_id: str, folder: str) -> int:
    """End what mpirun left here: SIGTERM, and after some time SIGKILL; give their number."""
    left = survivors(launch_id, folder)
    count = len(left)
    for number in (signal.SIGTERM, signal.SIGKILL):
        if left:
            send(left, number)
            _wait_gone(left)
            # Those that were ended may have started others.
            left = survivors(launch_id, folder)
    return count


def _wait_gone(pids: list[int]) -> None:
    """Wait until processes are gone, whoever their parent is."""
    deadline = time.monotonic() + _END_TIME_S
    while any(map(processes.find, pids)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


# A line on the pipe: nothing is left to be done. What ends the launcher's process group or its
# terminal does not end the guard.
_GUARD: Final = 'trap "" TERM INT HUP QUIT USR1 USR2 TTOU; read -r _ || exec "$@"'


def start_guard(folder: str, environ: Mapping[str, str], form: LogFormat) -> Callable[[], object]:
    """Start the guard of a launch, where a shell can be started; give what lets it go.

    When PID 1 dies the kernel kills its container. Elsewhere (below a script or an init, or in a
    process table that containers share) mpirun would go on, and nobody would end it or report its
    status. So a shell sleeps on a pipe whose other end the launcher alone holds: the launcher's
    death closes it, whatever it died of. Until then it costs no wake-up and a tenth of a megabyte
    of its own; only then it becomes ``main``.

    Args:
        folder: the launch folder.
        environ: mpirun's environment; the guard has none of its marks.
        form: how log lines are written.
    """
    reader, writer = os.pipe()
    statement = f"from {__name__} import main; main(*sys.argv[1:])"
    program = process.python(statement, folder, environ.get(LAUNCH_ID, ""), form)
    try:
        pid = spawn(
            ("sh", "-c", _GUARD, "guard", *program),
            outside_launch(environ),
            path="/bin/sh",
            streams={0: reader, 1: None},
            own_group=True,
        )
    except OSError:
        os.close(writer)
        # Does nothing: there is no guard.
        return bool
    finally:
        os.close(reader)

    def dismiss() -> None:
        with suppress(OSError):
            os.write(writer, b"over\n")
        os.close(writer)
        # A first process such as `sleep` would never reap it.
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)

    return dismiss


def remove_key(folder: str) -> None:
    """Remove a launch's copy of the job's key: no agent logs in any more."""
    with suppress(OSError):
        os.unlink(f"{folder}/{KEY}")


def main(folder: str, launch_id: str, form: str) -> None:
    """End what the launch has left in this pod, and log it; its copy of the key goes too."""
    remove_key(folder)
    count = end_all(launch_id, folder)
    log.configure(form=LogFormat(form), role="launcher")
    # Where all sessions were mpiboot's own, mpirun may have ended over their loss before this.
    many = counted(count, "process", "processes")
    what = f"ended {many} of its job in this pod" if count else "its job has ended with it"
    log.warning("killed", f"the launcher was killed: {what}")
