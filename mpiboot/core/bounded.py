"""Runs a program of this pod for a few seconds at most; what it printed, and how it ended.

Two functions, for who has an event loop and who has none. A program can outlive its end: a device
that is broken holds it in the kernel, where no signal reaches it, and a child of its own keeps its
pipes open. It is waited for a second more, and then left.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

_LEFT: Final = 1.0  # seconds


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """How a program ended, negative by a signal, and what it printed."""

    status: int
    text: str
    said: str


def run(
    words: Sequence[str], seconds: float, environ: Mapping[str, str] | None = None
) -> ProgramEnd | None:
    """Run a program; with all that it started it is killed after ``seconds``: then None.

    Args:
        words: the program and its arguments.
        seconds: how long it may take.
        environ: its environment; None for our own.

    Raises:
        OSError: it can't be started.
    """
    child = subprocess.Popen(
        words,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        text, said = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if child.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                child.wait(_LEFT)
            for pipe in filter(None, (child.stdout, child.stderr)):
                pipe.close()
    return _end(child.returncode, text, said)


async def run_async(
    words: Sequence[str], seconds: float, environ: Mapping[str, str] | None = None
) -> ProgramEnd | None:
    """Run a program as ``run`` does, in an event loop; what it started is not killed with it."""
    import asyncio  # noqa: PLC0415 - who calls this has it; who calls `run` does not want it

    process = await asyncio.create_subprocess_exec(
        *words,
        env=environ,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        text, said = await asyncio.wait_for(process.communicate(), seconds)
    except asyncio.TimeoutError:
        return None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            with suppress(asyncio.TimeoutError):  # its pipes are to be closed, too
                await asyncio.wait_for(process.communicate(), _LEFT)
    assert process.returncode is not None  # noqa: S101 - its streams have ended, and it is reaped
    return _end(process.returncode, text, said)


async def shell(command: str, seconds: float) -> str:
    """Run one of ``host_shell``'s commands here; what it printed, nothing after ``seconds``."""
    done = await run_async(("/bin/sh", "-c", command), seconds)
    return done.text if done else ""


def _end(status: int, text: bytes, said: bytes) -> ProgramEnd:
    return ProgramEnd(status, text.decode("utf-8", "replace"), said.decode("utf-8", "replace"))
