"""Commands on hosts by mpiboot's own SSH client, where a launch has one: no process a host."""

# Part of a program that is run by its path and starts as quickly as it can.
# ruff: noqa: PTH116
from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

# As ``ssh.connect`` has it.
_SOCKET: Final = "client.sock"
_PIECE: Final = 1 << 16
_STATUS: Final = 16


def is_there(folder: str) -> bool:
    """Whether a launch has such a client."""
    try:
        return stat.S_ISSOCK(os.stat(f"{folder}/{_SOCKET}").st_mode)
    except OSError:
        return False


async def run(folder: str, host: str, command: str) -> str | None:
    """Give what a command writes; None where it fails, as where the host can't be reached."""
    try:
        async with _session(folder, host, command) as (client, reader):
            output = b""
            while part := await reader.read(_PIECE):
                output += part
            status = await asyncio.get_running_loop().sock_recv(client, _STATUS)
    except OSError:
        return None
    return output.decode("utf-8", "replace") if status == b"0\n" else None


@asynccontextmanager
async def _session(
    folder: str, host: str, command: str
) -> AsyncIterator[tuple[socket.socket, asyncio.StreamReader]]:
    """Ask for a session, which ends with this."""
    loop = asyncio.get_running_loop()
    output, its_own = os.pipe()
    try:
        wanted = {"words": [host, command], "agent": 0, "asks": os.environ.get("MPIBOOT_ASKS")}
        client = await _ask(folder, wanted, its_own)
    except BaseException:
        os.close(output)
        raise
    finally:
        os.close(its_own)
    with client:
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_read_pipe(lambda: protocol, os.fdopen(output, "rb"))
        try:
            yield client, reader
        finally:
            with suppress(OSError):
                transport.close()


async def _ask(folder: str, request: dict[str, object], output: int) -> socket.socket:
    # A socket's path may be 107 bytes long, and the folder's may be longer.
    here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    null = os.open(os.devnull, os.O_RDWR)
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.setblocking(False)
    try:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, f"/proc/self/fd/{here}/{_SOCKET}")
        data = json.dumps(request).encode() + b"\n"
        # The first byte takes the streams along.
        socket.send_fds(client, [data[:1]], [null, output, null])
        await loop.sock_sendall(client, data[1:])
    except BaseException:
        client.close()
        raise
    finally:
        os.close(here)
        os.close(null)
    return client
