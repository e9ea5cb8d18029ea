"""Starts mpiboot's own SSH client for one launch, and says what it is told.

The client's module itself is never loaded here: it runs as a process of its own.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from mpiboot.errors import error
from mpiboot.ssh_client import connect
from mpiboot.ssh_client.config import Patience
from mpiboot.system import files, process

_BACKLOG: Final = 4096


@dataclass(frozen=True, slots=True)
class Remote:
    """A host as mpirun calls it, where it was verified to be, and the host key that it showed.

    ``key`` is a public key as a line; empty where any will do, as the user asked.
    """

    name: str
    address: str
    port: int
    user: str
    key: str


@dataclass(frozen=True, slots=True)
class Config:
    """What the launcher tells this process; its file is private.

    ``events`` is the FIFO on which the parent of mpirun listens, ``parent`` whom to end with.
    """

    hosts: tuple[Remote, ...]
    key: str
    patience: Patience
    events: str
    errors: str
    parent: int

    def to_json(self) -> str:
        """Write it as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Config:
        """Read what ``to_json`` wrote."""
        values = json.loads(text)
        hosts = tuple(Remote(**item) for item in values.pop("hosts"))
        return cls(hosts=hosts, patience=Patience(**values.pop("patience")), **values)


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


def start(folder: Path, config: Config, environ: Mapping[str, str]) -> int:
    """Start the client; agents may connect at once, and wait until it has loaded.

    Returns:
        Its process number.

    Raises:
        MpibootError: ``runtime-folder``; the socket or the file can't be made.
    """
    path = folder / "client.json"
    files.write_private(path, config.to_json())
    # A socket's path may be 107 bytes long, and the folder's may be longer.
    here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(f"/proc/self/fd/{here}/{connect.SOCKET}")
            listener.listen(_BACKLOG)
            statement = "from mpiboot.ssh_client.client import main; main(sys.argv[1])"
            argv = process.python(statement, str(path))
            # A session of its own: Ctrl-C at a terminal is mpirun's.
            return process.start(argv, environ, stdin=listener.fileno(), session=True)
    except OSError as wrong:
        raise error("runtime-folder", f"{folder}/{connect.SOCKET}: {wrong.strerror}") from None
    finally:
        os.close(here)
