"""What the environment of a command names, so that a real ``mpirun`` below it waits for its hosts.

A script may set PATH anew (``bash -l``, an MPI's own init file) and call a real ``mpirun``. Each
MPI then starts its daemons by ``libexec/agent``, which has the command's ssh wait for the host. A
launch of mpiboot's below the command makes its own choices: it is given the environment without
these values, and the real folders where a script has taken the command's for an MPI's prefix
(``$(dirname $(which mpirun))/../lib``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from mpiboot.core.launch_names import COMMAND_DIR
from mpiboot.launcher import shims
from mpiboot.system import files
from mpiboot.system.spawn import DEFAULT_PATH


class _Agent(NamedTuple):
    """How an MPI is told of an agent: ``names`` of it, the first of which is set here.

    ``launchers`` choose what starts daemons; with ``flat`` mpirun starts all of them itself.
    """

    names: tuple[str, ...]
    launchers: tuple[str, ...]
    flat: tuple[str, ...]


# docs/reference/mpi.md; the older names are synonyms that the MPIs still read.
_AGENTS: Final = (
    _Agent(
        ("OMPI_MCA_plm_rsh_agent", "OMPI_MCA_orte_rsh_agent", "OMPI_MCA_pls_rsh_agent"),
        ("OMPI_MCA_plm",),
        ("OMPI_MCA_plm_rsh_no_tree_spawn",),
    ),
    _Agent(
        ("PRTE_MCA_plm_ssh_agent", "PRTE_MCA_plm_rsh_agent", "OMPI_MCA_plm_rsh_agent"),
        ("PRTE_MCA_plm", "OMPI_MCA_plm"),
        ("PRTE_MCA_plm_ssh_no_tree_spawn",),
    ),
    _Agent(
        ("HYDRA_LAUNCHER_EXEC", "HYDRA_BOOTSTRAP_EXEC"), ("HYDRA_LAUNCHER", "HYDRA_BOOTSTRAP"), ()
    ),
    _Agent(("I_MPI_HYDRA_BOOTSTRAP_EXEC", "HYDRA_LAUNCHER_EXEC"), ("I_MPI_HYDRA_BOOTSTRAP",), ()),
)
# Intel MPI's way to start all daemons from mpiexec: 0 branches.
_BRANCHES: Final = {"I_MPI_HYDRA_BRANCH_COUNT": "0"}
_BY_SSH: Final = ("rsh", "ssh")
# MPIs of one row read each other's hostfiles: `NAME slots=N`, `NAME:N`.
_HOSTFILES: Final = (
    ("OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile"),
    ("HYDRA_HOST_FILE", "I_MPI_HYDRA_HOST_FILE"),
)
# Under these the MPIs start their daemons by the scheduler.
_SCHEDULERS: Final = ("SLURM_JOB_ID", "SLURM_JOBID", "LSB_JOBID", "PBS_JOBID")
_FILE: Final = "variables"
# Of an MPI's prefix, what scripts look for beside `bin`.
_PARTS: Final = ("etc", "include", "lib", "lib64", "share")


def variables(environ: Mapping[str, str], agent: str) -> dict[str, str]:
    """Choose what a command's environment gets; nothing in place of what is there.

    Args:
        environ: the pod's environment.
        agent: the agent's path in the image; empty where it can't be executed.
    """
    if any(name in environ for name in _SCHEDULERS):
        return {}
    found: dict[str, str] = {}
    for pair in _HOSTFILES:
        given = next((environ[name] for name in pair if name in environ), "")
        found |= dict.fromkeys(pair, given) if given else {}
    for names, launchers, flat in _AGENTS:
        other = any(environ.get(name, "ssh") not in _BY_SSH for name in launchers)
        if agent and not other and not any(name in environ for name in names):
            found |= {names[0]: agent} | dict.fromkeys(flat, "1")
    if "I_MPI_HYDRA_BOOTSTRAP_EXEC" in found:
        found |= _BRANCHES
    return {name: value for name, value in found.items() if name not in environ}


def write(folder: Path, values: Mapping[str, str], path: str) -> None:
    """Write what is given to a command, and lead to the MPI's files by the command's folder.

    Args:
        folder: the command's private folder, with ``bin``.
        values: its variables.
        path: the PATH behind its ``bin``.

    Raises:
        MpibootError: ``runtime-folder``; it can't be written.
    """
    files.write_private(folder / _FILE, json.dumps(values))
    prefix = _prefix(path)
    with files.writing():
        for part in _PARTS if prefix else ():
            if os.path.isdir(f"{prefix}/{part}"):  # noqa: PTH112 - Path's raises where it is closed
                (folder / part).symlink_to(f"{prefix}/{part}")


def _prefix(path: str) -> str:
    """Where the MPI is that is first on PATH; empty without one."""
    own = str(shims.own_file())
    places = (shims.real(name, path, own) for name in ("mpirun", "mpiexec"))
    return next((os.path.dirname(os.path.dirname(item)) for item in places if item), "")  # noqa: PTH120


def without(
    environ: Mapping[str, str], program: Sequence[str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Give a launch's environment and line as they are without the command's own.

    Args:
        environ: this process's; outside a command it stays as it is.
        program: the launch's line, likewise.
    """
    folder, env = environ.get(COMMAND_DIR, ""), dict(environ)
    given: dict[str, str] = {}
    with suppress(OSError, ValueError):  # a command that is over has none
        given = json.loads(Path(folder, _FILE).read_text())
    for name, value in given.items():
        if env.get(name) == value:  # otherwise it is the script's own
            del env[name]
    prefix = _prefix(env.get("PATH", DEFAULT_PATH)) if folder else ""
    if not prefix:
        return env, tuple(program)

    def real(value: str) -> str:
        parts = value.split(os.pathsep)
        for index, part in enumerate(parts):
            rest = os.path.relpath(part, folder) if part.startswith(f"{folder}/") else ""
            if part == folder or rest == "." or rest.partition("/")[0] in _PARTS:
                parts[index] = os.path.normpath(f"{prefix}/{rest}")
        return os.pathsep.join(parts)

    kept = (COMMAND_DIR, "PATH")
    return {name: value if name in kept else real(value) for name, value in env.items()}, tuple(
        map(real, program)
    )
