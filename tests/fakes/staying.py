"""The process that passed a gate and stays as the SSH client: ``staying.py FOLDER HOSTS-AS-JSON``.

It logs in as the gate does, and then serves the launch agents of a launch folder.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from mpiboot.ssh import attempt as tcp
from mpiboot.ssh.attempt import Attempt, LoginTimeouts, Outcome, Target
from mpiboot.ssh.client import StayingClient
from mpiboot.ssh.client_start import ClientConfig, ConnectionPool
from mpiboot.ssh.config import LaunchHost, SshTimeouts
from mpiboot.ssh.login import Login


async def main(folder: Path, config: ClientConfig) -> None:
    kept = ConnectionPool(SshTimeouts(3, 30, 10, 3))
    login = Login(Path(config.key), kept=kept)

    async def one(host: LaunchHost) -> None:
        target = Target(host.name, host.address, host.port, host.user)
        opened = await tcp.connect(target, LoginTimeouts())
        assert not isinstance(opened, Attempt)
        done = await login.log_in(target, opened.sock, opened.greeting, "true")
        assert done.outcome is Outcome.OK, done

    await asyncio.gather(*map(one, config.hosts))
    client = StayingClient(folder, config, kept)
    print("serves", flush=True)  # noqa: T201 - whoever started this waits for it
    await client.serve()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), ClientConfig.from_json(sys.argv[2])))
