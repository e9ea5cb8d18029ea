"""The configuration of mpiboot's own SSH client, and how agents and mpirun call it.

The client itself (``client.py``) and asyncssh are never loaded here.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mpiboot.core.checks import error
from mpiboot.core.records_json import read_record, write_records
from mpiboot.ssh import connect
from mpiboot.ssh.config import LaunchHost, SshTimeouts
from mpiboot.system import files, process

if TYPE_CHECKING:
    import asyncssh

    from mpiboot.ssh.attempt import Target

_AGENT: Final = Path(__file__).resolve().parent.parent / "libexec" / "agent"

# An agent's socket and its three streams, and the connection to the host; beside these its own
# and those of logins that are tried again.
_FILES_A_HOST: Final = 5
_FILES: Final = 64


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """What the launcher writes for this process; its file is private.

    ``events`` is the FIFO on which the parent of mpirun listens, ``parent`` whom to end with.
    """

    hosts: tuple[LaunchHost, ...]
    key: str
    patience: SshTimeouts
    events: str
    errors: str
    parent: int

    @classmethod
    def from_json(cls, text: str) -> ClientConfig:
        """Read what ``write`` wrote."""
        return read_record(cls, json.loads(text))


def short_of_files(hosts: int, most: int) -> str:
    """Say that the client can't serve so many hosts; empty where it can. Pure.

    Args:
        hosts: how many hosts it is to serve at once.
        most: how many files it may have open.
    """
    needed = hosts * _FILES_A_HOST + _FILES
    if most < needed:
        return (
            f"mpiboot's SSH client needs {needed} open files for {hosts} hosts, "
            f"and this pod's hard limit is {most}"
        )
    return ""


def client_words() -> str:
    """Give the command line by which an agent reaches the client, as words for a shell.

    Raises:
        MpibootError: ``runtime-folder``; a path has a blank in it, and the agent splits there.
    """
    found = (sys.executable, "-I", "-S", str(Path(connect.__file__).resolve()))
    blank = next((word for word in found if any(char.isspace() for char in word)), "")
    if blank:
        message = f"{blank!r} has a blank in its path"
        raise error("runtime-folder", message, hint="install elsewhere")
    return " ".join(found)


def write(folder: Path, config: ClientConfig) -> tuple[str, ...]:
    """Write what the client reads; give the command line by which the parent starts it.

    Its standard input is to be a socket that listens as ``connect.SOCKET`` in the folder: agents
    may connect at once, and wait until the client has loaded.

    Raises:
        MpibootError: ``runtime-folder``; the file can't be written.
    """
    path = folder / "client.json"
    files.write_private(path, write_records(config))
    statement = "from mpiboot.ssh.client import main; main(sys.argv[1])"
    return tuple(process.python(statement, str(path)))


def agent_words() -> str:
    """Give the agent's command line; mpirun and the agent's users split it at blanks.

    Raises:
        MpibootError: ``runtime-folder``; mpiboot's own folder has a blank in its path.
    """
    if any(char.isspace() for char in str(_AGENT)):
        raise error(
            "runtime-folder",
            f"mpiboot's own folder {str(_AGENT)!r} has a blank in its path, and mpirun splits it "
            "there",
            hint="install mpiboot in a folder without blanks",
        )
    # Its execute bit may be lost, or count for nothing on a noexec mount; Open MPI takes words.
    return str(_AGENT) if os.access(_AGENT, os.X_OK) else f"/bin/sh {_AGENT}"


class ConnectionPool:
    """The gate's logins that stay open for the launch agents' sessions.

    By address, port and user: hosts may share all of these.
    """

    def __init__(self, patience: SshTimeouts) -> None:
        """Begin with none; ``patience`` says after what time a silent host is lost."""
        self._patience = patience
        self._all: dict[tuple[str, int, str], list[asyncssh.SSHClientConnection]] = {}

    def keep(self, target: Target, connection: asyncssh.SSHClientConnection) -> None:
        """Take one over."""
        connection.set_keepalive(self._patience.interval, self._patience.probes)
        place = (target.address, target.port, target.user)
        self._all.setdefault(place, []).append(connection)

    def take(self, address: str, port: int, user: str) -> asyncssh.SSHClientConnection | None:
        """Give the latest away; None where there is none that is still open."""
        there = self._all.get((address, port, user), [])
        while there:
            latest = there.pop()
            if not latest.is_closed():
                return latest
        return None

    def close(self) -> None:
        """Close those that nobody took."""
        for there in self._all.values():
            for connection in there:
                connection.close()
        self._all.clear()
