"""Whether anybody is at an address that a launcher had."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from mpiboot.choices import HostKeys
from mpiboot.gates.access import Access
from mpiboot.gates.other_launchers import OtherLauncher
from mpiboot.gates.remote_commands import RemoteCommands
from mpiboot.ssh_client.attempt import LoginTimeouts
from tests.fakes.sshd import listener, saying


@pytest.mark.parametrize(
    ("address", "listens", "answers"),
    [
        ("127.0.0.1", True, True),
        ("127.0.0.1", False, True),  # who refuses is there
        ("224.0.0.1", True, False),  # a multicast address has no TCP
    ],
)
async def test_who_refuses_a_connection_is_there_and_who_says_nothing_may_be_gone(
    tmp_path: Path, address: str, *, listens: bool, answers: bool
) -> None:
    remote = RemoteCommands(
        Access("root", tmp_path / "key", "launcher"), HostKeys.JOB, LoginTimeouts(connect=5)
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if not listens:
            server.close()
        assert await remote.is_there(OtherLauncher("", "", address, (), False), port) is answers


async def test_who_greets_as_an_ssh_server_is_there(tmp_path: Path) -> None:
    remote = RemoteCommands(Access("root", tmp_path / "key", "launcher"), HostKeys.JOB)
    async with listener(saying(b"SSH-2.0-OpenSSH_9.2\r\n")) as port:
        assert await remote.is_there(OtherLauncher("", "", "127.0.0.1", (), False), port)
