"""A command line runs, and its end is one line and one code: the one place where errors end.

A pod's line has no options as a rule, and the parser (click, and the table of all options) takes a
third of the time until sshd listens, and three megabytes of the process that stays: what a command
does with its words once they are read, and which words need no parser, is here.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from mpiboot import __version__
from mpiboot.core import checks, log
from mpiboot.core.checks import MpibootError, ShownError, failed
from mpiboot.core.launch_spec import LAUNCH_ID
from mpiboot.core.model import (
    BY_INDEX,
    Level,
    LogFormat,
    Role,
    Source,
)
from mpiboot.core.settings import Resolved, resolve

if TYPE_CHECKING:
    from pathlib import Path  # which a worker's start need not load

ENTRY: Final = "(program)"  # the entrypoint form by a shim's name; no program is called so
COMMANDS: Final = (
    *("copy-to", "doctor", "exec", "facts", "help", "launcher", "plan"),
    *("rank", "settings", "shims", "validate", "version", "wait", "worker"),
)
# Where a removed setting is an error, or may be one once this pod's role is known.
_LAUNCHES: Final = ("", "launcher", "plan")
Words = tuple[str, ...]


class ErrorSettings:
    """The settings that ``main`` needs to report errors, once they are read."""

    termination_log = os.environ.get("MPIBOOT_TERMINATION_LOG") or "/dev/termination-log"


def expect_json(log_format: str) -> None:
    """Log in JSON before the settings are read, where they want that: errors in them, too."""
    if log_format.strip().lower() == LogFormat.JSON.value:
        log.configure(form=LogFormat.JSON)


def resolved(flags: Mapping[str, Any], role: str = "") -> Resolved:
    """Resolve this run's settings, configure the log and log warnings about the settings.

    Args:
        flags: the command's options by their names; None where not given.
        role: the role in JSON lines; empty where the pod's role is not known yet.

    Raises:
        MpibootError: ``usage``; a value can't be read.
    """
    given = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in flags.items()
        if value is not None and name not in ("verbose", "quiet")
    }
    if flags.get("quiet"):
        given.setdefault("log_level", "warning")
    if flags.get("verbose"):
        given.setdefault("log_level", "debug")
    expect_json(given.get("log_format", ""))
    found = resolve(given, os.environ)
    settings = found.settings
    ErrorSettings.termination_log = settings.termination_log
    if found.given["termination_log"].source is Source.FLAG:
        log.ends_container(True)
    log.configure(level=settings.log_level, form=settings.log_format, role=role)
    for item in (*found.warnings, *(found.removed if role not in _LAUNCHES else ())):
        log.finding(item)
    return found


def _log_role(role: Role, reason: str) -> None:
    """Log which role runs, and what keeps signals from it."""
    message = f"mpiboot {__version__}, role {role.value} ({reason})"
    log.info("role", message, version=__version__, reason=reason)
    first = sigterm_blocker()
    if first:
        message = f"PID 1 here is {first}: it has no handler for SIGTERM, and passes none on"
        log.finding(failed("entrypoint", message, level=Level.WARN))


def sigterm_blocker(proc: str = "/proc") -> str:
    """Name the container's first process where no SIGTERM gets past it; else empty.

    The kernel drops a signal for a process number 1 that has no handler for it: a shell has none.
    """
    if os.getppid() != 1:
        return ""
    with (
        suppress(OSError, ValueError, IndexError),
        open(f"{proc}/1/status", encoding="utf-8", errors="replace") as status,  # noqa: PTH123 - light
        open(f"{proc}/1/cmdline", "rb") as line,  # noqa: PTH123 - light
    ):
        caught = int(status.read().partition("\nSigCgt:")[2].split()[0], 16)
        if not caught >> (signal.SIGTERM - 1) & 1:
            return os.fsdecode(line.read()).partition("\0")[0]  # what follows may have secrets
    return ""


def with_timeout(found: Resolved, seconds: float) -> Resolved:
    """Set the timeout of a command that does not wait for hosts, unless a flag has set one."""
    if found.given["timeout"].source is Source.FLAG:
        return found
    return found._replace(settings=replace(found.settings, timeout=seconds))


def worker(program: Words, flags: Mapping[str, Any]) -> int:
    """Serve until the worker's end; its exit code."""
    from mpiboot.job import platforms
    from mpiboot.worker import role

    found = resolved(flags, "worker")
    _log_role(Role.WORKER, "the command `mpiboot worker`")
    return role.run(found, () if platforms.is_sshd(program) else program, os.environ)


def launcher(program: Words, flags: Mapping[str, Any]) -> int:
    """Wait for the hosts and start mpirun."""
    found = resolved(flags, "launcher")
    _log_role(Role.LAUNCHER, "the command `mpiboot launcher`")
    _launch(found, program)


def _launch(found: Resolved, program: Words) -> NoReturn:
    """Be the launcher."""
    from mpiboot.launcher import role

    role.be_launcher(found, program, os.environ)


def entrypoint(program: Words) -> int:
    """Act by this pod's role; the exit code of a worker."""
    if program and os.environ.get(LAUNCH_ID):
        # A rank's mpirun, or one that an mpirun calls, as Intel MPI's script does.
        from mpiboot.system import process

        process.replace(program, os.environ)
    return act_by_role(resolved({}), program, os.environ)


def without_options(argv: Sequence[str]) -> Callable[[], int] | None:
    """Return what a line without mpiboot's own options starts; None: a parser is needed."""
    first, rest = (argv[0], tuple(argv[1:])) if argv else ("", ())
    if not argv or first in ("--", ENTRY):
        return partial(entrypoint, rest)
    if not first.startswith("-") and first not in COMMANDS:
        return partial(entrypoint, tuple(argv))
    program = rest[1:] if rest[:1] == ("--",) else rest
    if first not in ("launcher", "worker") or (program is rest and rest and rest[0][:1] == "-"):
        return None
    if first == "worker":
        return partial(worker, program, {})
    return partial(launcher, program, {}) if program else None


