from __future__ import annotations

import asyncio
import errno
import inspect
import os
import resource
import socket
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import asyncssh
import pytest

from mpiboot.core.checks import MpibootError
from mpiboot.core.setting_types import HostKeys
from mpiboot.ssh import attempt as tcp
from mpiboot.ssh.attempt import Attempt, LoginTimeouts, Outcome, Target
from mpiboot.ssh.config import SshTimeouts
from mpiboot.ssh.login import ERRORS, Login, outcome_of
from mpiboot.ssh.pool import Pool
from mpiboot.system.programs import OUTPUT_LIMIT
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
    without_ipv6,
)
from tests.fakes.worker import free_port
from tests.waiting import until_in_loop

# Guards: there is one try, and server and client are one process on a machine that may be busy.
LIMITS = LoginTimeouts(connect=60.0, greeting=60.0, login=60.0, command=60.0)


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


async def test_a_worker_with_the_jobs_key_lets_us_in_and_runs_the_command(job: Job) -> None:
    behaviour = Behaviour(job)
    probe = await against(job, behaviour)
    assert (probe.outcome, probe.output) == (Outcome.OK, "hello\n")
    assert probe.greeting.startswith("SSH-2.0-AsyncSSH")
    assert probe.local_address == "127.0.0.1"
    assert probe.fingerprint == job.key.get_fingerprint()
    assert set(behaviour.users) == {"runner"}


@pytest.mark.parametrize("kind", ["ssh-rsa", "ecdsa-sha2-nistp521", "ssh-ed25519"])
async def test_every_kind_of_key_that_an_operator_makes_works(tmp_path: Path, kind: str) -> None:
    job = Job(tmp_path, kind)
    assert (await against(job, Behaviour(job))).outcome is Outcome.OK


async def test_nobody_listening_is_refused(job: Job) -> None:
    assert (await attempt(Pool(job.path), free_port())).outcome is Outcome.REFUSED


async def test_no_answer_at_all_is_a_timeout(job: Job) -> None:
    # A listener whose queue is full drops what comes, as a network policy does.
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        limits = LoginTimeouts(connect=0.3)
        target = Target("w-0", "127.0.0.1", full.getsockname()[1], "runner")
        probe = await tcp.connect(target, limits)
    assert isinstance(probe, Attempt)
    assert probe.outcome is Outcome.TIMEOUT


@pytest.mark.parametrize(
    ("address", "outcomes"),
    [
        ("224.0.0.1", {Outcome.UNREACHABLE, Outcome.TIMEOUT}),  # multicast has no TCP
        # The gate has resolved the name; a resolver that hangs would hold every other host.
        ("localhost", {Outcome.NO_SOCKET}),
        ("fe80::1%nolink9", {Outcome.NO_SOCKET}),
    ],
)
async def test_an_address_that_leads_nowhere(address: str, outcomes: set[Outcome]) -> None:
    probe = await tcp.connect(Target("w-0", address, 22, "x"), LIMITS)
    assert isinstance(probe, Attempt)
    assert probe.outcome in outcomes


async def test_without_a_descriptor_left_the_attempt_fails_with_that_reason() -> None:
    lowest = os.dup(0)
    os.close(lowest)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = Target("w-0", "127.0.0.1", 22, "x")
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
        probe = await tcp.connect(target, LIMITS)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert probe == Attempt(target, Outcome.NO_SOCKET, message="too many open files")


async def test_a_kernel_without_ipv6_is_a_reason_like_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_ipv6(monkeypatch)
    probe = await tcp.connect(Target("w-0", "fd00::1", 22, "x"), LIMITS)
    assert isinstance(probe, Attempt)
    assert (probe.outcome, probe.message) == (
        Outcome.NO_SOCKET,
        os.strerror(errno.EAFNOSUPPORT).lower(),
    )


