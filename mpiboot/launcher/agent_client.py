"""Which SSH client a launch's agents use, and the gate's logins that it keeps for them."""

from __future__ import annotations

from mpiboot.core.choices import Switch
from mpiboot.core.model import Decision, Mpi, SshKind
from mpiboot.job import agent_variables
from mpiboot.job.dialects import DIALECTS
from mpiboot.job.user_line import UserLine
from mpiboot.launcher.setup import LauncherPod
from mpiboot.ssh import client_start
from mpiboot.ssh import config as sshconfig
from mpiboot.ssh.client_start import ConnectionPool
from mpiboot.system import executables, open_files


def choose(launcher: LauncherPod, hosts: int, mpi: Mpi, line: UserLine) -> Decision:
    """Choose it; the plan says why.

    Args:
        launcher: this pod.
        hosts: how many the hostfile has.
        mpi: whose mpirun will run.
        line: the user's.
    """
    settings, environ = launcher.resolved.settings, launcher.environ
    ssh = executables.find("ssh", environ.get("PATH", "")) or ""
    row = DIALECTS.get(mpi.family)
    stays = settings.supervise is Switch.ON and row is not None
    only_ssh = client_start.short_of_files(hosts, open_files.most())
    if executables.is_script(ssh):
        only_ssh = "a script, which may do what only it knows"
    if row is not None:
        if row.agent_sockets:
            only_ssh = (
                f"{row.title} gives its agents sockets, which the embedded client serves at a cost"
            )
        asked = agent_variables.only_by_ssh(row, line, environ, client_start.agent_words())
        only_ssh = f"it does what {asked} asks for" if asked else only_ssh
    return launcher.chosen or sshconfig.client(
        settings.ssh_client,
        launcher.resolved.given["ssh_client"].source,
        ssh,
        launcher.identity,
        hosts if stays else 0,
        only_ssh,
    )


def keep(launcher: LauncherPod, client: Decision) -> ConnectionPool | None:
    """Keep the gate's logins where mpiboot's own client stays beside mpirun."""
    settings = launcher.resolved.settings
    if client.value != SshKind.EMBEDDED or settings.supervise is not Switch.ON:
        return None
    return ConnectionPool(sshconfig.patience(settings.ssh_keepalive, sshconfig.UserArgs()))
