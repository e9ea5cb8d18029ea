"""The launcher: becomes the parent of a launch, or of a script that calls mpirun itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from mpiboot import log
from mpiboot.job import mpirun_line
from mpiboot.launcher import script, start
from mpiboot.parent import signals
from mpiboot.settings import Resolved
from mpiboot.system import process


def run(resolved: Resolved, program: tuple[str, ...], environ: Mapping[str, str]) -> NoReturn:
    """Become the process that stays, and that ends with the job's exit code.

    Raises:
        MpibootError: it can't be started; or a script isn't there.
    """
    if mpirun_line.only_asks(program):
        process.replace(program, environ)
    signals.block()  # one that comes from now on is for the process that stays
    calling = script.reason(resolved, program, environ)
    if calling:
        log.info("script", f"{calling}: mpiboot checks the hosts and plans for each of its calls")
        script.run(resolved, program, environ)
    start.launch(resolved, program, environ)
