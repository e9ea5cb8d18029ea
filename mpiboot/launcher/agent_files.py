"""What the launch agent reads in the launch folder: what it runs, and each host's exports."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mpiboot.core.errors import error
from mpiboot.hosts.kubectl_pods import ENDED, PodAccess
from mpiboot.system import files

# The agent reads both by these names.
CONFIG: Final = "agent.conf"
_KUBECTL_CONFIG: Final = "kubectl.conf"
_KUBECTL_STDIN: Final = "stdin"
_POD_EXEC: Final = Path(__file__).resolve().parent.parent / "libexec" / "pod_exec"
HOSTS: Final = "hosts"


def assignments(values: Mapping[str, str]) -> str:
    """Write ``name='value'`` lines that a POSIX shell reads back byte for byte."""
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())


def exports(values: Mapping[str, str]) -> str:
    """Write variables for the front of a remote command line, which any POSIX shell reads."""
    quoted = ((name, value.replace("'", "'\\''")) for name, value in values.items())
    return "".join(f"export {name}='{value}';\n" for name, value in quoted)


def write(
    folder: Path,
    *,
    ssh: str,
    user_agent: str,
    client: str,
    remote_end: str = "",
    per_host: Mapping[str, Mapping[str, str]],
    environ: Mapping[str, str],
) -> None:
    """Write the agent's files.

    Args:
        folder: the launch folder, which holds the folder HOSTS already.
        ssh: the words of the ssh that the agent runs.
        user_agent: the words of the user's own agent, which comes before ssh; or empty.
        client: the words that reach what takes ssh's place; or empty.
        remote_end: how that says that a command's end is told; empty where its status is clear.
        per_host: variables of single hosts, by the name that mpirun calls them.
        environ: what the agent has in its environment beside mpirun's.

    Raises:
        MpibootError: ``runtime-folder``.
    """
    hosts = folder / HOSTS
    for name, values in per_host.items():
        files.write_private(hosts / f"{name}.env", exports(values))
    read = {"ssh": ssh, "user_agent": user_agent, "client": client}
    if remote_end:
        read["remote_end"] = remote_end
    files.write_private(folder / CONFIG, assignments(read) + exports(environ))


def write_kubectl(folder: Path, access: PodAccess, environ: Mapping[str, str]) -> dict[str, str]:
    """Write what ``libexec/pod_exec`` reads; give what ``write`` needs for it.

    Args:
        folder: the launch folder.
        access: how pods are entered.
        environ: what kubectl finds the API server by; mpirun's environment may lack it.

    Raises:
        MpibootError: ``runtime-folder``.
    """
    if any(char.isspace() for char in str(_POD_EXEC)):
        said = f"mpiboot's own folder {str(_POD_EXEC)!r} has a blank in its path"
        raise error("runtime-folder", said, hint="install mpiboot in a folder without blanks")
    read = {
        "kubectl": access.kubectl,
        "namespace": access.namespace,
        "container": access.container,
    }
    files.write_private(folder / _KUBECTL_CONFIG, assignments(read) + exports(environ))
    files.make_fifo(folder / _KUBECTL_STDIN)
    return {"client": f"/bin/sh {_POD_EXEC}", "remote_end": ENDED}
