"""A worker's look at its own server: one login, with what a launcher's gate would say."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpiboot.core.checks import MpibootError
from mpiboot.core.settings import Settings
from mpiboot.doctor.job import log_in_once
from mpiboot.hosts.access import SshAccess
from tests.fakes.sshd import Behaviour, Job, sshd


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


async def test_a_server_that_lets_the_jobs_key_in_is_well(job: Job) -> None:
    behaviour = Behaviour(job)
    access = SshAccess("runner", job.path, "w-1", ports=(1,))  # the one that is given counts
    async with sshd(behaviour) as port:
        found = await log_in_once("127.0.0.1", port, Settings(ssh_port=2), access)
    assert (found.host.name, found.address, found.port) == ("127.0.0.1", "127.0.0.1", port)
    assert (behaviour.logins, behaviour.users) == (1, ["runner"])
    assert len(behaviour.commands) == 1


async def test_a_server_that_refuses_the_key_is_told_at_once(job: Job) -> None:
    behaviour = Behaviour(job, authorized=job.stranger)
    async with sshd(behaviour) as port:
        with pytest.raises(MpibootError) as caught:
            await log_in_once(
                "127.0.0.1", port, Settings(timeout=1e6), SshAccess("runner", job.path, "w-1")
            )
    assert caught.value.finding.check == "ssh-denied"
    assert behaviour.logins == 0


async def test_where_nobody_listens_it_is_told_at_once(job: Job) -> None:
    with pytest.raises(MpibootError) as caught:
        await log_in_once("127.0.0.1", 1, Settings(), SshAccess("runner", job.path, "w-1"))
    assert caught.value.finding.host == "127.0.0.1"
    assert "refused" in caught.value.finding.message
