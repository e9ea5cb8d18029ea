"""What an ssh client doesn't show: exact exit signals, signals sent, odd requests, broken peers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import asyncssh
import pytest

from mpiboot.hosts.progress import final
from mpiboot.ssh import embedded
from mpiboot.ssh.attempt import Attempt, Outcome, Target
from mpiboot.ssh.sessions import FIFO
from tests.fakes.worker import HAVE_SSH, PATIENCE, Worker, serving
from tests.waiting import until
from tests.worker.test_role import descriptors, over

if TYPE_CHECKING:
    from mpiboot.ssh.login import Login

pytestmark = pytest.mark.skipif(not HAVE_SSH, reason="no ssh-keygen")


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with serving("embedded") as running:
        yield running


@asynccontextmanager
async def connect(worker: Worker) -> AsyncIterator[asyncssh.SSHClientConnection]:
    user = worker.wait_for("listens on").split(" as ")[1].split(",")[0]
    async with asyncssh.connect(
        "127.0.0.1",
        worker.port,
        username=user,
        client_keys=[asyncssh.read_private_key(worker.key)],
        known_hosts=None,
        config=None,
        agent_path=None,
    ) as connection:
        yield connection


async def test_its_greeting_tells_a_launcher_whose_it_is(worker: Worker) -> None:
    async with connect(worker) as connection:
        greeting = connection.get_extra_info("server_version")
    attempt = Attempt(Target("w-0", "10.0.0.1", 22, "root"), Outcome.HOST_KEY_DIFFERS)
    refused = Attempt(Target("w-0", "10.0.0.1", 2222, "root"), Outcome.REFUSED)
    ours = cast("Login", SimpleNamespace(host_fingerprint="SHA256:ours"))
    found = final([replace(attempt, greeting=greeting, fingerprint="x"), refused], ours)
    assert found is not None, "mpiboot with another key: no node's sshd that goes away"


@pytest.mark.parametrize(
    ("number", "name"),
    [
        *((name, name) for name in ("SEGV", "KILL", "TERM", "ABRT", "USR1")),
        *(
            (number, "SIG@openssh.com") for number in ("16", "40")
        ),  # SSH has no name, nor has Python
    ],
)
async def test_a_signal_that_ended_the_command_is_named(
    worker: Worker, number: str, name: str
) -> None:
    async with connect(worker) as connection:
        done = await connection.run(f"ulimit -c 0; kill -{number} $$")
    assert done.exit_signal is not None
    assert done.exit_signal[0] == name


async def test_a_signal_reaches_the_whole_group(worker: Worker) -> None:
    async with connect(worker) as connection:
        # The child tells that it is ready: between fork and exec it would miss the signal.
        child = "sh -c 'echo ready; exec sleep 1000'"
        script = f"trap 'wait; echo ended; exit 6' TERM; {child} & wait"
        command = await connection.create_process(script)
        assert await command.stdout.readline() == "ready\n"
        command.send_signal("TERM")
        done = await command.wait()
    assert (done.stdout, done.exit_status) == ("ended\n", 6)


async def test_a_channel_that_closes_ends_its_session_and_no_other(worker: Worker) -> None:
    async with connect(worker) as connection:
        first = await connection.create_process("echo ready; exec cat")
        second = await connection.create_process("echo ready; exec cat")
        for command in (first, second):
            assert await command.stdout.readline() == "ready\n"
        first.close()
        await first.wait_closed()
        second.stdin.write("still here\n")
        assert await second.stdout.readline() == "still here\n"
        second.stdin.write_eof()
        assert (await second.wait()).exit_status == 0


async def test_nothing_stays_open_of_sessions_whose_processes_were_ended(worker: Worker) -> None:
    async with connect(worker) as connection:
        await connection.run("true")  # what is made once is there
    over(worker)
    before = descriptors(worker)
    async with connect(worker) as connection:
        for _ in range(8):  # more than what of the first connection may still be open
            command = await connection.create_process("sleep 1000 & echo ready; wait")
            assert await command.stdout.readline() == "ready\n"
    over(worker)
    until(lambda: descriptors(worker) == before)


async def test_a_peer_that_speaks_no_ssh_disturbs_nobody(worker: Worker) -> None:
    for data in (b"", b"GET / HTTP/1.0\r\n\r\n", b"SSH-2.0-x\r\n" + bytes(5000)):
        reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        writer.write(data)
        writer.close()
        await writer.wait_closed()
        del reader
    async with connect(worker) as connection:
        assert (await connection.run("exit 3")).exit_status == 3


async def test_a_worker_that_does_not_listen_stops_no_session(tmp_path: Path) -> None:
    """Its FIFO is full: nobody has read for some thousand sessions."""
    running = Worker(tmp_path, "embedded").start().listens()
    fifo = os.open(running.runtime / "sessions", os.O_RDWR | os.O_NONBLOCK)
    os.kill(running.process.pid, signal.SIGSTOP)
    try:
        with suppress(BlockingIOError):
            while True:
                os.write(fifo, b"end nothing\n" * 300)
        with suppress(BlockingIOError):
            while True:
                os.write(fifo, b"\n")
        async with connect(running) as connection:
            done = await asyncio.wait_for(connection.run("echo hello; exit 7"), PATIENCE)
            assert (done.stdout, done.exit_status) == ("hello\n", 7)
    finally:
        os.kill(running.process.pid, signal.SIGCONT)
        os.close(fifo)
    running.wait_for("the worker doesn't listen: begin")
    assert running.stop() == 0


async def test_a_session_knows_both_ends_of_its_connection(worker: Worker) -> None:
    async with connect(worker) as connection:
        own = connection.get_extra_info("sockname")
        done = await connection.run('echo "$SSH_CONNECTION; $SSH_CLIENT"')
    message = f"127.0.0.1 {own[1]} 127.0.0.1 {worker.port}; 127.0.0.1 {own[1]} {worker.port}\n"
    assert done.stdout == message


async def test_a_session_that_was_cancelled_costs_no_other_one_its_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / FIFO)
    os.open(tmp_path / FIFO, os.O_RDWR)
    public = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    config = SimpleNamespace(folder=str(tmp_path), token="t", public=public)
    server = embedded.EmbeddedServer(cast("embedded.EmbeddedConfig", config))
    cancelled, other = asyncio.Future[int](), asyncio.Future[int]()
    for pid, status in ((1, cancelled), (2, other)):
        server.begin(status, pid, "t-1")
    cancelled.cancel()
    monkeypatch.setattr(embedded, "reap", lambda: [(1, 0), (2, 7)])
    server.reap()
    assert await other == 7
