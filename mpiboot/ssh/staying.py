"""mpiboot's own SSH client in the process that passed the gate: its logins carry the sessions.

It ends with that process, which the parent of mpirun lets go when the workers were told.
"""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import Final

from mpiboot.core.launch_spec import CLIENT_SOCKET
from mpiboot.ssh import waiting_agent
from mpiboot.ssh.agent_requests import AgentRequests
from mpiboot.ssh.client import Client
from mpiboot.ssh.kept import KeptConnections
from mpiboot.ssh.start import ClientConfig
from mpiboot.system import open_files

_BACKLOG: Final = 4096


class StayingClient:
    """The client of one launch; agents may come from now on, and wait until it serves."""

    def __init__(self, folder: Path, config: ClientConfig, kept: KeptConnections) -> None:
        """Make what agents reach it by, in the launch folder.

        Raises:
            OSError: that can't be made, or too few files may be open.
        """
        open_files.allow_most()
        waiting_agent.offer(folder)
        self._kept = kept
        self._client = Client(config)
        names = [host.name for host in config.hosts]
        self._requests = AgentRequests(folder, names, self._client.tell)
        # A socket's path may be 107 bytes long, and the folder's may be longer.
        here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._listener.bind(f"/proc/self/fd/{here}/{CLIENT_SOCKET}")
            self._listener.listen(_BACKLOG)
        finally:
            os.close(here)

    async def serve(self) -> None:
        """Serve until this process ends."""
        self._client.keep(self._kept)
        self._listener.setblocking(False)
        loop = asyncio.get_running_loop()
        loop.add_reader(self._listener, self._client.accept, self._listener)
        self._requests.serve(self._client.run)
        await loop.create_future()
