"""Asks this pod by a shell of its own what hosts are asked by SSH."""

from __future__ import annotations

import asyncio
from contextlib import suppress


async def ask(command: str, seconds: float) -> str:
    """Run one of ``host_shell``'s commands here; what it printed, nothing after ``seconds``."""
    process = await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", command),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        text, _ = await asyncio.wait_for(process.communicate(), seconds)
    except asyncio.TimeoutError:
        text = b""
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
    return text.decode("utf-8", "replace")
