from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import asyncssh
import pytest

from mpiboot.ssh.attempt import LoginTimeouts, Outcome, Target
from mpiboot.ssh.config import LaunchHost
from mpiboot.ssh.login import Login
from mpiboot.ssh.pool import Pool
from tests.fakes.sshd import Job

SECONDS = 60.0


async def _talk(process: asyncssh.SSHServerProcess[str]) -> None:
    """Say each line back, but for the gate's own command; ``end`` ends it."""
    assert process.command == "sh -s"
    script = (await process.stdin.readline()).strip()
    if script == "echo hello":
        process.stdout.write("hello\n")
    elif script == "fail":
        process.exit(1)
        return
    else:
        process.stdout.write(f"{script} has begun\n")
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
async def reached(job: Job, sessions: int = 9, command: str = "echo hello") -> AsyncIterator[Pool]:
    """Log in as the gate does."""
    server = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_factory=lambda: _Server(job, sessions),
        server_host_keys=[job.key],
        config=None,
        gss_host=None,
    )
    pool, target = Pool(job.path), Target("w-0", "127.0.0.1", server.get_port(), "runner")
    done = await pool.log_in(target, command, LoginTimeouts())
    assert (done.outcome is Outcome.OK) == (command != "fail")
    assert pool.is_connected(target) == (command != "fail")
    try:
        yield pool
    finally:
        await pool.close()
        server.close()
        await server.wait_closed()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


async def test_a_second_command_answers_line_by_line_in_turn(job: Job) -> None:
    async with reached(job) as pool:
        talk = await pool.start("w-0", "second", SECONDS)
        assert await talk.line() == "second has begun"
        both = await asyncio.gather(talk.ask("one"), talk.ask("two"))
        assert tuple(both) == ("heard one", "heard two")
        assert await talk.ask("end") == ""
        assert await talk.ask("one") == ""


async def test_a_server_that_takes_no_further_session_is_a_reason(job: Job) -> None:
    async with reached(job, sessions=0, command="fail") as pool:
        pool.know((LaunchHost("w-0", "127.0.0.1", 1, "runner"),))
        end = await pool.run("w-0", "second", SECONDS)
        assert (end.status, end.error[:22]) == (None, "connection refused at ")


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
    await asyncio.wait_for(Login.close(cast("asyncssh.SSHClientConnection", connection)), SECONDS)
    assert connection.aborted
