"""The process that passed a gate and holds the connections: ``pool.py CONFIG-AS-JSON LOGINS``.

It logs in as the gate does, so many times, and then serves the agents of the launch folder.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from mpiboot.ssh import attempt as tcp
from mpiboot.ssh.attempt import Attempt, LoginTimeouts, Outcome, Target
from mpiboot.ssh.connections import Connections, PoolConfig
from mpiboot.ssh.login import Login
from mpiboot.ssh.pool import AgentRequests, Pool


@asynccontextmanager
async def pool_of(config: PoolConfig, logins: int = 0) -> AsyncIterator[Pool]:
    """A pool whose gate has logged in to the first host so many times; its connections end here."""
    connections, host = Connections(config.patience), config.hosts[0]
    login = Login(Path(config.key), kept=connections)
    target = Target(host.name, host.address, host.port, host.user)
    first = []
    try:
        for _ in range(logins):
            opened = await tcp.connect(target, LoginTimeouts())
            assert not isinstance(opened, Attempt)
            done = await login.log_in(opened, "true")
            assert done.outcome is Outcome.OK, done
        first = connections.all(host)
        yield Pool(config, connections)
    finally:
        for connection in {*first, *connections.all(host)}:
            connection.abort()
            await connection.wait_closed()


async def main(config: PoolConfig, logins: int) -> None:
    requests = AgentRequests(Path(config.folder), [host.name for host in config.hosts])
    async with pool_of(config, logins) as pool:
        requests.serve(pool)
        print("serves", flush=True)  # noqa: T201 - whoever started this waits for it
        await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    asyncio.run(main(PoolConfig.from_json(sys.argv[1]), int(sys.argv[2])))