def act_by_role(resolved: Resolved, program: Words, environ: Mapping[str, str]) -> int:
    """Act as launcher or worker, or become the program.

    Raises:
        MpibootError: the role is not known, or the role's errors.
    """
    from mpiboot.job import platforms
    from mpiboot.system import process

    settings = resolved.settings
    hostname = os.uname().nodename
    role, decision = platforms.role(resolved, environ, program, "", hostname)
    if role is Role.NONE and decision.source is Source.DEFAULT:
        # Imported here: too heavy for a worker's start.
        from mpiboot.hosts import hostfiles

        mounted = hostfiles.mounted(resolved, environ)
        role, decision = platforms.role(resolved, environ, program, mounted, hostname)
    log.configure(level=settings.log_level, form=settings.log_format, role=role.value)
    if role is not Role.LAUNCHER:
        for item in resolved.removed:
            log.finding(item)
    if role is Role.NONE:
        if not program:
            raise checks.error(
                "usage",
                "no program was given, and nothing marks this pod as a worker",
                hint="give the launcher its command (`mpiboot mpirun ./train`, `args: [mpirun, "
                "./train]`), a worker `mpiboot worker` (`args: [worker]`); see `mpiboot --help`",
            )
        log.debug("role", f"role none ({decision.reason}): running {program[0]}")
        process.replace(program, environ)
    _log_role(role, decision.reason)
    if role is Role.WORKER:
        from mpiboot.worker import role as worker

        # By its index, a worker has the launcher's arguments.
        serves_only = settings.role is BY_INDEX or platforms.is_sshd(program)
        return worker.run(resolved, () if serves_only else program, environ)
    if not program:
        raise checks.error(
            "usage",
            "this pod is the launcher, and no program was given",
            hint="give the command as the container's args: `args: [mpirun, ./train]`",
        )
    _launch(resolved, program)


# In the volume while a copy is being made, and where one was interrupted.
_INCOMPLETE: Final = ".mpiboot-incomplete"
_OF_FILE_SYSTEM: Final = "lost+found"


def copy_to(folder: str, home: Path) -> str:
    """Copy mpiboot's folder, with its Python and libraries, into a volume of a pod.

    An init container does it (container/mpiboot.Containerfile), so that the pod's image stays as it
    is. A copy that was interrupted is made anew.

    Args:
        folder: an empty folder, such as an emptyDir; it is made where it is not there.
        home: mpiboot's folder.

    Returns:
        What was done, in one line.

    Raises:
        MpibootError: ``usage``; mpiboot runs by its image's Python, or the folder has other files.
            ``runtime-folder``; it can't be written.
    """
    if not (home / "lib" / "loader").is_dir():
        raise checks.error(
            "usage",
            f"this mpiboot runs by the Python of its image ({sys.prefix}), which can't be copied",
            hint="take the image that container/mpiboot.Containerfile makes for the init container",
        )
    target = type(home)(folder)
    incomplete, program = target / _INCOMPLETE, target / "bin/mpiboot"
    try:
        target.mkdir(parents=True, exist_ok=True)
        there = {path.name for path in target.iterdir()} - {_OF_FILE_SYSTEM}
        if there and not incomplete.exists():
            if _record(target) == _record(home):
                return f"{program} is there already"
            listed = ", ".join(sorted(there)[:3])
            raise checks.error(
                "usage",
                f"{folder} is not empty ({listed}): name an empty folder, such as an emptyDir",
            )
        incomplete.touch()
        for path in sorted(home.iterdir()):
            shutil.rmtree(target / path.name, ignore_errors=True)
            shutil.copytree(path, target / path.name, symlinks=True)
        incomplete.unlink()
    except OSError as error:
        # shutil's has one entry for each file: from, to, why.
        why = error.args[0][0][2] if isinstance(error, shutil.Error) else error.strerror
        message = f"mpiboot can't be copied to {folder}: {why or error}"
        hint = "mount an emptyDir there; mpiboot takes 100 MB of it"
        raise checks.error("runtime-folder", message, hint=hint) from None
    return f"{program} can be started"


def _record(home: Path) -> bytes:
    """What pip wrote of the files of mpiboot that are installed there, with their hashes."""
    records = sorted(home.glob("lib/python3.*/dist-packages/mpiboot-*.dist-info/RECORD"))
    return b"".join(path.read_bytes() for path in records)


_ROLES: Final = ("launcher", "worker")
# Commands that check or pass on the pod's PATH, shims included.
_PATH_UNCHANGED: Final = ("copy-to", "doctor", "exec", "rank", "shims")
# Their end is the container's end, also where a script runs them.
_ENDS_CONTAINER: Final = (*_ROLES, "exec")
# The variable by which shells ask click for completions.
_COMPLETE: Final = "_MPIBOOT_COMPLETE"
# errno of a write to a full disk.
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _report(error: Exception) -> int:
    """Report an error in the log and in the termination message; its exit code."""
    from mpiboot.hosts import error_report

    found = error if isinstance(error, MpibootError) else error_report.bug(error)
    log.write_termination(ErrorSettings.termination_log, error_report.report(found))
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
    code = run(sys.argv[1:])
    with suppress(OSError):
        sys.stderr.flush()
    # The interpreter's own end would unwind threads that nobody joins; those in a library of Rust's
    # or C++'s abort there (python/cpython#87135).
    os._exit(code)
