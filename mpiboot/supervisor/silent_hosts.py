"""Looks for hosts from which nothing comes any more: by name, at their SSH port, by host key.

Only what can't be undone is a proof: a name that is gone or leads elsewhere while no SSH server
greets at its old address, a refused connection, another host key. A network that drops packets, a
nameserver that doesn't answer and a server that is stopped are none.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Final

from mpiboot.supervisor.request import Found

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mpiboot.supervisor.evidence import Baseline

# Seconds for each step; a resolver tries each nameserver for five.
_STEP: Final = 5.0
# What ssh, and mpiboot's own client, write of a host key that is not the pinned one.
_OTHER_KEY: Final = ("host key verification failed", "host key is not trusted")
_TAIL: Final = 2048
_SILENT: Final = "accepts connections, but sshd says nothing: is that process stopped or starved?"


async def look_for(
    host: Baseline,
    resolve: Callable[[Baseline], Awaitable[tuple[str, ...] | None]],
    log_in: Callable[[Baseline], Awaitable[str | None]],
    errors: str,
) -> tuple[Found, str]:
    """Say what is found where a host was.

    Args:
        host: where the gate found it.
        resolve: gives the addresses of its name; None where nobody can tell.
        log_in: runs a command there; None where it fails.
        errors: the folder of the files to which ssh writes, by host.
    """
    resolving = asyncio.ensure_future(resolve(host))
    found, said = await _at_its_port(host)
    done, _ = await asyncio.wait((resolving,), timeout=_STEP)
    known = resolving.result() if done else None
    if known is None:
        name = "its name gives no answer" if host.dns else "the hostfile has its address"
    elif host.address in known:
        name = f"its name still has the address {host.address}"
    else:
        now = f"now has the address {known[0]}" if known else "does not resolve any more"
        name = f"its name {host.dns} {now}"
        if said.endswith(_SILENT):
            # A Service leaves a pod out that isn't ready, as on a node under pressure; a proxy in
            # front of this pod accepts what it can't pass on. Time tells.
            return Found.NOTHING, f"{name}, and {said}"
        if said:
            return Found.GONE, name
    if not said:
        before = _size(errors, host.name)
        login = await log_in(host)
        if login is None and _other_key(errors, host.name, before):
            return Found.GONE, f"a server with another host key answers at {host.address}"
        said = "sshd there answers" + ("" if login is None else ", and a new login works")
    return found, f"{name}, and {said}"


async def _at_its_port(host: Baseline) -> tuple[Found, str]:
    """Connect as a new client would; nothing is said where a greeting comes."""
    where = f"{host.address} port {host.port}"
    try:
        opening = asyncio.open_connection(host.address, host.port)
        reader, writer = await asyncio.wait_for(opening, _STEP)
    except ConnectionRefusedError:
        return Found.GONE, f"{where} refuses connections"
    except asyncio.TimeoutError:
        return Found.NOTHING, f"{where} does not answer"
    except OSError as why:
        return Found.NOTHING, f"{where} can't be reached ({why.strerror or why})"
    try:
        if await asyncio.wait_for(reader.readline(), _STEP):
            return Found.ANSWERS, ""
        said = "closes the connection"
    except asyncio.TimeoutError:
        said = _SILENT
    except (OSError, ValueError):
        said = "resets the connection"
    finally:
        writer.close()
    return Found.ANSWERS, f"{where} {said}"


def _size(errors: str, name: str) -> int:
    try:
        return os.stat(f"{errors}/{name}").st_size  # noqa: PTH116 - as in ask_workers
    except OSError:
        return 0


def _other_key(errors: str, name: str, begin: int) -> bool:
    try:
        with open(f"{errors}/{name}", "rb") as file:  # noqa: PTH123 - as in ask_workers
            file.seek(begin)
            said = file.read(_TAIL).decode("utf-8", "replace").lower()
    except OSError:
        return False
    return any(words in said for words in _OTHER_KEY)
