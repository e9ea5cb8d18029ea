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
from mpiboot.ssh.pool import HostLogins
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
        target = Target("w-0", "127.0.0.1", port, "me")
        opened = await attempt.connect(target, LoginTimeouts())
        assert isinstance(opened, attempt.OpenConnection)
        known = login.Login(behaviour.job.path)
        return await known.log_in(opened, "true")


async def test_the_gates_login(job: Job, asked: dict[str, object]) -> None:
    assert (await log_in(Behaviour(job))).outcome is Outcome.CLOSED
    assert asked.items() >= NOTHING_ELSE.items()
    assert asked["username"] == "me"
    # Its key is offered by hand, so that it is known whether the server has asked for one.
    assert asked["client_keys"] is None
    # The others show what a server that takes no keys would have.
    assert asked["preferred_auth"] == "publickey,keyboard-interactive,password"
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


@pytest.mark.parametrize("pinned", [True, False])
async def test_the_pools_login(
    job: Job,
    asked: dict[str, object],
    pinned: bool,  # noqa: FBT001
) -> None:
    line = job.stranger.export_public_key().decode() if pinned else ""
    host = LaunchHost("w-0", "10.0.0.1", 2222, "me", line)
    patience = SshTimeouts(attempts=1, timeout=33, interval=11, probes=4)
    with pytest.raises(ConnectionRefusedError):
        await HostLogins(str(job.path), patience).log_in(host)
    trusted: object = ([job.stranger.convert_to_public()], [], []) if pinned else None
    assert asked.items() >= {**NOTHING_ELSE, "known_hosts": trusted}.items()
    assert (asked["where"], asked["username"]) == (("10.0.0.1", 2222), "me")
    assert asked["client_keys"] == [job.key]
    assert asked["preferred_auth"] == "publickey"
    assert asked["login_timeout"] == 0  # the whole of it has a limit
    assert (asked["keepalive_interval"], asked["keepalive_count_max"]) == (11, 4)
    wanted = asked["server_host_key_algs"]
    assert isinstance(wanted, list)
    assert len(wanted) == len(set(wanted)) > 5
    # Before the others: a server with another key is to show it, and not to say that there is
    # nothing in common.
    assert wanted[0] == ("ssh-ed25519" if pinned else "rsa-sha2-256")


@pytest.mark.parametrize(
    ("why", "attempts", "once", "tries"),
    [
        *((ConnectionRefusedError(111, ""), tried, 0, tried or 1) for tried in (0, 1, 3)),
        (ConnectionRefusedError(111, ""), 3, 9, 1),
        (socket.gaierror(-2, "Name unknown"), 1, 0, 1),
        (asyncssh.PermissionDenied("no"), 3, 0, 1),  # not again
    ],
)
async def test_a_login_is_tried_as_often_as_the_user_says(
    job: Job, monkeypatch: pytest.MonkeyPatch, why: Exception, attempts: int, once: int, tries: int
) -> None:
    made, waited = list[int](), list[float]()

    async def refused(*_: object, **__: object) -> None:
        made.append(1)
        raise why

    async def at_once(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(asyncssh, "connect", refused)
    monkeypatch.setattr(asyncio, "sleep", at_once)
    known = HostLogins(str(job.path), SshTimeouts(attempts, 30, 10, 3))
    with pytest.raises(type(why), match=why.args[-1] or "port 22: Connection refused"):
        await known.log_in(LaunchHost("w-0", "10.0.0.1", 22, "me", ""), once)
    assert len(made) == tries
    assert len(waited) == tries - 1
    assert all(waited)
