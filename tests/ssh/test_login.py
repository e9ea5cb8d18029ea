"""Logins with the job's key and nothing else of this machine's or user's; commands over them."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import asyncssh
import pytest

from mpiboot.core.checks import MpibootError
from mpiboot.core.model import HostKeys
from mpiboot.ssh import attempt as tcp
from mpiboot.ssh import login
from mpiboot.ssh.attempt import Attempt, LoginTimeouts, Outcome, Target
from mpiboot.ssh.config import LaunchHost, SshTimeouts
from mpiboot.ssh.login import Login, outcome_of
from mpiboot.ssh.pool import Pool
from mpiboot.system.programs import OUTPUT_LIMIT, end_tasks
from tests.fakes.programs import open_files
from tests.fakes.sshd import (
    CLOSES_AFTER_GREETING,
    CLOSING,
    HANGS_AFTER_GREETING,
    HTTP,
    SILENT,
    Behaviour,
    Job,
    Talk,
    listener,
    saying,
    sshd,
)
from tests.fakes.worker import free_port
from tests.waiting import GUARD, until_in_loop

# Guards: there is one try, and server and client are one process on a machine that may be busy.
LIMITS = LoginTimeouts(connect=60.0, greeting=60.0, login=60.0, command=60.0)
WHERE = Target("w-0", "127.0.0.1", 22, "x")


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


async def attempt(
    pool: Pool, port: int, command: str = "echo hello", limits: LoginTimeouts = LIMITS
) -> Attempt:
    """Log in once; nothing stays open."""
    try:
        return await pool.log_in(Target("w-0", "127.0.0.1", port, "runner"), command, limits)
    finally:
        await pool.close()


async def against(job: Job, behaviour: Behaviour, command: str = "echo hello") -> Attempt:
    async with sshd(behaviour) as port:
        return await attempt(Pool(job.path), port, command)


# The connection and the greeting


async def failed(address: str = "127.0.0.1", port: int = 22, seconds: float = 60.0) -> Attempt:
    limits = LoginTimeouts(connect=seconds)
    found, sock = await tcp.connect(Target("w-0", address, port, "x"), limits)
    assert sock is None
    return found


@pytest.mark.parametrize(
    ("address", "outcomes"),
    [
        ("127.0.0.1", {Outcome.REFUSED}),
        ("224.0.0.1", {Outcome.UNREACHABLE, Outcome.TIMEOUT}),  # multicast has no TCP
        # The gate has resolved the name; a resolver that hangs would hold every other host.
        ("localhost", {Outcome.NO_SOCKET}),
        ("fe80::1%nolink9", {Outcome.NO_SOCKET}),
    ],
)
async def test_an_address_that_leads_nowhere(address: str, outcomes: set[Outcome]) -> None:
    assert (await failed(address, free_port())).outcome in outcomes


async def test_no_answer_at_all_is_a_timeout() -> None:
    # A listener whose queue is full drops what comes, as a network policy does.
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        found = await failed(port=full.getsockname()[1], seconds=0.3)
    assert found.outcome is Outcome.TIMEOUT


async def test_without_a_descriptor_left_the_attempt_fails_with_that_reason() -> None:
    lowest = os.dup(0)
    os.close(lowest)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
        found = await failed()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert found == Attempt(WHERE, Outcome.NO_SOCKET, message="too many open files")


@pytest.mark.parametrize(
    ("talk", "outcome", "message"),
    [
        (SILENT, Outcome.SILENT, "within 0.3 s"),
        (CLOSING, Outcome.CLOSED, "before its greeting"),
        (HTTP, Outcome.NOT_SSH, "HTTP/1.1 400"),
        (saying(b"\x16\x03\x01\x00"), Outcome.NOT_SSH, "\\x16\\x03"),
        (saying(b"x" * 300), Outcome.NOT_SSH, "xxxx"),
        (CLOSES_AFTER_GREETING, Outcome.CLOSED, ""),
        # It greets and no more: as where large packets get lost.
        (HANGS_AFTER_GREETING, Outcome.SLOW, "more than 0.3 s"),
    ],
)
async def test_what_is_no_good_server_is_told_apart(
    job: Job, talk: Talk, outcome: Outcome, message: str
) -> None:
    # What says nothing, or no line that ends, is waited for until the limit.
    seconds = {Outcome.SILENT: 0.3, Outcome.NOT_SSH: 5.0}.get(outcome, LIMITS.greeting)
    limits = replace(LIMITS, greeting=seconds, login=0.3 if outcome is Outcome.SLOW else 60.0)
    async with listener(talk) as port:
        found = await attempt(Pool(job.path), port, limits=limits)
    assert (found.outcome, found.stalled) == (outcome, outcome is Outcome.SLOW)
    assert message in found.message


@pytest.mark.parametrize(
    "talk",
    [
        saying(b"SSH-2.0-Stuck_1.0\r\n", pause_after=5),
        saying(b"Welcome\r\nSSH-2.0-Stuck_1.0\r\n", pause_after=9),
    ],
)
async def test_a_greeting_in_parts_or_behind_other_lines_is_a_greeting(talk: Talk) -> None:
    async with listener(talk) as port:
        found, sock = await tcp.connect(replace(WHERE, port=port), LIMITS)
    assert sock
    sock.close()
    assert found.greeting == "SSH-2.0-Stuck_1.0"


async def test_an_attempt_that_is_given_up_leaves_nothing_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        before = open_files()
        opening = asyncio.ensure_future(failed(port=server.getsockname()[1]))
        await until_in_loop(lambda: open_files() > before)
        await end_tasks((opening,))
        assert open_files() == before


# The login


@pytest.mark.parametrize("kind", ["ssh-rsa", "ecdsa-sha2-nistp521", "ssh-ed25519"])
async def test_a_worker_with_the_jobs_key_lets_us_in_and_runs_the_command(
    tmp_path: Path, kind: str
) -> None:
    job = Job(tmp_path, kind)
    behaviour = Behaviour(job)
    found = await against(job, behaviour)
    assert (found.outcome, found.output) == (Outcome.OK, "hello\n")
    assert found.greeting.startswith("SSH-2.0-AsyncSSH")
    assert found.local_address == "127.0.0.1"
    assert found.fingerprint == job.key.get_fingerprint()
    assert set(behaviour.users) == {"runner"}


async def test_nothing_but_the_jobs_key_is_used(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of ssh_config, agents, known hosts, certificates, GSSAPI or this machine's keys."""
    given: dict[str, object] = {}

    async def connect(**options: object) -> None:
        given.update(options)
        raise ConnectionRefusedError(111, "")

    monkeypatch.setattr(asyncssh, "connect", connect)
    async with sshd(Behaviour(job)) as port:
        assert (await attempt(Pool(job.path), port)).outcome is Outcome.CLOSED
    unused = {"config", "x509_trusted_certs", "agent_path", "client_host_keys", "client_keys"}
    assert {given[name] for name in unused | {"gss_host"}} == {None}
    assert given["known_hosts"] == ([], [], [])
    assert (given["username"], given["preferred_auth"]) == ("runner", "publickey")
    taken = given["sock"]
    assert isinstance(taken, socket.socket)
    assert taken.fileno() == -1


