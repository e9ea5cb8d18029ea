"""What a launch agent becomes while its session runs: a program of 20 KiB in place of a shell.

With 1,000 hosts shells that wait are most of a launcher's memory. The images have a small static
program beside mpiboot (``container/waiting_agent.c``); where there is none, as after ``pip
install``, or where it can't run (a sandbox without one of its system calls), the shell waits.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

FAILED: Final = 255

# The agent looks for it by this name, in the launch folder.
NAME: Final = "waiting_agent"
PROGRAM: Final = Path(sys.prefix) / "lib" / "mpiboot" / NAME


def offer(folder: Path, program: Path = PROGRAM) -> None:
    """Have the agents of a launch folder find it, where it runs here.

    Raises:
        OSError: the folder can't be written.
    """
    if _works(program):
        (folder / NAME).symlink_to(program)


def _works(program: Path) -> bool:
    """Let it wait once, for a client that has gone."""
    null, mode = os.devnull, os.O_RDWR
    actions = [(os.POSIX_SPAWN_OPEN, file, null, mode, 0) for file in (7, 8, 9)]
    try:
        pid = os.posix_spawn(program, [str(program), "", "", ""], {}, file_actions=actions)
    except OSError:
        return False
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == FAILED
