from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import asyncssh
import pytest

from mpiboot.ssh import attempt as tcp
from mpiboot.ssh import login as dialogue
from mpiboot.ssh.attempt import Attempt, LoginTimeouts, Outcome, Target
from mpiboot.ssh.login import Connection, Login
from tests.fakes.sshd import Job


async def _talk(process: asyncssh.SSHServerProcess[str]) -> None:
    """Say each line back, but for the gate's own command; ``end`` ends it."""
    if process.command == "echo hello":
        process.stdout.write("hello\n")
    elif process.command == "fail":
        process.exit(1)
        return
    else:
        process.stdout.write(f"{process.command} has begun\n")
        async for line in process.stdin:
            if line == "end\n":
                break
            process.stdout.write(f"heard {line}")
    process.exit(0)


class _Server(asyncssh.SSHServer):
    def __init__(self, job: Job, sessions: int) -> None:
        self._job, self._left = job, sessions

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return key == self._job.key.convert_to_public()

    def session_requested(self) -> asyncssh.SSHServerProcess[str] | bool:
        self._left -= 1
        return asyncssh.SSHServerProcess(_talk, None, 3, False) if self._left >= 0 else False


@asynccontextmanager
async def kept(
    job: Job, sessions: int = 9, command: str = "echo hello"
) -> AsyncIterator[list[Connection]]:
    """Log in as the gate does, and keep what stays open."""
    server = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_factory=lambda: _Server(job, sessions),
        server_host_keys=[job.key],
        config=None,
        gss_host=None,
    )
    found: list[Connection] = []
    port = server.get_port()
    opened = await tcp.connect(Target("w-0", "127.0.0.1", port, "runner"), LoginTimeouts())
    assert not isinstance(opened, Attempt)
    with opened.sock:
        done = await Login(job.path).log_in(opened, command, keep=found.append)
    if command == "fail":
        assert done.outcome is Outcome.COMMAND_FAILED
    else:
        assert (done.outcome, done.output) == (Outcome.OK, "hello\n")
    try:
        yield found
    finally:
        server.close()
        for connection in found:
            await connection.close()
        await server.wait_closed()


@pytest.fixture
def job(tmp_path: object) -> Job:
    return Job(tmp_path)  # type: ignore[arg-type]


async def test_a_second_command_answers_line_by_line_in_turn(job: Job) -> None:
    async with kept(job) as (connection,):
        talk = await connection.start("second")
        assert talk is not None
        assert await talk.line() == "second has begun"
        both = await asyncio.gather(talk.ask("one"), talk.ask("two"))
        assert tuple(both) == ("heard one", "heard two")


async def test_what_is_asked_at_one_time_is_one_packet(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[bytes | str] = []
    write = asyncssh.SSHWriter.write

    def note(writer: asyncssh.SSHWriter[bytes], data: bytes) -> None:
        written.append(data)
        write(writer, data)

    async with kept(job) as (connection,):
        talk = await connection.start("second")
        assert talk is not None
        await talk.line()
        monkeypatch.setattr(asyncssh.SSHWriter, "write", note)
        await asyncio.gather(talk.ask("one"), talk.ask("two"))
        # The server's are no bytes.
        assert [item for item in written if isinstance(item, bytes)] == [b"one\ntwo\n"]


async def test_one_that_has_ended_answers_nothing(job: Job) -> None:
    async with kept(job) as (connection,):
        talk = await connection.start("second")
        assert talk is not None
        await talk.line()
        assert await talk.ask("end") == ""
        assert await talk.ask("one") == ""
        await connection.close()
        assert await talk.ask("one") == ""


async def test_a_server_that_takes_no_second_command_is_none(job: Job) -> None:
    async with kept(job, sessions=1) as (connection,):
        assert await connection.start("second") is None


async def test_nothing_stays_open_where_the_gates_command_fails(job: Job) -> None:
    async with kept(job, command="fail") as (connection,):
        assert await connection.start("second") is None


async def test_a_closed_connection_starts_nothing(job: Job) -> None:
    async with kept(job) as (connection,):
        await connection.close()
        assert await connection.start("second") is None


async def test_a_server_that_ignores_a_disconnect_is_left() -> None:
    class Deaf:
        aborted = False

        def close(self) -> None:
            pass

        async def wait_closed(self) -> None:
            await asyncio.Event().wait()

        def abort(self) -> None:
            self.aborted = True

    connection = Deaf()
    await asyncio.wait_for(dialogue.closed(cast("asyncssh.SSHClientConnection", connection)), 60)
    assert connection.aborted
