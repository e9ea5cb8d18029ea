"""The one place where errors end: a command line runs, and its end is one line and one code."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from types import FrameType
from typing import Final, NoReturn

from mpiboot.cli.run import COMMANDS, ENTRY, ErrorSettings, expect_json, without_options
from mpiboot.core import checks, log
from mpiboot.core.checks import MpibootError, ShownError

_ROLES: Final = ("launcher", "worker")
# Commands that check or pass on the pod's PATH, shims included.
_PATH_UNCHANGED: Final = ("copy-to", "doctor", "exec", "rank", "shims")
# Their end is the container's end, also where a script runs them.
_ENDS_CONTAINER: Final = (*_ROLES, "exec")
# A worker's child: its end is not logged.
_CHILD_OF_WORKER: Final = ["facts", "--write"]
# The variable by which shells ask click for completions.
_COMPLETE: Final = "_MPIBOOT_COMPLETE"
# errno of a write to a full disk.
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _report(error: Exception) -> int:
    """Report an error in the log and in the termination message; its exit code."""
    from mpiboot.hosts import error_report

    found = error if isinstance(error, MpibootError) else error_report.bug(error)
    log.write_termination(ErrorSettings.termination_log, error_report.say(found))
    log.ended(found.code, found.finding.check)
    return found.code


def _run(argv: list[str]) -> int:
    """Run one command line and return its exit code."""
    if completing := os.environ.get(_COMPLETE):
        from mpiboot.cli import commands

        return commands.complete(completing)
    whole = without_options(argv)
    if whole is not None:  # a role, which logs its end
        return whole()
    from mpiboot.cli import commands

    try:
        code = commands.run_line(argv)
    except SystemExit as done:  # a role as above
        return done.code if isinstance(done.code, int) else 0
    if code or argv[:2] != _CHILD_OF_WORKER:
        log.ended(code)
    return code


def _once(argv: list[str]) -> list[str]:
    """Drop a second "mpiboot" (args that repeat the ENTRYPOINT), but for a command of ranks."""
    if len(argv) < 2 or os.path.basename(argv[0]) != "mpiboot":  # noqa: PLR2004, PTH119
        return argv
    return argv[1:] if argv[1] in _ROLES or argv[1] not in COMMANDS else argv


def _behind_shim(argv: list[str]) -> list[str]:
    """Turn a call by a shim's name into the entrypoint form, with the real programs on PATH."""
    from mpiboot.launcher import shims as names

    name = os.path.basename(sys.argv[0])  # noqa: PTH119
    if name not in names.NAMES:
        if argv[:1] and argv[0] not in _PATH_UNCHANGED:
            os.environ["PATH"] = names.cleared(os.environ)
        return argv
    os.environ.update(names.emptied(sys.argv[0], os.environ))
    found = names.enter(sys.argv[0], os.environ)
    os.environ["PATH"] = found["PATH"]
    return [ENTRY, found["program"], *argv]


def _ends_container(argv: list[str]) -> bool:
    """Whether this end goes to the container's termination message.

    Not that of `mpiboot doctor` by `kubectl exec`, which would seem to explain the job's end.
    """
    if not argv or argv[0] not in COMMANDS or argv[0] in _ENDS_CONTAINER:
        return True
    from mpiboot.system import process

    return process.is_containers_own()


def run(argv: list[str]) -> int:
    """Run one command line and return the exit code; every error ends here."""
    expect_json(os.environ.get("MPIBOOT_LOG_FORMAT", ""))
    try:
        try:
            argv = _once(argv)
            log.ends_container(_ends_container(argv))
            code = _run(_behind_shim(argv))
        except ShownError:  # already printed
            sys.stdout.flush()
            raise
        sys.stdout.flush()
    except ShownError as error:
        code = error.code
        log.ended(code, error.finding.check)
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
        log.ended(code, "signal")
    except BrokenPipeError:  # `mpiboot plan | head`: the reader is gone
        _drop_output()
        code = 128 + signal.SIGPIPE
    except Exception as error:  # noqa: BLE001 - the one boundary
        # Failures of other files are handled where they are written; this one is stdout's.
        if isinstance(error, OSError) and error.filename is None and error.errno in _NO_ROOM:
            _drop_output()
            message = f"standard output can't be written: {error.strerror}"
            error = checks.error("output", message)
        code = _report(error)
    try:
        sys.stdout.flush()
    except OSError:  # the command's own failure is logged; the interpreter would add a traceback
        _drop_output()
    return code


def _drop_output() -> None:
    """Discard buffered output, whose flush at exit would fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _open_streams() -> None:
    """Open standard streams that the caller closed (``>&-``); escape words that are not UTF-8.

    The next file that is opened would get the closed one's number, and its output.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _end(number: int, _frame: FrameType | None) -> None:
    if os.getpid() == 1:  # and no child of it
        log.info("signal", f"{signal.Signals(number).name} came before anything was started")
        log.ended(128 + number, "signal")
    os._exit(128 + number)


def end_on_signals() -> None:
    """Handle signals until the role does: the kernel drops those that PID 1 has no handler for."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)


def main() -> NoReturn:
    """Run the console script."""
    if os.getpid() == 1:
        end_on_signals()
    _open_streams()
    sys.exit(run(sys.argv[1:]))