async def test_a_login_that_is_given_up_as_it_succeeds_leaves_no_connection(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, connect = list[asyncssh.SSHClientConnection](), asyncssh.connect

    async def and_given_up(**how: Any) -> asyncssh.SSHClientConnection:  # noqa: ANN401
        opened.append(await connect(**how))
        trying.cancel()
        return opened[0]

    monkeypatch.setattr(asyncssh, "connect", and_given_up)
    async with sshd(Behaviour(job)) as port:
        trying = asyncio.ensure_future(attempt(Pool(job.path), port))
        await asyncio.wait({trying})
        await until_in_loop(opened[0].is_closed)
    assert trying.cancelled()


async def test_servers_that_are_silent_hold_no_other_login_back(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login, "_TURN_S", 0.05)
    pool = Pool(job.path)
    async with listener(HANGS_AFTER_GREETING) as silent, sshd(Behaviour(job)) as port:
        targets = [Target("w-1", "127.0.0.1", silent, "x")] * 40
        others = [asyncio.ensure_future(pool.log_in(one, "", LIMITS)) for one in targets]
        await asyncio.sleep(0.1)
        found = await asyncio.wait_for(attempt(pool, port), GUARD)
        assert found.outcome is Outcome.OK
        assert not any(task.done() for task in others)
        for task in others:
            task.cancel()
        await asyncio.wait(others)


@pytest.mark.parametrize("public_key", [True, False])
async def test_a_server_that_lets_nobody_in_or_takes_only_passwords(
    job: Job, *, public_key: bool
) -> None:
    behaviour = Behaviour(job, authorized=job.stranger, public_key=public_key, password=True)
    found = await against(job, behaviour)
    assert found.outcome is (Outcome.KEY_REFUSED if public_key else Outcome.PASSWORD_ASKED)
    assert found.fingerprint == job.key.get_fingerprint()


@pytest.mark.parametrize(
    ("kind", "authorized"),
    [
        ("ssh-ed25519", True),
        ("ssh-ed25519", False),  # a node's own sshd
        ("ecdsa-sha2-nistp256", True),  # shown, and no protocol error
    ],
)
async def test_another_host_key_ends_before_any_command_runs(
    job: Job, kind: str, *, authorized: bool
) -> None:
    key = asyncssh.generate_private_key(kind)
    behaviour = Behaviour(job, host_key=key, authorized=None if authorized else job.stranger)
    found = await against(job, behaviour)
    assert (found.outcome, found.welcome) == (Outcome.HOST_KEY_DIFFERS, authorized)
    assert found.fingerprint == key.get_fingerprint()
    assert found.host_key.startswith(f"{kind} ")
    assert not behaviour.commands


@pytest.mark.parametrize("mode", ["accept-new", "off", "job"])
async def test_another_host_key_is_taken_where_the_user_allows_it(job: Job, mode: str) -> None:
    pinned = job.stranger.export_public_key().decode() if mode == "job" else ""
    async with sshd(Behaviour(job, host_key=job.stranger)) as port:
        pool = Pool(job.path, host_keys=HostKeys(mode), host_key=pinned)
        found = await attempt(pool, port)
    assert (found.outcome, found.output) == (Outcome.OK, "hello\n")
    assert found.fingerprint == job.stranger.get_fingerprint()


async def shown(pinned: asyncssh.SSHKey, keys: list[object]) -> asyncssh.SSHKey | None:
    """What a server with these host keys shows."""
    async with asyncssh.listen("127.0.0.1", 0, server_host_keys=keys, config=None) as server:
        return await asyncssh.get_server_host_key(
            "127.0.0.1",
            server.get_port(),
            server_host_key_algs=login.host_key_algorithms(pinned.convert_to_public()),
            config=None,
        )


@pytest.mark.parametrize("kind", ["ssh-rsa", "ecdsa-sha2-nistp384", "ssh-ed25519"])
async def test_of_several_host_keys_the_pinned_one_is_shown(kind: str) -> None:
    kinds = ("ssh-rsa", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ssh-ed25519")
    keys = {name: asyncssh.generate_private_key(name) for name in kinds}
    assert await shown(keys[kind], [*keys.values()]) == keys[kind].convert_to_public()


@pytest.mark.parametrize(
    ("problem", "outcome"),
    [
        (asyncssh.ConnectionLost("gone"), Outcome.CLOSED),
        (asyncssh.DisconnectError(asyncssh.DISC_TOO_MANY_CONNECTIONS, "full"), Outcome.CLOSED),
        (ConnectionResetError(), Outcome.CLOSED),
        (asyncssh.MACError("wrong"), Outcome.PROTOCOL),
        (asyncssh.Error(1, "new"), Outcome.PROTOCOL),
        (UnicodeDecodeError("utf-8", b"", 0, 1, ""), Outcome.PROTOCOL),
    ],
    ids=lambda item: type(item).__name__,
)
def test_what_an_error_means(problem: Exception, outcome: Outcome) -> None:
    assert outcome_of(problem) is outcome


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "can't be read"),
        (b"", "no private SSH key"),
        (b"\x00\xff", "no private SSH key"),
        (b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI w", "no private SSH key"),
    ],
)
def test_a_key_that_cannot_be_used_names_its_path(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "id_rsa"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(MpibootError) as caught:
        Login(path)
    assert caught.value.finding.check == "ssh-key"
    assert str(path) in caught.value.finding.message
    assert message in caught.value.finding.message


@pytest.mark.parametrize(
    ("attempts", "once", "tries"), [(0, 0, 1), (1, 0, 1), (3, 0, 3), (3, 9, 1)]
)
async def test_a_login_is_tried_as_often_as_the_user_says(
    job: Job, monkeypatch: pytest.MonkeyPatch, attempts: int, once: int, tries: int
) -> None:
    waited = list[float]()
    monkeypatch.setattr(asyncio, "sleep", AsyncMock(side_effect=waited.append))
    pool, port = Pool(job.path, timeouts=SshTimeouts(attempts, 30, 10, 3)), free_port()
    with pytest.raises(ConnectionError, match=f"connection refused at 127.0.0.1 port {port}"):
        await pool.log_in_again(LaunchHost("w-0", "127.0.0.1", port, "me"), once)
    assert len(waited) == tries - 1
    assert all(waited)


async def test_a_key_that_was_refused_is_not_tried_again(job: Job) -> None:
    behaviour = Behaviour(job, authorized=job.stranger)
    async with sshd(behaviour) as port:
        pool = Pool(job.path, timeouts=SshTimeouts(3, 30, 10, 3))
        with pytest.raises(ConnectionError, match="key refused at "):
            await pool.log_in_again(LaunchHost("w-0", "127.0.0.1", port, "me"))
    assert len(behaviour.users) == 1


# Commands


@pytest.mark.parametrize(
    ("command", "outcome", "message", "size"),
    [
        ("echo no shell >&2; exit 3", Outcome.COMMAND_FAILED, "exit status 3: no shell", 0),
        (f"echo noise; head -c {OUTPUT_LIMIT} /dev/zero", Outcome.OK, "", OUTPUT_LIMIT),
        ("head -c 3000000 /dev/zero >&2; echo done", Outcome.OK, "", 5),
    ],
    ids=["a failure", "a login shell's words before it", "much on stderr"],
)
async def test_what_a_command_says(
    job: Job, command: str, outcome: Outcome, message: str, size: int
) -> None:
    found = await against(job, Behaviour(job), command)
    assert (found.outcome, found.message, len(found.output)) == (outcome, message, size)


async def test_a_command_without_an_end_is_given_up(job: Job) -> None:
    async with sshd(Behaviour(job)) as port:
        found = await attempt(Pool(job.path), port, "sleep 3", LoginTimeouts(command=0.3))
    assert found.outcome is Outcome.COMMAND_FAILED
    assert found.message == "more than 0.3 s"
