"""The launcher's process: stdlib only, without asyncio, so that a few megabytes stay.

``python -I -S mpiboot/supervisor/__main__.py launch OPTIONS PID HANDLE`` has a child that waits for
the hosts, from before it was executed, and reads its result there. ``command OPTIONS PROGRAM...``
runs a command that is no mpirun, and stays beside it.
"""

# Run by its path, it must find its package first; pathlib costs a megabyte.
from __future__ import annotations

import os
import sys
from typing import NoReturn

if __name__ == "__main__":
    # -I: not even the folder of this file, whose names are not the top of anything.
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path.append(os.path.dirname(package))

from mpiboot.core import log
from mpiboot.core.checks import ExitCode
from mpiboot.core.launch_spec import ParentOptions, ParentTask
from mpiboot.supervisor import mpirun_messages, signals
from mpiboot.supervisor.output import OutputWriter
from mpiboot.supervisor.parent import Parent
from mpiboot.system import spawn


def run(task: ParentTask, text: str, words: list[str]) -> int:
    """Do what this process was started for; give the exit code."""
    mask = signals.block()
    options = ParentOptions.from_json(text)
    log.configure(level=options.log_level, form=options.log_format, role="launcher")
    mpirun_messages.reserve_handle()  # before the threads of the next lines
    stderr = OutputWriter()
    log.write_by(stderr.write)
    parent = Parent(options, mask, stderr)
    code = int(ExitCode.BUG)
    try:
        if task is ParentTask.LAUNCH:
            child, result = map(int, words)
            os.set_inheritable(result, False)  # it was to outlive the exec, and is nobody else's
            code = parent.launch(child, result)
        else:
            code = parent.beside(tuple(words))
    finally:
        code = parent.write_last(code)
        log.write_by(None)
    return code


def main() -> NoReturn:
    """Run as a program; whatever goes wrong here is said in one line."""
    spawn.take_out_locale()
    try:
        code = run(ParentTask(sys.argv[1]), sys.argv[2], sys.argv[3:])
    except Exception as wrong:  # noqa: BLE001 - the last line of defence: never a traceback
        log.error("bug", f"[bug] the launcher's process failed: {type(wrong).__name__}: {wrong}")
        code = int(ExitCode.BUG)
        log.error("ended", f"launcher ended: exit {code} (bug)", exit=code, reference="bug")
    # The thread that waits for signals never ends, and nothing here is to be tidied up.
    os._exit(code)


if __name__ == "__main__":
    main()
