"""The launcher: becomes the parent of a launch, or of a program that starts processes itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from mpiboot.job import mpirun_call
from mpiboot.launcher import script, start
from mpiboot.parent import signals
from mpiboot.setting_sources import Resolved
from mpiboot.system import process


def run(resolved: Resolved, program: tuple[str, ...], environ: Mapping[str, str]) -> NoReturn:
    """Become the process that stays, and that ends with the job's exit code.

    Raises:
        MpibootError: it can't be started; or a script isn't there.
    """
    if mpirun_call.only_asks(program):
        process.replace(program, environ)
    signals.block()  # one that comes from now on is for the process that stays
    once = script.judge(resolved, program, environ)
    if once:
        script.run(resolved, program, environ, once)
    start.launch(resolved, program, environ)
