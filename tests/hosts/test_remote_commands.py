"""Commands on workers that have passed the gate."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from mpiboot.core.facts import Host, Worker
from mpiboot.core.setting_types import HostKeys
from mpiboot.hosts import remote_commands
from mpiboot.hosts.access import PodAccess, SshAccess
from mpiboot.hosts.remote_commands import RemoteCommands
from mpiboot.ssh import attempt as tcp
from mpiboot.ssh import login
from mpiboot.ssh.attempt import Attempt, LoginTimeouts, Outcome, Target


async def test_commands_have_the_limits_and_the_key_of_the_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client is made once, at the first command."""
    given: list[tuple[object, object]] = []
    limits = LoginTimeouts(command=3.0)
    access = SshAccess("root", tmp_path / "key", "launcher", host_key="ssh-ed25519 PINNED")

    class Noted:
        def __init__(self, *args: object, **named: object) -> None:
            given.append((args, named))

    monkeypatch.setattr(login, "Login", Noted)
    remote = RemoteCommands(access, HostKeys.OFF, limits)
    assert given == []
    assert remote._load() is remote._load()
    named = {"host_key": "ssh-ed25519 PINNED", "mode": HostKeys.OFF, "limits": limits}
    named |= {"client": None, "kept": None}
    assert given == [((tmp_path / "key",), named)]
    made: list[tuple[object, object]] = []
    monkeypatch.setattr(
        remote_commands, "Kubectl", lambda *args, **named: made.append((args, named))
    )
    pods = PodAccess("/opt/kubectl", "jobs")
    RemoteCommands(replace(access, pods=pods), HostKeys.JOB, limits)
    assert made == [((pods,), {"limit": 3.0})]


async def test_thirty_two_workers_are_asked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, asked = asyncio.Event(), list[Target]()

    async def connect(target: Target, _: LoginTimeouts) -> Attempt:
        asked.append(target)
        await release.wait()
        return Attempt(target, Outcome.REFUSED)

    monkeypatch.setattr(tcp, "connect", connect)
    remote = RemoteCommands(SshAccess("root", tmp_path / "key", "launcher"), HostKeys.JOB)
    one = Worker(Host("w-0"), "192.0.2.7", 2222, "mpi", "", None)
    runs = [asyncio.ensure_future(remote.run(one, "true")) for _ in range(40)]
    for _ in range(1000):  # turns of the loop
        await asyncio.sleep(0)
    assert asked == [Target("w-0", "192.0.2.7", 2222, "mpi")] * 32
    release.set()
    assert await asyncio.gather(*runs) == [None] * 40
