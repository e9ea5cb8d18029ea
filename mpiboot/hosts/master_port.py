"""Whether the port at which ranks are to meet is free on rank 0's host, looked at after the gate.

After what an earlier launcher left has been ended: it may have listened there.
"""

from __future__ import annotations

from mpiboot.core import log
from mpiboot.core.checks import failed
from mpiboot.core.model import Finding, Worker
from mpiboot.core.settings import Settings
from mpiboot.hosts import host_shell
from mpiboot.hosts.access import Access
from mpiboot.hosts.remote_commands import RemoteCommands
from mpiboot.job.rank_env import Meeting
from mpiboot.ssh.attempt import LoginTimeouts
from mpiboot.system import programs


async def look(
    meeting: Meeting, worker: Worker | None, settings: Settings, access: Access
) -> tuple[Finding, ...]:
    """Ask rank 0's host who listens at the port; a host that does not answer is not judged.

    Args:
        meeting: the host and the port.
        worker: that host; None for this pod itself.
        settings: ``host_keys`` is read.
        access: how to log in.
    """
    command = host_shell.ask(f"listener {meeting.port}")
    if worker is None:
        output: str | None = await programs.shell(command, LoginTimeouts().command)
    else:
        output = await RemoteCommands(access, settings.host_keys).run(worker, command)
    listener = host_shell.read(output or "").listener
    if listener is None:
        log.debug("master-port", f"nobody listens at port {meeting.port} of {meeting.host}")
        return ()
    who = listener or "a process that can't be seen from this pod"
    said = f"port {meeting.port}, where ranks are to meet ({meeting.by}), is taken by {who}"
    return (failed("master-port", said, host=meeting.host),)
