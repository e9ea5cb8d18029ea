"""Who listens where ranks are to meet, asked of a real host, and of this pod."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from mpiboot.core.checks import BY_REFERENCE, ExitCode
from mpiboot.core.facts import Host, Worker
from mpiboot.core.model import Finding, Level
from mpiboot.hosts import remote_commands
from mpiboot.job.program_words import Rendezvous
from tests.fakes.pool import reaching
from tests.fakes.sshd import Behaviour, Job, sshd


async def looked(folder: Path, port: int, *, here: bool) -> tuple[Finding, ...]:
    job = Job(folder)
    worker = Worker(Host("w-0"), "127.0.0.2", 22, "root", "127.0.0.1", None)
    meeting = Rendezvous("w-0", "MASTER_PORT", port)
    async with (
        sshd(Behaviour(job), "127.0.0.2") as ssh,
        reaching(job.path, replace(worker, port=ssh)) as pool,
    ):
        return await remote_commands.look_at_master_port(meeting, None if here else worker, pool)


@pytest.mark.parametrize("here", [True, False])
async def test_a_port_that_is_taken_names_its_process(tmp_path: Path, *, here: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (found,) = await looked(tmp_path, port, here=here)
    assert (found.check, found.level, found.host) == ("master-port", Level.FAIL, "w-0")
    assert BY_REFERENCE[found.check].code == ExitCode.CONFLICT
    assert found.message.startswith(f"port {port}, where ranks are to meet (MASTER_PORT), is")
    assert f"process {os.getpid()} (" in found.message


@pytest.mark.parametrize("here", [True, False])
async def test_a_free_port_is_no_finding(tmp_path: Path, *, here: bool) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        assert await looked(tmp_path, held.getsockname()[1], here=here) == ()


async def test_a_host_that_does_not_answer_is_not_judged(tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        gone = Worker(Host("w-0"), "127.0.0.1", held.getsockname()[1], "root", "", None)
        meeting = Rendezvous("w-0", "MASTER_PORT", 29500)
        async with reaching(Job(tmp_path).path, gone) as pool:
            assert await remote_commands.look_at_master_port(meeting, gone, pool) == ()