@pytest.mark.parametrize(
    ("talk", "outcome", "message"),
    [
        (SILENT, Outcome.SILENT, "within 0.3 s"),
        (CLOSING, Outcome.CLOSED, "before its greeting"),
        (HTTP, Outcome.NOT_SSH, "HTTP/1.1 400"),
        (saying(b"\x16\x03\x01\x00"), Outcome.NOT_SSH, "\\x16\\x03"),
        (saying(b"x" * 300), Outcome.NOT_SSH, "xxxx"),
        (CLOSES_AFTER_GREETING, Outcome.CLOSED, ""),
    ],
)
async def test_what_is_no_ssh_server_is_told_apart(
    job: Job, talk: Talk, outcome: Outcome, message: str
) -> None:
    # What says nothing, or no line that ends, is waited for until the limit.
    seconds = {Outcome.SILENT: 0.3, Outcome.NOT_SSH: 5.0}.get(outcome, LIMITS.greeting)
    limits = replace(LIMITS, greeting=seconds)
    async with listener(talk) as port:
        probe = await attempt(Pool(job.path), port, limits=limits)
    assert probe.outcome is outcome
    assert message in probe.message


@pytest.mark.parametrize(
    "talk",
    [
        saying(b"SSH-2.0-Stuck_1.0\r\n", pause_after=5),
        saying(b"Welcome\r\nSSH-2.0-Stuck_1.0\r\n", pause_after=9),
    ],
)
async def test_a_greeting_in_parts_or_behind_other_lines_is_a_greeting(talk: Talk) -> None:
    async with listener(talk) as port:
        opened = await tcp.connect(Target("w-0", "127.0.0.1", port, "x"), LIMITS)
    assert isinstance(opened, tcp.OpenConnection)
    assert opened.greeting == "SSH-2.0-Stuck_1.0"
    opened.sock.close()


async def test_a_server_that_hangs_after_its_greeting_is_given_up(job: Job) -> None:
    async with listener(HANGS_AFTER_GREETING) as port:
        probe = await attempt(Pool(job.path), port, limits=LoginTimeouts(login=0.3))
    assert probe.outcome is Outcome.SLOW
    assert probe.stalled  # it greets and says no more: as where large packets get lost
    assert probe.greeting == "SSH-2.0-Stuck_1.0"


