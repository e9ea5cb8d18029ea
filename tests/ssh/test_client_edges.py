"""What the launch's own client tells, and what it makes of requests that are none."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import mpiboot
from mpiboot.ssh import client
from mpiboot.ssh.client_start import ClientConfig
from mpiboot.ssh.config import LaunchHost, SshTimeouts
from tests.fakes.sshd import Job


@pytest.fixture
def known(tmp_path: Path) -> client.Client:
    job = Job(tmp_path)
    (tmp_path / "stderr").mkdir()
    os.mkfifo(tmp_path / "events")
    host = LaunchHost("w-0", "10.0.0.1", 22, "me", "")
    patience = SshTimeouts(1, 30, 10, 3)
    return client.Client(
        ClientConfig(
            (host,),
            str(job.path),
            patience,
            str(tmp_path / "events"),
            str(tmp_path / "stderr"),
            1,
        )
    )


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_the_parent_is_told_and_never_waited_for(known: client.Client, tmp_path: Path) -> None:
    before = descriptors()
    reader = os.open(known.config.events, os.O_RDWR | os.O_NONBLOCK)
    known.notify("connected w-0 7\n")
    assert os.read(reader, 99) == b"connected w-0 7\n"
    full = 0
    while full < 1 << 16:  # as much as a FIFO holds
        full += os.write(reader, bytes(1 << 12))
    known.notify("connected w-0 8\n")
    os.close(reader)
    Path(known.config.events).unlink()
    known.notify("connected w-0 9\n")
    assert not (tmp_path / "events").exists()
    assert descriptors() == before


@pytest.mark.parametrize(
    ("host", "name"),
    [("w-0", "w-0"), ("", "unknown"), ("../a b", ".._a_b"), ("fe80::1%eth0", "fe80::1%eth0")],
)
def test_what_went_wrong_stands_where_the_parent_looks_for_it(
    known: client.Client, host: str, name: str
) -> None:
    before = os.umask(0)
    try:
        known._log_error(host, "one\n  two")
        known._log_error(host, "three")
    finally:
        os.umask(before)
    path = Path(known.config.errors) / name
    message = f"mpiboot's SSH client: {host}: "
    assert path.read_text() == f"{message}one two\n{message}three\n"
    assert path.stat().st_mode & 0o777 == 0o600
    path.unlink()
    path.parent.rmdir()
    known._log_error(host, "nobody reads it")


async def answer(known: client.Client, data: bytes, streams: int) -> bytes:
    """What an agent gets for a request, with so many streams."""
    near, far = socket.socketpair()
    null = os.open(os.devnull, os.O_RDWR)
    serving = asyncio.ensure_future(known._serve(far))
    if streams:
        socket.send_fds(near, [data], [null] * streams)
    else:
        near.sendall(data)
    os.close(null)
    if not data.endswith(b"\n"):
        near.shutdown(socket.SHUT_WR)
    await serving
    message = near.recv(99)
    near.close()
    return message


@pytest.mark.parametrize(
    ("request_", "streams", "message"),
    [
        (b'{"words": ["w-9", "true"], "agent": 7}\n', 3, b"255\n"),
        (b'{"words": "w-0", "agent": 7}\n', 3, b"255\n"),
        (b'{"words": ["w-0", "true"], "agent": 7}\n', 0, b"255\n"),
        (b"no json\n", 0, b""),
        (b'{"words": [', 0, b""),  # it went away
    ],
)
async def test_a_request_that_is_none_ends_as_sshs_own_failures_do(
    known: client.Client, request_: bytes, streams: int, message: bytes
) -> None:
    before = descriptors()
    assert await answer(known, request_, streams) == message
    assert descriptors() == before


@pytest.mark.parametrize("data", [b"[]\n", b'"w"\n', b"7\n"])
async def test_a_request_that_is_no_record_asks_for_nothing(data: bytes) -> None:
    near, far = socket.socketpair()
    far.setblocking(False)
    near.sendall(data)
    found: list[int] = []
    assert await client._request(far, found) == {}
    assert found == []
    near.close()
    far.close()


async def test_a_request_comes_in_pieces_and_its_streams_with_the_first() -> None:
    near, far = socket.socketpair()
    far.setblocking(False)
    found: list[int] = []
    asking = asyncio.ensure_future(client._request(far, found))
    data = json.dumps({"words": ["w" * 100_000]}).encode() + b"\n"
    null = os.open(os.devnull, os.O_RDWR)
    sent = socket.send_fds(near, [data[:10]], [null] * 3)
    os.close(null)
    loop = asyncio.get_running_loop()
    near.setblocking(False)
    await loop.sock_sendall(near, data[sent:])
    assert await asking == {"words": ["w" * 100_000]}
    assert len(found) == 3
    for each in found:
        os.close(each)
    near.close()
    far.close()


# Hands a session over as a busy node has it: it goes on once the client has served and closed it.
LATE_AGENT = """
import _socket, select, sys
from mpiboot.ssh import connect

class Late(_socket.socket):
    def sendmsg(self, *words):
        sent = super().sendmsg(*words)
        poll = select.poll()
        poll.register(self.fileno(), select.POLLRDHUP)
        poll.poll()
        return sent

connect._socket.socket = Late
connect.run(sys.argv[1], ["w-0", "true"])
"""


def test_a_session_that_is_over_at_once_has_its_status(tmp_path: Path) -> None:
    root = str(Path(mpiboot.__file__).parent.parent)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "client.sock"))
        server.listen()
        agent = subprocess.Popen(
            [sys.executable, "-c", LATE_AGENT, str(tmp_path)], env={"PYTHONPATH": root}
        )
        session, _ = server.accept()
        with session:
            _, given, _, _ = socket.recv_fds(session, 4096, 3)
            session.sendall(b"7\n")
        for handle in given:
            os.close(handle)
        assert agent.wait(60) == 7
