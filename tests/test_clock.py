"""A clock that jumps, as by NTP or a resumed machine; pyproject.toml bans what reads it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from mpiboot.core.checks import MpibootError
from mpiboot.core.facts import Host
from mpiboot.core.settings import Settings
from mpiboot.hosts import gate
from mpiboot.hosts.dns import Resolver
from mpiboot.hosts.pipeline import SshAccess
from mpiboot.ssh.pool import Pool
from tests.fakes.nameserver import NXDOMAIN, Nameserver, resolv_conf, serve
from tests.fakes.sshd import Behaviour, Job, sshd


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
async def test_hosts_are_waited_for_through_a_jump_and_to_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    """The DNS library does read it: a question is asked again where its limit went wrong."""
    real, offset, job, server = time.time, [0.0], Job(tmp_path), Nameserver({"w-0.x": [NXDOMAIN]})
    monkeypatch.setattr(time, "time", lambda: real() + offset[0])
    records: dict[str, tuple[str, ...]] = {}
    async with serve(server) as asked, sshd(Behaviour(job), "127.0.0.2") as port:
        resolver = Resolver(
            resolv_conf(tmp_path),
            system=lambda name: records.get(name, ()),
            port=asked,
            families=("A",),
        )
        pool = Pool(job.path)
        access = SshAccess("runner", pool, "launcher", ports=(port,), resolver=resolver)

        def wait(timeout: float) -> asyncio.Task[gate.GateResult]:
            settings = Settings(timeout=timeout)
            return asyncio.ensure_future(gate.wait((Host("w-0.x"),), settings, access))

        waiting = wait(60)
        await asyncio.sleep(0.3)
        offset[0] = jump
        await asyncio.sleep(0.3)
        assert not waiting.done()
        records["w-0.x"] = ("127.0.0.2",)
        server.scripts["w-0.x"] = ["127.0.0.2"]
        result = await asyncio.wait_for(waiting, 45)
        assert [worker.host.name for worker in result.workers] == ["w-0.x"]
        records.clear()
        server.scripts["w-0.x"] = [NXDOMAIN]
        before = asyncio.get_running_loop().time()
        waiting = wait(1.0)
        await asyncio.sleep(0.2)
        offset[0] = 0.0
        with pytest.raises(MpibootError) as caught:
            await asyncio.wait_for(waiting, 45)
        assert caught.value.code == 68
        assert asyncio.get_running_loop().time() - before >= 1.0
        await access.pool.close()
