"""What a launcher's doctor queries hosts for, over real SSH servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpiboot.core.facts import Host
from mpiboot.core.settings import Settings
from mpiboot.doctor import job
from mpiboot.hosts import gate
from mpiboot.hosts.access import SshAccess
from mpiboot.hosts.dns import DnsAnswer, Resolver
from mpiboot.hosts.pipeline import PipelineOptions
from mpiboot.ssh.attempt import LoginTimeouts
from mpiboot.ssh.pool import Pool
from tests.fakes.sshd import Behaviour, Job, sshd

# Server and client are one process here: on a busy machine 64 logins at once take long.
PATIENT = LoginTimeouts(60.0, 60.0, 200.0, 200.0)


class _Names(Resolver):
    """Each host's name leads to the same server."""

    async def ask(self, name: str) -> DnsAnswer:
        return DnsAnswer(name, ("127.0.0.1",))


async def test_64_hosts_are_asked_in_one_session_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpiboot.network.pod.is_local", lambda _: False)
    behaviour = Behaviour(Job(tmp_path))
    listed = [Host(f"w-{number}") for number in range(64)]
    async with sshd(behaviour) as port:
        to = SshAccess("runner", Pool(behaviour.job.path), "launcher", ports=(port,))
        passed = await gate.probe_once(
            listed,
            Settings(),
            to,
            PipelineOptions(PATIENT),
            resolver=_Names(),
            doctor=job.QUERIES,
        )
        await to.pool.close()
    assert (len(passed.workers), passed.findings) == (64, ())
    assert (behaviour.logins, len(behaviour.commands)) == (64, 64)
