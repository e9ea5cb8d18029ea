"""What the launch agent reads in the launch folder: which ssh it runs, and each host's exports."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mpiboot.system import files

# The agent reads both by these names.
CONFIG: Final = "agent.conf"
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
    per_host: Mapping[str, Mapping[str, str]],
    environ: Mapping[str, str],
) -> None:
    """Write the agent's files.

    Args:
        folder: the launch folder, which holds the folder HOSTS already.
        ssh: the words of the ssh that the agent runs.
        user_agent: the words of the user's own agent, which comes before ssh; or empty.
        client: the words that reach mpiboot's own SSH client, which takes ssh's place; or empty.
        per_host: variables of single hosts, by the name that mpirun calls them.
        environ: what the agent has in its environment beside mpirun's.

    Raises:
        MpibootError: ``runtime-folder``.
    """
    hosts = folder / HOSTS
    for name, values in per_host.items():
        files.write_private(hosts / f"{name}.env", exports(values))
    read = {"ssh": ssh, "user_agent": user_agent, "client": client}
    files.write_private(folder / CONFIG, assignments(read) + exports(environ))
