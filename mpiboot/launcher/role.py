"""What a launcher's line starts: mpirun, or a command that is no launch.

A command that is no mpirun runs once, here and at once, and nobody reads it. A private folder comes
first on its PATH, in which ``mpirun`` is mpiboot by each of its names, so that every call has
gates, flags and an end of its own. Its ``ssh`` waits for the host that it names (``logins``).
"""

from __future__ import annotations

import binascii
import gc
import importlib
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, NoReturn

from mpiboot.core import log
from mpiboot.core.checks import MpibootError, error
from mpiboot.core.launch_spec import (
    COMMAND_DIR,
    LAUNCHES,
)
from mpiboot.core.model import AUTO, Finding, Level, MpiFamily
from mpiboot.core.settings import Resolved
from mpiboot.job import program_words
from mpiboot.launcher import command, run, shims
from mpiboot.launcher.own_facts import OwnFacts
from mpiboot.supervisor import signals
from mpiboot.system import process
from mpiboot.system.spawn import DEFAULT_PATH
from mpiboot.system.threads import in_thread

# New objects before the collector looks: hardly anything of a host is in a cycle, and of a thousand
# hosts' gate it took a tenth of the CPU time.
_OBJECTS: Final = 50_000


def be_launcher(
    resolved: Resolved,
    program: tuple[str, ...],
    environ: Mapping[str, str],
    measure: Callable[[], None] | None = None,
) -> NoReturn:
    """Be the launcher, and end with the job's exit code.

    Args:
        resolved: the settings.
        program: the user's line.
        environ: this pod's environment.
        measure: looks at the network before a launch, where that is asked for.

    Raises:
        MpibootError: it can't be started, or the program doesn't exist.
    """
    refuse_removed(resolved)
    environ, program = shims.without_command(environ, program)
    if prints(resolved, program, environ):
        process.replace(program, environ)
    _check_words(program, environ)
    process.check_threads()
    if launch := program_words.is_mpirun(program[0]):
        program = shims.hydra_by_path(program, environ.get("PATH", DEFAULT_PATH))
    if measure and launch and _is_first(environ):
        measure()
    mask = signals.block()
    given = dict(environ)
    os.environ.clear()
    os.environ.update(given)
    if launch:
        _launch(resolved, program, given, mask)
    command.run_once(resolved, program, given, mask)


def _is_first(environ: Mapping[str, str]) -> bool:
    """Whether no other launch of the same command has measured the network."""
    if folder := environ.get(COMMAND_DIR):
        try:
            (Path(folder) / "measured").touch(exist_ok=False)
        except OSError:
            return False
    return True


def refuse_removed(resolved: Resolved) -> None:
    """Refuse what was a setting once: the job would run otherwise than it says.

    Raises:
        MpibootError: ``usage``.
    """
    if resolved.removed:
        first, *others = (replace(item, level=Level.FAIL) for item in resolved.removed)
        raise MpibootError(first, tuple(others))


def _check_words(program: tuple[str, ...], environ: Mapping[str, str]) -> None:
    """Check for several words that a manifest has as one.

    Raises:
        MpibootError: ``usage``; the first word is no program.
    """
    misquoted = program_words.misquoted_args(program)
    if misquoted:
        hint = "write one argument for each word"
        if shutil.which(program[0], path=environ.get("PATH", "")) is None:
            raise error("usage", misquoted, hint=hint)
        log.finding(Finding("usage", Level.WARN, misquoted, hint=hint))


def prints(resolved: Resolved, program: tuple[str, ...], environ: Mapping[str, str]) -> bool:
    """Tell whether mpirun only prints something: ``mpirun -n 2 --version``, or ``mpirun``."""
    if not program_words.is_mpirun(program[0]) or len(program) == 1:
        return program_words.is_mpirun(program[0])
    # Loaded late: only such a line needs the tables, and mpirun's own answer.
    from mpiboot.job.mpirun_line import PRINTING  # noqa: PLC0415

    options = (word.lstrip("-").partition("=")[0] for word in program if word.startswith("-"))
    if PRINTING.isdisjoint(options):
        return False
    from mpiboot.job import mpirun_line  # noqa: PLC0415
    from mpiboot.system import programs  # noqa: PLC0415

    family = resolved.settings.mpi
    if family is AUTO:
        found = programs.detect_mpi(environ, program_words.called(program))
        family = found.family if found else MpiFamily.UNKNOWN
    return bool(mpirun_line.read(program, family).prints)


def _launch(
    resolved: Resolved, program: tuple[str, ...], environ: Mapping[str, str], mask: set[int]
) -> NoReturn:
    """Run a launch.

    Raises:
        OSError: no process can be started.
    """
    line: tuple[str, ...] = ()
    if folder := environ.get(COMMAND_DIR):
        line = (Path(program[0]).name, f"{binascii.crc32(chr(0).join(program).encode()):08x}")
        with suppress(OSError):  # a command that is over has none
            (Path(folder) / LAUNCHES).touch()
    own = OwnFacts(resolved, environ)  # while there is no other thread
    attempt = run.new_attempt(resolved.settings.worker_exit, environ)

    async def launch(launcher: run.LauncherProcess) -> int:
        # Loaded in the loop, so that a signal is heard meanwhile.
        prepare = await in_thread(importlib.import_module, "mpiboot.launcher.prepare")
        gc.freeze()
        gc.set_threshold(_OBJECTS)
        preparation = prepare.Preparation(resolved, program, attempt, own)
        return await run.LaunchRun(launcher, preparation, line).run()

    run.run(resolved.settings, mask, launch)
