"""With what mpiboot itself logs in: the job's key and nothing else of this machine's or user's."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import asyncssh
import pytest

from mpiboot.ssh import attempt, login
from mpiboot.ssh.attempt import LoginTimeouts, Outcome, Target
from mpiboot.ssh.config import LaunchHost, SshTimeouts
from mpiboot.ssh.pool import Pool
from tests.fakes.sshd import Behaviour, Job, sshd

# None of ssh_config, agents, known hosts, certificates, GSSAPI or this machine's own host keys.
NOTHING_ELSE: dict[str, object] = {
    "config": None,
    "known_hosts": ([], [], []),
    "x509_trusted_certs": None,
    "agent_path": None,
    "client_host_keys": None,
    "gss_host": None,
    "compression_algs": None,
}


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What asyncssh was asked for; it answers that nobody listens."""
    seen: dict[str, object] = {}

    async def connect(*where: object, **options: object) -> None:
        seen.update(options, where=where)
        raise ConnectionRefusedError(111, "")

    monkeypatch.setattr(asyncssh, "connect", connect)
    return seen


async def log_in(behaviour: Behaviour) -> attempt.Attempt:
    async with sshd(behaviour) as port:
        pool = Pool(behaviour.job.path, timeouts=SshTimeouts(1, 33, 11, 4))
        return await pool.log_in(Target("w-0", "127.0.0.1", port, "me"), "true", LoginTimeouts())


async def test_the_gates_login(job: Job, asked: dict[str, object]) -> None:
    assert (await log_in(Behaviour(job))).outcome is Outcome.CLOSED
    assert asked.items() >= NOTHING_ELSE.items()
    assert asked["username"] == "me"
    # Its key is offered by hand, so that it is known whether the server has asked for one.
    assert asked["client_keys"] is None
    # The others show what a server that takes no keys would have.
    assert asked["preferred_auth"] == "publickey,keyboard-interactive,password"
    assert asked["login_timeout"] == 0  # the whole of it has a limit
    assert (asked["keepalive_interval"], asked["keepalive_count_max"]) == (11, 4)
    wanted = asked["server_host_key_algs"]
    assert isinstance(wanted, list)
    assert len(wanted) == len(set(wanted)) > 5
    # Before the others: a server with another key is to show it, and not to say that there is
    # nothing in common.
    assert wanted[0] == "ssh-ed25519"
    taken = asked["sock"]
    assert isinstance(taken, socket.socket)
    assert taken.fileno() == -1


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


async def test_a_plain_host_key_is_shown_rather_than_its_certificate(job: Job) -> None:
    key = asyncssh.generate_private_key("ecdsa-sha2-nistp256")
    certificate = job.stranger.generate_host_certificate(key, "w-0")
    assert await shown(job.key, [(key, certificate)]) == key.convert_to_public()


@pytest.mark.parametrize(
    ("outcome", "attempts", "once", "tries"),
    [
        *((Outcome.REFUSED, tried, 0, tried or 1) for tried in (0, 1, 3)),
        (Outcome.REFUSED, 3, 9, 1),
        (Outcome.KEY_REFUSED, 3, 0, 1),  # not again
    ],
)
async def test_a_login_is_tried_as_often_as_the_user_says(
    job: Job,
    monkeypatch: pytest.MonkeyPatch,
    outcome: Outcome,
    attempts: int,
    once: int,
    tries: int,
) -> None:
    made, waited = list[Target](), list[float]()

    async def failing(target: Target, _: LoginTimeouts) -> attempt.Attempt:
        made.append(target)
        return attempt.Attempt(target, outcome, "no")

    async def at_once(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(attempt, "connect", failing)
    monkeypatch.setattr(asyncio, "sleep", at_once)
    pool = Pool(job.path, timeouts=SshTimeouts(attempts, 30, 10, 3))
    with pytest.raises(ConnectionError, match=f"{outcome.value} at 10.0.0.1 port 22: no"):
        await pool.log_in_again(LaunchHost("w-0", "10.0.0.1", 22, "me"), once)
    assert made == [Target("w-0", "10.0.0.1", 22, "me")] * tries
    assert len(waited) == tries - 1
    assert all(waited)
