"""Processes of this pod, by psutil, and the TCP ports that they listen on. Read-only.

psutil takes 12 ms of CPU time and a megabyte, so the first call that needs it imports it: never on
a worker's way to its SSH server and its facts. Read from /proc instead are, here, the bare numbers
of the ports (``listening_ports``); elsewhere, how much came for a socket and a process's children
without a look at every other process (``supervisor/processes.py``), when a process began by a clock
that nobody sets, and the names of what it was started with (``network/pod.py``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple


class RunningProcess(NamedTuple):
    """A line of the process table; ``identity`` tells a process from a later one of that number.

    That is psutil's own hash, of the number and the ticks from boot to the process's start; its
    ``create_time`` would change with the clock, and reads all of /proc/stat for each process.
    """

    pid: int
    parent: int
    session: int
    identity: int


class Listener(NamedTuple):
    """A TCP socket that listens.

    ``pid`` is one of the processes that have it; 0 where these are another user's or pod's.
    """

    address: str
    port: int
    pid: int


def find(pid: int) -> RunningProcess | None:
    """Give one living process; None where it has ended (a zombie has)."""
    import psutil  # noqa: PLC0415 - see above

    try:
        process = psutil.Process(pid)
        with process.oneshot():
            if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
                return None
            return RunningProcess(pid, process.ppid(), os.getsid(pid), hash(process))
    except (psutil.Error, ProcessLookupError):
        return None


def table() -> dict[int, RunningProcess]:
    """Give every living process that can be seen from here."""
    import psutil  # noqa: PLC0415 - see above

    return {pid: found for pid in psutil.pids() if (found := find(pid))}


def children(pid: int) -> list[int]:
    """Give the children of a process."""
    return [found.pid for found in table().values() if found.parent == pid]


def environ(pid: int) -> dict[str, str]:
    """Give what a process was started with; empty where it has ended or is another user's."""
    import psutil  # noqa: PLC0415 - see above

    try:
        return psutil.Process(pid).environ()
    except (psutil.Error, OSError):
        return {}


def environments() -> Iterator[dict[str, str]]:
    """Give the environment of every process that can be read from here."""
    import psutil  # noqa: PLC0415 - see above

    return filter(None, map(environ, psutil.pids()))


def listeners() -> tuple[Listener, ...]:
    """Give the TCP sockets of this network namespace that listen; none where that is hidden."""
    import psutil  # noqa: PLC0415 - see above

    try:
        found = psutil.net_connections("tcp")
    except (psutil.Error, OSError, RuntimeError):  # no such table, or one that psutil can't read
        return ()
    return tuple(
        Listener(item.laddr.ip, item.laddr.port, item.pid or 0)
        for item in found
        if item.laddr and item.status == psutil.CONN_LISTEN
    )


_LISTENS: Final = "0A"  # a row's fourth word; the second is the address and port, in hexadecimal


def listening_ports(proc: str = "/proc") -> set[int]:
    """Give the TCP ports of this network namespace that listen; none where that is hidden.

    Read without psutil, as a worker asks while it gathers its facts: loading psutil costs
    12 to 17 ms of CPU time, and its ``net_connections`` looks at every process for whose they are.
    """
    found = set()
    for table in ("tcp", "tcp6"):
        with (
            suppress(OSError, ValueError, IndexError),
            open(f"{proc}/net/{table}", encoding="ascii") as rows,  # noqa: PTH123 - light
        ):
            for words in map(str.split, rows):
                if words[3] == _LISTENS:
                    found.add(int(words[1].rpartition(":")[2], 16))
    return found


_READABLE: Final = re.compile(rb"^([0-9a-f]+)-[0-9a-f]+ r", re.MULTILINE)


def memory_refused() -> str:
    """Say with which error the kernel refuses to read another process's memory; empty where not.

    Ranks of one host do that for large messages, and Open MPI's shared memory (vader, sm) calls
    process_vm_readv without having tried it: where a container's seccomp profile refuses it, every
    large message ends with `Read -1, expected N, errno = 1` (open-mpi/ompi issue 4948). Here a byte
    of an own child is read. Where nothing tells, nothing is said.
    """
    import ctypes  # noqa: PLC0415 - for a worker's facts alone
    import subprocess  # noqa: PLC0415

    try:
        read = ctypes.CDLL(None, use_errno=True).process_vm_readv
        # The child waits for its standard input, which is closed when it was looked at.
        with subprocess.Popen(("/bin/sh", "-c", "read _"), stdin=subprocess.PIPE) as child:
            with open(f"/proc/{child.pid}/maps", "rb") as maps:  # noqa: PTH123 - light
                place = _READABLE.search(maps.read())
            if place is None:
                return ""
            mine, piece, one = (
                ctypes.create_string_buffer(1),
                ctypes.c_size_t * 2,
                ctypes.c_ulong(1),
            )
            here, there = piece(ctypes.addressof(mine), 1), piece(int(place[1], 16), 1)  # iovec
            got = read(
                child.pid, ctypes.byref(here), one, ctypes.byref(there), one, ctypes.c_ulong()
            )
            return "" if got == 1 else os.strerror(ctypes.get_errno())
    except (OSError, AttributeError):  # no such call in this C library, no /proc, no shell
        return ""
