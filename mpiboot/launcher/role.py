"""The launcher: becomes the parent of a launch, or of a program that starts processes itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from mpiboot.core.choices import AUTO
from mpiboot.core.model import MpiFamily
from mpiboot.core.setting_sources import Resolved
from mpiboot.job import mpirun_call
from mpiboot.launcher import script, start
from mpiboot.supervisor import signals
from mpiboot.system import process


def run(resolved: Resolved, program: tuple[str, ...], environ: Mapping[str, str]) -> NoReturn:
    """Become the process that stays, and that ends with the job's exit code.

    Raises:
        MpibootError: it can't be started; or a script isn't there.
    """
    if prints(resolved, program, environ):
        process.replace(program, environ)
    signals.block()  # one that comes from now on is for the process that stays
    once = script.judge(resolved, program, environ)
    if once:
        script.run(resolved, program, environ, once)
    start.launch(resolved, program, environ)


def prints(resolved: Resolved, program: tuple[str, ...], environ: Mapping[str, str]) -> bool:
    """Tell whether mpirun only prints something: ``mpirun -n 2 --version``, or ``mpirun`` alone."""
    if not mpirun_call.is_mpirun(program[0]) or len(program) == 1:
        return mpirun_call.is_mpirun(program[0])
    # Only a line of mpirun's own needs the tables, and only one like this an answer of mpirun's.
    from mpiboot.job.mpirun_options import PRINTING  # noqa: PLC0415

    options = (word.lstrip("-").partition("=")[0] for word in program if word.startswith("-"))
    if PRINTING.isdisjoint(options):
        return False
    from mpiboot.job import mpirun_line  # noqa: PLC0415
    from mpiboot.system import programs  # noqa: PLC0415

    family = resolved.settings.mpi
    if family is AUTO:
        found = programs.detect_mpi(environ, mpirun_call.called(program))
        family = found.family if found else MpiFamily.UNKNOWN
    return bool(mpirun_line.read(program, family).prints)
