"""Starts mpiboot's own SSH client for one launch, and says what it is told.

The client's module itself is never loaded here: it runs as a process of its own.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from mpiboot.core.errors import error
from mpiboot.ssh import connect
from mpiboot.ssh.config import SshTimeouts
from mpiboot.system import files, process

# An agent's socket and its three streams, and the connection to the host; beside these its own
# and those of logins that are tried again.
_FILES_A_HOST: Final = 5
_FILES: Final = 64


@dataclass(frozen=True, slots=True)
class ClientHost:
    """A host as mpirun calls it, where it was verified to be, and the host key that it showed.

    ``key`` is a public key as a line; empty where any will do, as the user asked.
    """

    name: str
    address: str
    port: int
    user: str
    key: str


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """What the launcher tells this process; its file is private.

    ``events`` is the FIFO on which the parent of mpirun listens, ``parent`` whom to end with.
    """

    hosts: tuple[ClientHost, ...]
    key: str
    patience: SshTimeouts
    events: str
    errors: str
    parent: int

    def to_json(self) -> str:
        """Write it as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ClientConfig:
        """Read what ``to_json`` wrote."""
        values = json.loads(text)
        hosts = tuple(ClientHost(**item) for item in values.pop("hosts"))
        return cls(hosts=hosts, patience=SshTimeouts(**values.pop("patience")), **values)


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


def words() -> str:
    """Give the command line by which an agent reaches the client, as words for a shell.

    Raises:
        MpibootError: ``runtime-folder``; a path has a blank in it, and the agent splits there.
    """
    found = (sys.executable, "-I", "-S", str(Path(connect.__file__).resolve()))
    odd = next((word for word in found if any(char.isspace() for char in word)), "")
    if odd:
        raise error("runtime-folder", f"{odd!r} has a blank in its path", hint="install elsewhere")
    return " ".join(found)


def write(folder: Path, config: ClientConfig) -> tuple[str, ...]:
    """Write what the client reads; give the command line by which the parent starts it.

    Its standard input is to be a socket that listens as ``connect.SOCKET`` in the folder: agents
    may connect at once, and wait until the client has loaded.

    Raises:
        MpibootError: ``runtime-folder``; the file can't be written.
    """
    path = folder / "client.json"
    files.write_private(path, config.to_json())
    statement = "from mpiboot.ssh.client import main; main(sys.argv[1])"
    return tuple(process.python(statement, str(path)))
