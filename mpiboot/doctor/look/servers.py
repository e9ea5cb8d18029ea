"""Which SSH servers listen in this pod's network, whose they are, and how they greet."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from mpiboot.core.addresses import address_of
from mpiboot.doctor.report import ServersPart, SshListener
from mpiboot.network.sysfs import text

PROC: Final = Path("/proc")
_LISTEN: Final = "0A"  # the kernel's tcp_states.h
_MPIBOOT: Final = "mpiboot"  # what its SSH servers say of themselves
_PATIENCE: Final = 2.0  # seconds; a server greets at once, a proxy never
_LONGEST: Final = 255  # RFC 4253, 4.2
# A socket that listens on every address is reached by loopback.
_ANY: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - read, not bound


def servers(own: int, ports: Iterable[int], proc: Path = PROC) -> ServersPart:
    """Ask what listens on these ports for its greeting; what does not speak SSH is left out.

    Args:
        own: the port of this pod's worker, 0 where none runs.
        ports: where else to look.
        proc: where /proc is.
    """
    found = []
    for port in dict.fromkeys(filter(None, (own, *ports))):
        listening = _listening(port, proc)
        greeting = next(filter(None, (_greeting(item, port) for item in listening.values())), "")
        if greeting:
            pid = _holder(set(listening), proc)
            name = text(proc / str(pid) / "comm") if pid else ""
            found.append(SshListener(port, greeting, pid, name, _MPIBOOT in greeting))
    return ServersPart(own, tuple(found))


def process_of(port: int, proc: Path = PROC) -> int:
    """Give the process that listens on a port; 0 where none of this user's does."""
    return _holder(set(_listening(port, proc)), proc)


def _listening(port: int, proc: Path) -> dict[str, str]:
    """Give the sockets that listen on a port, each with its address."""
    found = {}
    for table in ("net/tcp", "net/tcp6"):
        for words in map(str.split, text(proc / table).splitlines()[1:]):
            address, _, number = words[1].rpartition(":")
            if words[3] == _LISTEN and int(number, 16) == port:
                found[f"socket:[{words[9]}]"] = address_of(address)
    return found


def _holder(sockets: set[str], proc: Path) -> int:
    numbers = sorted(int(item.name) for item in proc.iterdir() if item.name.isdigit())
    # The first one: children of a server may have its socket too.
    return next((pid for pid in numbers if sockets & _open_files(proc / str(pid) / "fd")), 0)


def _open_files(folder: Path) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):  # of another user's, and of one that has ended
        for name in os.listdir(folder):  # noqa: PTH208 - names only
            found.add(os.readlink(f"{folder}/{name}"))  # noqa: PTH115 - a socket is no path
    return found


def _greeting(address: str, port: int) -> str:
    where = (_ANY.get(address, address), port)
    try:
        with socket.create_connection(where, _PATIENCE) as connection:
            said = connection.recv(_LONGEST)
    except OSError:
        return ""
    line = said.partition(b"\n")[0].decode("utf-8", "replace").strip()
    return line if line.startswith("SSH-") else ""
