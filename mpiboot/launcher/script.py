"""A program that calls mpirun itself, once or many times: each call enters mpiboot.

A private folder comes first on PATH, in which ``mpirun`` and ``mpiexec`` are mpiboot, so that each
call has gates, flags and an end of its own. The small process stays beside the program, as the
container's first one must (``parent.script``).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn

from mpiboot import executables, log, shims
from mpiboot.job import mpirun_line, scripts
from mpiboot.launcher import start
from mpiboot.model import Finding, Level
from mpiboot.parent.launch_spec import ATTEMPT, KEEP_KEY, ParentOptions
from mpiboot.settings import ROWS, Resolved
from mpiboot.system import files, process

_READ: Final = 1 << 16
# The launches below the script have their own grace, and some seconds to kill what ignores it.
_MORE_GRACE: Final = 10.0


def reason(resolved: Resolved, program: tuple[str, ...], environ: Mapping[str, str]) -> str:
    """Say why a program is taken for one that calls mpirun itself; empty where it isn't."""
    settings, given = resolved.settings, resolved.given["script"]
    if mpirun_line.is_mpirun(program[0]):  # some are scripts themselves
        return ""
    if settings.script != "auto":
        return str(given) if settings.script == "on" else ""
    if scripts.is_caller(program):
        return f"{program[0]} calls mpirun"
    path, text = _script(program, environ)
    what = f"the script {path}" if path else "its script"
    return f"{what} calls mpirun" if scripts.calls(text) else ""


def calls_by_path(program: tuple[str, ...], environ: Mapping[str, str]) -> Finding | None:
    """Warn of calls by absolute path, which no folder on PATH can catch."""
    paths = [path for path in scripts.calls(_script(program, environ)[1]) if path]
    if not paths:
        return None
    said = f"the script calls mpirun by its path ({paths[0]}), past mpiboot"
    hint = "call it by its name, or let the image take its place: `mpiboot shims install --replace`"
    return Finding("shims", Level.WARN, said, hint=hint)


def _script(program: tuple[str, ...], environ: Mapping[str, str]) -> tuple[str, str]:
    """Find a program's script: its file (empty for ``sh -c``), and the beginning of its text."""
    named = scripts.named(program)
    if not named.path:
        return "", named.text
    path = executables.find(named.path, environ.get("PATH", "")) or named.path
    try:
        with Path(path).open("rb") as file:
            data = file.read(_READ)
    except (OSError, ValueError):
        return path, ""
    return path, "" if b"\0" in data else data.decode("utf-8", "replace")


def run(resolved: Resolved, program: tuple[str, ...], environ: Mapping[str, str]) -> NoReturn:
    """Become the process beside the program, with mpiboot in front of every mpirun.

    Raises:
        MpibootError: the program isn't there, or no private folder can be made.
    """
    odd = calls_by_path(program, environ)
    if odd:
        log.finding(odd)
    settings = resolved.settings
    process.lookup(program, environ)
    tmpdir = environ.get("TMPDIR", "")
    folder = files.runtime_dir(settings.runtime_dir, os.getuid(), "script", tmpdir=tmpdir)
    shims.link(folder)
    env = {
        **environ,
        **_flags(resolved),
        "PATH": os.pathsep.join((str(folder), environ.get("PATH", ""))),
        "MPIBOOT_ROLE": "launcher",
    }
    attempt = start.new_attempt(settings.worker_exit, environ)
    if attempt:
        env |= {KEEP_KEY: "1", ATTEMPT: attempt}
    options = ParentOptions(
        log_level=settings.log_level,
        log_format=settings.log_format,
        termination_log=settings.termination_log,
        grace=settings.grace + _MORE_GRACE,
        last_launches=str(folder.parent / "launcher") if attempt else "",
    )
    start.become_parent("script", options, list(program), env)


def _flags(resolved: Resolved) -> dict[str, str]:
    """Give flags as the variables that mean the same: the calls below have flags of their own."""
    return {
        item.variable: resolved.flags[item.name] for item in ROWS if item.name in resolved.flags
    }
