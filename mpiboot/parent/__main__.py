"""The launcher's process: stdlib only, without asyncio, so that a few megabytes stay.

``python -I -S mpiboot/parent/__main__.py launch OPTIONS CHILD...`` starts the child that waits for
the hosts, and loads the rest of itself beside it. ``script OPTIONS PROGRAM...`` stays beside a
program that calls mpirun itself, ``stay OPTIONS`` beside nothing.
"""

# Run by its path, it must find its package first; pathlib costs a megabyte.
# ruff: noqa: PTH100, PTH120
from __future__ import annotations

import os
import sys
from typing import NoReturn

if __name__ == "__main__":
    # -I: not even the folder of this file, whose names are not the top of anything.
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path.append(os.path.dirname(package))

from mpiboot.parent import signals
from mpiboot.parent.task import ParentTask

# As ``launch_spec.RESULT``; that module takes longer to load than the child to be started.
_RESULT = 3


def start_child(argv: list[str], mask: set[int]) -> tuple[int, int]:
    """Start the child that prepares the launch; give its pid and where its result comes.

    It leads a group of its own: a terminal's Ctrl-C is for this process to judge.

    Raises:
        OSError: it can't be started.
    """
    reader, writer = os.pipe()
    actions = []
    if writer == _RESULT:
        os.set_inheritable(writer, True)
    else:
        actions.append((os.POSIX_SPAWN_DUP2, writer, _RESULT))
    pid = os.posix_spawn(
        argv[0], argv, os.environ, file_actions=actions, setsigmask=mask, setpgroup=0
    )
    os.close(writer)
    return pid, reader


def run(task: ParentTask, text: str, words: list[str]) -> int:
    """Do what this process was started for; give the exit code."""
    mask = signals.block()
    child = start_child(words, mask) if task is ParentTask.LAUNCH else None
    # Loaded now: the child has longer to load.
    from mpiboot import log  # noqa: PLC0415
    from mpiboot.parent import mpirun_messages  # noqa: PLC0415
    from mpiboot.parent.launch_spec import ParentOptions  # noqa: PLC0415
    from mpiboot.parent.output_writer import OutputWriter  # noqa: PLC0415
    from mpiboot.parent.parent import Parent  # noqa: PLC0415

    options = ParentOptions.from_json(text)
    role = "" if task is ParentTask.STAY else "launcher"
    log.configure(level=options.log_level, form=options.log_format, role=role)
    mpirun_messages.reserve_handle()  # before the threads of the next lines
    stderr = OutputWriter()
    log.write_by(stderr.write)
    try:
        parent = Parent(options, mask, stderr)
        if child:
            return parent.launch(*child)
        return parent.beside(tuple(words)) if task is ParentTask.SCRIPT else parent.stay()
    finally:
        log.write_by(None)
        stderr.flush()


def main() -> NoReturn:
    """Run as a program; whatever goes wrong here is said in one line."""
    try:
        code = run(ParentTask(sys.argv[1]), sys.argv[2], sys.argv[3:])
    except Exception as wrong:  # noqa: BLE001 - the last line of defence: never a traceback
        from mpiboot import log  # noqa: PLC0415 - as above

        log.error("bug", f"[bug] the launcher's process failed: {type(wrong).__name__}: {wrong}")
        code = 70
        log.error("ended", f"launcher ended: exit {code} (bug)", exit=code, reference="bug")
    # The thread that waits for signals never ends, and nothing here is to be tidied up.
    os._exit(code)


if __name__ == "__main__":
    main()