async def test_a_login_that_is_given_up_before_it_begins_leaves_no_socket(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[socket.socket] = []
    loop = asyncio.get_running_loop()
    create_connection = loop.create_connection

    async def cancelled(factory: Callable[[], asyncio.Protocol], *, sock: socket.socket) -> object:
        given.append(sock)
        trying.cancel()
        return await create_connection(factory, sock=sock)

    monkeypatch.setattr(loop, "create_connection", cancelled)
    async with sshd(Behaviour(job)) as port:
        trying = asyncio.ensure_future(attempt(Pool(job.path), port))
        await asyncio.wait({trying})
        await until_in_loop(lambda: [sock.fileno() for sock in given] == [-1])
    assert trying.cancelled()


async def test_a_key_that_is_not_authorized_is_refused(job: Job) -> None:
    behaviour = Behaviour(job, authorized=job.stranger, password=True, banner="No  strangers\n")
    probe = await against(job, behaviour)
    assert probe.outcome is Outcome.KEY_REFUSED
    assert "No strangers" in probe.message
    assert probe.fingerprint == job.key.get_fingerprint()


async def test_a_server_that_takes_only_passwords_is_told_apart(job: Job) -> None:
    probe = await against(job, Behaviour(job, public_key=False, password=True))
    assert probe.outcome is Outcome.PASSWORD_ASKED


@pytest.mark.parametrize(
    ("kind", "authorized"),
    [
        ("ssh-ed25519", True),
        ("ssh-ed25519", False),  # a node's own sshd
        ("ecdsa-sha2-nistp256", True),  # shown, and no protocol error
    ],
)
async def test_another_host_key_ends_before_any_command_runs(
    job: Job,
    kind: str,
    authorized: bool,  # noqa: FBT001 - a row of the table
) -> None:
    key = asyncssh.generate_private_key(kind)
    behaviour = Behaviour(job, host_key=key, authorized=None if authorized else job.stranger)
    probe = await against(job, behaviour)
    assert (probe.outcome, probe.welcome) == (Outcome.HOST_KEY_DIFFERS, authorized)
    assert probe.fingerprint == key.get_fingerprint()
    assert probe.host_key.startswith(f"{kind} ")
    assert not behaviour.commands


@pytest.mark.parametrize("mode", ["accept-new", "off"])
async def test_a_new_host_key_is_taken_where_the_user_allows_it(job: Job, mode: str) -> None:
    async with sshd(Behaviour(job, host_key=job.stranger)) as port:
        probe = await attempt(Pool(job.path, host_keys=HostKeys(mode)), port)
    assert (probe.outcome, probe.output) == (Outcome.OK, "hello\n")
    assert probe.fingerprint == job.stranger.get_fingerprint()


async def test_another_key_can_be_pinned(job: Job) -> None:
    line = job.stranger.export_public_key().decode()
    async with sshd(Behaviour(job, host_key=job.stranger)) as port:
        probe = await attempt(Pool(job.path, host_key=line), port)
    assert probe.outcome is Outcome.OK


@pytest.mark.parametrize(
    ("command", "outcome", "message", "size"),
    [
        (
            "echo no shell here >&2; exit 3",
            Outcome.COMMAND_FAILED,
            "exit status 3: no shell here",
            0,
        ),
        (f"echo noise; head -c {OUTPUT_LIMIT} /dev/zero", Outcome.OK, "", OUTPUT_LIMIT),
        ("head -c 3000000 /dev/zero >&2; echo done", Outcome.OK, "", 5),
    ],
    ids=["a failure", "a login shell's words before it", "much on stderr"],
)
async def test_what_a_command_says(
    job: Job, command: str, outcome: Outcome, message: str, size: int
) -> None:
    probe = await against(job, Behaviour(job), command)
    assert (probe.outcome, probe.message, len(probe.output)) == (outcome, message, size)


async def test_a_command_without_an_end_is_given_up(job: Job) -> None:
    async with sshd(Behaviour(job)) as port:
        probe = await attempt(Pool(job.path), port, "sleep 3", LoginTimeouts(command=0.3))
    assert probe.outcome is Outcome.COMMAND_FAILED
    assert probe.message == "more than 0.3 s, now trying with 0.6 s"


def test_every_error_of_asyncssh_has_a_row_of_its_own_or_of_its_parent() -> None:
    kinds = [
        kind
        for module in (asyncssh, asyncssh.misc, asyncssh.process, asyncssh.sftp)
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, asyncssh.Error) and kind is not asyncssh.Error
    ]
    assert len(kinds) > 20
    for kind in kinds:
        known = next(item for item in kind.__mro__ if item in ERRORS)
        assert known not in (asyncssh.Error, Exception, OSError), kind


def test_an_unknown_error_is_still_an_outcome() -> None:
    class NewError(asyncssh.Error):
        pass

    assert outcome_of(NewError(1, "new")) is Outcome.PROTOCOL
    assert outcome_of(ConnectionResetError()) is Outcome.CLOSED
    assert outcome_of(UnicodeDecodeError("utf-8", b"", 0, 1, "")) is Outcome.PROTOCOL


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
        Login(path, timeouts=SshTimeouts(1, 1, 1, 1))
    assert caught.value.finding.check == "ssh-key"
    assert str(path) in caught.value.finding.message
    assert message in caught.value.finding.message


@pytest.mark.parametrize("form", [(), ("-m", "PEM")])
def test_a_key_with_a_passphrase_says_so(tmp_path: Path, form: tuple[str, ...]) -> None:
    path = tmp_path / "locked"
    make = ["ssh-keygen", "-q", "-t", "rsa", "-b", "1024", "-N", "secret", "-f", str(path), *form]
    subprocess.run(make, check=True)
    with pytest.raises(MpibootError, match="passphrase"):
        Login(path, timeouts=SshTimeouts(1, 1, 1, 1))


async def test_an_attempt_that_is_given_up_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[socket.socket] = []
    new = socket.socket

    def noted(*given: int) -> socket.socket:
        made.append(new(*given))
        return made[-1]

    with new() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        target = Target("w-0", "127.0.0.1", server.getsockname()[1], "x")
        with monkeypatch.context() as changed:
            changed.setattr(tcp, "socket", SimpleNamespace(**{**vars(socket), "socket": noted}))
            opening = asyncio.ensure_future(tcp.connect(target, LoginTimeouts()))
            await asyncio.sleep(0)
        assert made[0].fileno() >= 0
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
    assert made[0].fileno() == -1
