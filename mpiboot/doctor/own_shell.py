"""Asks this pod itself: by a shell what hosts are asked by SSH, or by another program."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

_TEXT: Final = "utf-8"


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """How a program ended, and what it printed."""

    status: int
    text: str
    said: str


async def run(
    words: tuple[str, ...], seconds: float, environ: Mapping[str, str] | None = None
) -> ProgramEnd | None:
    """Run a program; it is killed after ``seconds``, and then there is nothing.

    Args:
        words: the program and its arguments.
        seconds: how long it may take.
        environ: its environment; None for our own.
    """
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
    assert process.returncode is not None  # noqa: S101 - its streams have ended, and it is reaped
    return ProgramEnd(
        process.returncode, text.decode(_TEXT, "replace"), said.decode(_TEXT, "replace")
    )


async def ask(command: str, seconds: float) -> str:
    """Run one of ``host_shell``'s commands here; what it printed, nothing after ``seconds``."""
    done = await run(("/bin/sh", "-c", command), seconds)
    return done.text if done else ""
