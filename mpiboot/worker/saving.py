"""A worker that is told to end: its ranks get the time to save, and their launcher is told.

The launcher must hold its mpirun before the first rank ends, or mpirun would kill all others; so it
is told first, by a connection to the port that the job's daemons have in their environment, and
closes it once it holds it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import mpiboot
from mpiboot.core.launch_spec import JOB_MARK, NOTICE
from mpiboot.ssh.sessions import MARK
from mpiboot.system import process

SCRIPT: Final = Path(mpiboot.__file__).parent / "libexec" / "stop-ranks"
# Seconds; its ranks wait for this. A launcher on the same network answers in a millisecond, where
# its node isn't overloaded.
_PATIENCE: Final = 2.0


@dataclass(frozen=True, slots=True)
class LauncherPort:
    """Who started daemons here: where it listens, its launch's mark, and its name for this host."""

    address: str
    port: int
    mark: str
    host: str


def launcher(environ: bytes, token: str) -> LauncherPort | None:
    """Read from a daemon's environment whom to tell; None where nobody listens.

    ``token`` begins the marks of this worker's sessions: where pods share their processes (hostPID,
    shareProcessNamespace), others' sessions are seen too, and are left alone. The address is the
    one from which the daemon's SSH connection came.
    """
    values = dict(
        word.split("=", 1) for word in environ.decode("utf-8", "replace").split("\0") if "=" in word
    )
    port, _, host = values.get(NOTICE, "").partition("/")
    came = values.get("SSH_CONNECTION", "").split()
    if (
        not values.get(MARK, "").startswith(f"{token}-")
        or not port.isdigit()
        or not host
        or not came
    ):
        return None
    return LauncherPort(came[0], int(port), values.get(JOB_MARK, ""), host)


def tell_launchers(token: str, root: Path = Path("/proc")) -> None:
    """Tell every launcher that has daemons in this worker's sessions that this pod is ending."""
    found: set[LauncherPort] = set()
    for path in root.glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended, or is another user's
            here = launcher(path.read_bytes(), token)
            found |= {here} if here else set()
    for one in found:
        with (
            suppress(OSError),
            socket.create_connection((one.address, one.port), _PATIENCE) as connection,
        ):
            connection.sendall(f"ending {one.mark} {one.host}\n".encode())
            connection.recv(1)


def stop_ranks(
    folder: Path, environ: Mapping[str, str], token: str, signal: str, seconds: float
) -> int:
    """Tell the ranks of this worker's sessions to end; the process that ends when they all have.

    Raises:
        MpibootError: ``program-missing``; there is no shell.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        return process.start(
            ("/bin/sh", str(SCRIPT), signal, str(int(seconds) + 1), f"{MARK}={token}-"),
            {**environ, "MPIBOOT_WORKER_DIR": str(folder)},
            stdin=null,
            stdout=null,
            stderr=null,
        )
    finally:
        os.close(null)
