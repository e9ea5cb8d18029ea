"""Ends a started mpirun whose parent was killed, where the end of no container does that.

As PID 1 of its container the parent takes everything there along. Elsewhere (below a script or an
init, or in a process table that containers share) mpirun would go on without anybody to end it or
to tell its status. So a shell (``libexec/guard``) sleeps on a pipe whose other end the parent alone
holds: the pipe is closed by the parent's death, whatever it died of. Until then it costs no wake-up
and a tenth of a megabyte of its own; only then it becomes this program.
"""

# Run by its path, it must find its package first; pathlib costs the parent a megabyte.
from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, NamedTuple

if __name__ == "__main__":
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path.append(os.path.dirname(package))

from mpiboot.core import log
from mpiboot.core.launch_spec import KEEP_KEY, LAUNCH_ID, outside_launch
from mpiboot.core.setting_types import LogFormat
from mpiboot.core.wording import counted
from mpiboot.supervisor.processes import end_all
from mpiboot.system.os_calls import remove_key

_GUARD: Final = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "libexec", "guard"
)
_FOLDER: Final = 3  # the guard's handle of the launch folder


class GuardShell(NamedTuple):
    """A guard that sleeps, and the end of the pipe that keeps it asleep."""

    pid: int
    writer: int


def start(folder: str, environ: Mapping[str, str], form: LogFormat) -> GuardShell | None:
    """Start the guard of a launch; None where no shell can be started.

    Args:
        folder: the launch folder.
        environ: mpirun's environment; the guard has none of its marks.
        form: how log lines are written.
    """
    reader, writer = os.pipe()
    # The path may lead through the process whose death the guard waits for.
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    own = os.path.abspath(__file__)
    argv = ("sh", _GUARD, sys.executable, "-I", "-S", own, folder)
    try:
        pid = os.posix_spawn(
            "/bin/sh",
            (*argv, environ.get(LAUNCH_ID, ""), form, f"/proc/self/fd/{_FOLDER}"),
            outside_launch(environ),
            file_actions=[
                (os.POSIX_SPAWN_DUP2, reader, 0),
                (os.POSIX_SPAWN_DUP2, handle, _FOLDER),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            ],
            setpgroup=0,
            setsigmask=(),
        )
    except OSError:
        os.close(writer)
        return None
    finally:
        os.close(reader)
        os.close(handle)
    return GuardShell(pid, writer)


def dismiss(guard: GuardShell) -> None:
    """Let the guard go: mpirun has ended, and nothing of it is left here."""
    with suppress(OSError):
        os.write(guard.writer, b"over\n")
    os.close(guard.writer)
    # A first process such as `sleep` would never reap it.
    with suppress(ChildProcessError):
        os.waitpid(guard.pid, 0)


def main(folder: str, launch_id: str, form: str, where: str = "") -> None:
    """End what the launch has left in this pod, and say so; its copy of the key goes too.

    ``where`` leads to the folder when ``folder`` no longer does.
    """
    if not os.environ.get(KEEP_KEY):
        remove_key(where or folder)
    count = end_all(0, folder, launch_id=launch_id)
    log.configure(form=LogFormat(form), role="launcher")
    # Where all sessions were mpiboot's own, mpirun may have ended over their loss before this.
    many = counted(count, "process", "processes")
    what = f"ended {many} of its job in this pod" if count else "its job has ended with it"
    log.warning("killed", f"the launcher was killed: {what}")


if __name__ == "__main__":
    main(*sys.argv[1:])
