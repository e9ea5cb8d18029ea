"""A worker's look at its own SSH server: one login, as a launcher would do it.

It goes over the address that the server listens on, with the job's key and the checks of the
gate; nothing is started but the gate's one command.
"""

from __future__ import annotations

import dataclasses

from mpiboot.core.model import Host, Worker
from mpiboot.core.settings import Settings
from mpiboot.hosts import progress
from mpiboot.hosts.access import Access
from mpiboot.hosts.dns import Resolver
from mpiboot.hosts.pipeline import Pipelines


async def look(address: str, port: int, settings: Settings, access: Access) -> Worker:
    """Log in once to a server of this pod.

    Raises:
        MpibootError: what a launcher's gate would say of this host.
    """
    pipelines = Pipelines(
        dataclasses.replace(settings, ssh_port=port),
        access,
        Resolver(),
        changed=lambda: None,
        once=True,
    )
    await pipelines.load()
    (state,) = progress.states((Host(address),))
    return await pipelines.reach(state, (address,))
