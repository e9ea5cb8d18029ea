"""The process that passed a gate and holds the connections: ``pool.py CONFIG-AS-JSON LOGINS``.

It logs in as the gate does, so many times, and then serves the agents of the launch folder.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from mpiboot.core.facts import Worker
from mpiboot.core.launch_spec import EVENTS
from mpiboot.core.model import read_record
from mpiboot.ssh.agents import AgentRequests
from mpiboot.ssh.attempt import LoginTimeouts, Outcome, Target
from mpiboot.ssh.config import LaunchHost, SshTimeouts
from mpiboot.ssh.pool import Pool


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """The hosts of a pool, the path of the key, and the launch folder."""

    hosts: tuple[LaunchHost, ...]
    key: str
    timeouts: SshTimeouts
    folder: str

    def pool(self) -> Pool:
        made = Pool(Path(self.key), timeouts=self.timeouts)
        made.know(self.hosts)
        return made


@functools.cache
def agents_in(folder: Path) -> AgentRequests:
    return AgentRequests(folder, ())


@asynccontextmanager
async def pool_of(config: PoolConfig, logins: int = 0) -> AsyncIterator[Pool]:
    """A pool whose gate has logged in to the first host so many times; its connections end here."""
    pool, host = config.pool(), config.hosts[0]
    target = Target(host.name, host.address, host.port, host.user)
    try:
        for _ in range(logins):
            done = await pool.log_in(target, "true", LoginTimeouts())
            assert done.outcome is Outcome.OK, done
        pool.know(config.hosts)
        yield pool
    finally:
        await pool.close()


@asynccontextmanager
async def reaching(key: Path, *workers: Worker) -> AsyncIterator[Pool]:
    """A pool that knows these workers; its connections end here."""
    pool = Pool(key)
    pool.know(LaunchHost(one.host.name, one.address, one.port, one.user) for one in workers)
    try:
        yield pool
    finally:
        await pool.close()


async def main(config: PoolConfig, logins: int) -> None:
    requests = AgentRequests(Path(config.folder), [host.name for host in config.hosts])
    # Among the agents' own events, as the launcher has them.
    events = os.open(f"{config.folder}/{EVENTS}", os.O_RDWR)

    def report(line: str) -> None:
        os.write(events, f"{line}\n".encode())

    async with pool_of(config, logins) as pool:
        pool.report = report
        requests.serve(pool)
        print("serves", flush=True)  # noqa: T201 - whoever started this waits for it
        await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    asyncio.run(main(read_record(PoolConfig, json.loads(sys.argv[1])), int(sys.argv[2])))
