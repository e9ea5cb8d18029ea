"""A program that calls mpirun itself, once or many times: each call enters mpiboot.

A private folder comes first on PATH, in which ``mpirun`` and ``mpiexec`` are mpiboot, so that each
call has gates, flags and an end of its own. This process stays beside the program, as the
container's first one must: it passes signals on, reaps what is left to it, and ends with the
program's status. It starts no mpirun.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from mpiboot import executables, log, shims
from mpiboot.job import mpirun_line, scripts
from mpiboot.launcher.setup import lets_go
from mpiboot.model import Finding, Level, Source
from mpiboot.parent import after, launch_spec, os_calls
from mpiboot.settings import ROWS, Resolved
from mpiboot.system import files, process

_READ: Final = 1 << 16
_SIGNALLED: Final = 128
# The launches below the script have their own grace, and some seconds to kill what ignores it.
_MORE_GRACE: Final = 10.0
# Between two looks at what a signalled script has left.
_LOOK: Final = 0.1


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


def past(program: tuple[str, ...], environ: Mapping[str, str]) -> Finding | None:
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


def run(resolved: Resolved, program: tuple[str, ...], environ: Mapping[str, str]) -> int:
    """Run the program with mpiboot in front of every mpirun; its exit status.

    Raises:
        MpibootError: the program isn't there, or no private folder can be made.
    """
    odd = past(program, environ)
    if odd:
        log.finding(odd)
    settings = resolved.settings
    tmpdir = environ.get("TMPDIR", "")
    folder = files.runtime_dir(settings.runtime_dir, os.getuid(), "script", tmpdir=tmpdir)
    shims.link(folder)
    env = {
        **environ,
        **_flags(resolved),
        "PATH": os.pathsep.join((str(folder), environ.get("PATH", ""))),
        "MPIBOOT_ROLE": "launcher",
    }
    status = _beside(program, env, settings.grace + _MORE_GRACE)
    if status == 0 and lets_go(settings.worker_exit, environ):
        _let_go(folder.parent / "launcher", env)
    return status


def _flags(resolved: Resolved) -> dict[str, str]:
    """Give flags as the variables that mean the same: the calls below have flags of their own."""
    values = {
        item.variable: getattr(resolved.settings, item.name)
        for item in ROWS
        if resolved.given[item.name].source is Source.FLAG
    }
    return {
        name: ",".join(value) if isinstance(value, tuple) else str(value)
        for name, value in values.items()
    }


def _beside(program: tuple[str, ...], env: Mapping[str, str], patience: float) -> int:
    """Start the program and stay until it ends; 128+n where a signal ended it, or it hid one."""
    loop = process.Loop(launch_spec.SIGNALS)
    # A terminal's own signals reach the whole foreground group; else each comes to us alone.
    send = os.kill if os_calls.has_terminal() else os.killpg
    child = process.start(program, env, group=send is os.killpg)
    status: int | None = None
    told, deadline = 0, float("inf")
    try:
        while True:
            for number in loop.wait(_LOOK if told else None):
                if number == signal.SIGCHLD:
                    continue
                log.info("signal", f"got {signal.Signals(number).name}")
                _reaches(send, child, number)
                if number in launch_spec.ENDING:
                    told, deadline = told or number, time.monotonic() + patience
            for pid, ended in process.reap():
                status = process.exit_status(ended) if pid == child else status
            # The launches below the script may take their grace, also where it ended at once.
            if status is not None and not (told and _reaches(send, child, 0)):
                break
            if time.monotonic() >= deadline:
                log.warning("ended", f"{program[0]} did not end in time and is killed")
                _reaches(send, child, signal.SIGKILL)
                break
    finally:
        loop.close()
    return (status or 0) or (_SIGNALLED + told if told else 0)


def _reaches(send: Callable[[int, int], None], child: int, number: int) -> bool:
    """Signal the program, or its whole group; whether anybody was there."""
    try:
        send(child, number)
    except ProcessLookupError:
        return False
    return True


def _let_go(folder: Path, env: Mapping[str, str]) -> None:
    """Tell the workers of the last launch that the whole job has ended well."""
    launches = sorted(folder.glob("launch-*"), key=lambda path: path.stat().st_mtime)
    if launches:
        after.ask(str(launches[-1]), env, "let-go")
