"""A vendor's shell script that sets variables: evaluated once, in a child, under a time limit.

Only the difference that it makes to the environment is taken; what it prints goes nowhere.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mpiboot.core.errors import MpibootError
from mpiboot.core.model import Finding, Level
from mpiboot.system import executables, process
from mpiboot.system.os_calls import exit_status

LIMIT: Final = 10.0
_MOST: Final = 1 << 22  # bytes of an environment, which is twice what a system takes
_KEPT: Final = 200
# The shell's own, which any script changes.
_SHELL: Final = frozenset(("_", "PWD", "OLDPWD", "SHLVL", "PPID"))
_READER: Final = str(Path(__file__).parent.parent / "libexec" / "profile_environment")
_HINT: Final = "nothing of it reaches the ranks; run it by hand: sh -c '. SCRIPT; env'"


def evaluate(
    path: str, environ: Mapping[str, str], limit: float = LIMIT
) -> tuple[dict[str, str], Finding | None]:
    """Give the environment as the script leaves it; as it was, and a warning, where it fails.

    Args:
        path: the script; bash reads it where there is one, else sh.
        environ: what it starts with.
        limit: seconds that it may take.
    """
    before = dict(environ)
    path = os.path.abspath(path)  # noqa: PTH100 - the shell would look for a bare name on PATH
    if not os.path.isfile(path):  # noqa: PTH113 - raises nothing
        return before, _warning(f"{path} is not there")
    shell = executables.find("bash", environ.get("PATH", "")) or "/bin/sh"
    try:
        status, said, complaint = _run((shell, _READER, path), environ, limit)
    except MpibootError as wrong:
        return before, _warning(wrong.finding.said)
    if status is None:
        return before, _warning(f"{path} took longer than {limit:g} s, and was ended")
    after = _read(said)
    if status or not after:
        how = f"ended with {status}" if status else "ended before it told its environment (exit?)"
        return before, _warning(f"{path} {how}{f': {complaint}' if complaint else ''}")
    # A shell drops what it can't name; that is no wish of the script's.
    unset = {name for name in before.keys() - after.keys() if name.isidentifier()} - _SHELL
    kept = {name: value for name, value in before.items() if name not in unset}
    return kept | {name: after[name] for name in after.keys() - _SHELL}, None


def _warning(said: str) -> Finding:
    return Finding("env-profile", Level.WARN, f"MPIBOOT_ENV_PROFILE: {said}", hint=_HINT)


def _read(data: bytes) -> dict[str, str]:
    pairs = (os.fsdecode(item).partition("=") for item in data.split(b"\0") if item)
    # A function that bash exports has a name that no shell can name.
    return {name: value for name, equals, value in pairs if equals and name.isidentifier()}


def _run(
    argv: tuple[str, ...], environ: Mapping[str, str], limit: float
) -> tuple[int | None, bytes, str]:
    """Run to the end of the child, whoever else holds its pipes: status, stdout, last words."""
    out, out_end = os.pipe()
    err, err_end = os.pipe()
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        try:
            pid = process.start(
                argv, environ, stdin=null, stdout=out_end, stderr=err_end, session=True
            )
        finally:
            for end in (out_end, err_end, null):
                os.close(end)
        said = {out: bytearray(), err: bytearray()}
        ended = _pump(pid, said, limit)
        status = exit_status(os.waitpid(pid, 0)[1])
    finally:
        os.close(out)
        os.close(err)
    lines = bytes(said[err]).decode("utf-8", "replace").split("\n")
    words = next((line.strip() for line in reversed(lines) if line.strip()), "")
    shown = "".join(char if char.isprintable() else "?" for char in words)[-_KEPT:]
    return (status if ended else None), bytes(said[out]), shown


def _pump(pid: int, said: Mapping[int, bytearray], limit: float) -> bool:
    """Read until the child ends; False, and all of its session is killed, at the limit."""
    watch = process.end_of_child(pid)
    poll = select.poll()
    for descriptor in (watch, *said):
        poll.register(descriptor, select.POLLIN)
    for descriptor in said:
        os.set_blocking(descriptor, False)
    deadline = time.monotonic() + limit
    try:
        while (left := deadline - time.monotonic()) > 0:
            ready = {descriptor for descriptor, _ in poll.poll(left * 1000)}
            for descriptor in ready & said.keys():
                if not _take(descriptor, said[descriptor]):
                    poll.unregister(descriptor)
            if watch in ready:
                for descriptor, into in said.items():
                    while _take(descriptor, into):
                        pass
                return True
        os.killpg(pid, signal.SIGKILL)
        return False
    finally:
        os.close(watch)


def _take(descriptor: int, into: bytearray) -> bool:
    """Read what is there; False at the end, or where nothing is there now."""
    try:
        data = os.read(descriptor, 1 << 16)
    except BlockingIOError:
        return False
    into += data
    del into[:-_MOST]
    return bool(data)
