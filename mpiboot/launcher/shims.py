"""Names such as ``mpirun`` and ``sshd`` that lead to mpiboot, for images that choose so.

A shim is a symbolic link to the program ``mpiboot``. The real programs stay where they are; an
image that wants calls by absolute path to start mpiboot too moves them to ``REAL``, and puts links
in their place. Which name mpiboot was called by is read here, and the real program is found without
ever finding a shim. A command that is no launch has a folder of them, and variables by which a real
``mpirun`` waits for its hosts, too.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from mpiboot.core.checks import MpibootError, error
from mpiboot.core.launch_spec import COMMAND_DIR, LAUNCH_DIR
from mpiboot.job import program_words
from mpiboot.system import files
from mpiboot.system.spawn import DEFAULT_PATH

NAMES: Final = (*program_words.MPIRUNS, "sshd")
# Those that are installed in an image.
_INSTALLED: Final = ("mpirun", "mpiexec", "sshd")
# Where an image keeps the real programs whose place a shim has taken.
REAL: Final = Path("/usr/local/lib/mpiboot/real")
# Where sshd is installed; an ordinary user's PATH lacks these.
SSHD_FOLDERS: Final = ("/usr/sbin", "/usr/local/sbin")
# The ssh of a command that may log in to the job's hosts by itself.
_SSH: Final = str(Path(__file__).resolve().parent.parent / "libexec" / "ssh")
# What the environment of a command names as the agent of every MPI.
AGENT: Final = str(Path(_SSH).with_name("agent"))

# As pip and setuptools write a program that starts mpiboot, and how far down that stands.
_ENTRY: Final = b"\nfrom mpiboot.__main__ import main"
_HEAD: Final = 1024


def _is_mpiboot(place: str) -> bool:
    """Whether a path leads to this or another installation's program ``mpiboot``.

    Two installations that took each other's shims for real programs would exec each other forever;
    a copied link (``COPY`` in a Containerfile follows it) is a copy of the program.
    """
    target = os.path.realpath(place)
    if os.path.basename(target) == "mpiboot":  # noqa: PTH119
        return True
    with suppress(OSError), open(target, "rb") as program:  # noqa: PTH123
        return _ENTRY in program.read(_HEAD)
    return False


def real(name: str, path: str) -> str:
    """Find the real program behind a shim; empty if every one leads to an mpiboot."""
    program = Path(name).name
    folders = [item for item in path.split(os.pathsep) if item.startswith("/")]
    if program == "sshd":
        folders += SSHD_FOLDERS
    places = (os.path.join(folder, program) for folder in (*folders, str(REAL)))  # noqa: PTH118
    return next((item for item in places if shutil.which(item) and not _is_mpiboot(item)), "")


def _leads(folder: str) -> set[str]:
    """List the names by which a folder of PATH leads to mpiboot."""
    return {name for name in NAMES if folder and _is_mpiboot(f"{folder}/{name}")}


def _clean(path: str, environ: Mapping[str, str]) -> str:
    """Remove the folders from PATH that hold only shims; links go before folders that stay."""
    kept, still = [], False
    for folder in path.split(os.pathsep):
        names = _leads(folder)
        with suppress(OSError):  # it can't be read
            if names and names == set(os.listdir(folder)):  # noqa: PTH208 - names only
                continue
        kept.append(folder)
        still = still or bool(names)
    front = [str(_front(path, environ))] if still else []
    return os.pathsep.join((*front, *kept))


def enter(shim: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Give the PATH and the program with which mpiboot goes on behind a shim, a name or a path.

    If shims are among other programs, as in /usr/local/bin, that folder stays on PATH, preceded by
    one with links to the real programs.

    Returns:
        ``PATH`` with the real programs first, and the ``program`` to call.

    Raises:
        MpibootError: ``program-missing``; every program of that name is mpiboot itself.
            ``runtime-folder``; a folder for the links is needed, and can't be made.
    """
    path, (folder, name) = _plain_ssh(environ), os.path.split(shim)
    if folder not in ("", *path.split(os.pathsep)) and os.path.exists(REAL / name):  # noqa: PTH110 - closed
        path = f"{REAL}:{path}"  # it was called by its path, whatever mpirun PATH has
    found = real(name, path)
    if not found:
        raise error(
            "program-missing",
            f"every {name} on PATH is mpiboot's own shim",
            evidence=(f"PATH={path}",),
            hint=f"install an MPI whose {name} is in another folder of PATH",
        )
    clean = _clean(path, environ)
    # sshd requires its absolute path; an absolute mpirun implies --prefix in Open MPI.
    return {"PATH": clean, "program": found if name == "sshd" else name}


def hydra_by_path(program: tuple[str, ...], path: str) -> tuple[str, ...]:
    """Give a launch's line with Hydra by its own path, where a link on PATH leads to it.

    It calls its proxies, on each host, in the folder that it was itself found in.
    """
    place = shutil.which(program[0], path=path) or ""
    behind = os.path.realpath(place)
    first, second = (
        os.path.exists(f"{os.path.dirname(item)}/hydra_pmi_proxy")  # noqa: PTH110, PTH120 - closed
        for item in (place, behind)
    )
    linked = second and not first and program_words.is_mpirun(behind)
    return (behind, *program[1:]) if linked else program


def cleared(environ: Mapping[str, str]) -> str:
    """Give the PATH for a call by mpiboot's own name, without shims that lead back to it."""
    path = _plain_ssh(environ)
    try:
        return _clean(path, environ) if _reached(path) else path
    except MpibootError:
        return path  # an error in the folder is reported where it is needed


def _plain_ssh(environ: Mapping[str, str]) -> str:
    """Give PATH without the folder of a command: a launch has its own mpirun and agents."""
    folders = environ.get("PATH", DEFAULT_PATH).split(os.pathsep)
    return os.pathsep.join(item for item in folders if os.path.realpath(f"{item}/ssh") != _SSH)


def _reached(path: str) -> bool:
    """Whether a shim comes before the real program on PATH."""
    first = (shutil.which(name, path=path) for name in NAMES if real(name, path))
    return any(place and _is_mpiboot(place) for place in first)


def _front(path: str, environ: Mapping[str, str]) -> Path:
    """Make a folder of links from the shims' names to the real programs."""
    wanted, tmpdir = environ.get("MPIBOOT_RUNTIME_DIR", ""), environ.get("TMPDIR", "")
    folder = files.runtime_dir(wanted, os.getuid(), "real", tmpdir=tmpdir)
    # In a launcher's children the folder is on PATH already, and would lead to itself.
    here = os.path.realpath(folder)
    rest = os.pathsep.join(
        item for item in path.split(os.pathsep) if os.path.realpath(item) != here
    )
    shims = {name for item in path.split(os.pathsep) for name in _leads(item)}
    behind = {name: real(name, rest) for name in sorted(shims)}
    if all(Path(place).parent == REAL for place in behind.values() if place):
        return REAL
    for name, place in behind.items():
        if not place:
            continue
        part = folder / f".{name}.{os.getpid()}"
        part.unlink(missing_ok=True)
        part.symlink_to(place)
        part.replace(folder / name)  # other processes may be using this link
    return folder


def own_file() -> Path:
    """Find mpiboot's own program, the target of the shims.

    Raises:
        MpibootError: ``program-missing``; it was not started from an installed program.
    """
    places = [Path(sys.argv[0]), Path(sys.executable).with_name("mpiboot")]
    # os.path: Path.is_file raises where this user may not enter a folder on the way.
    found = next((item for item in places if os.path.isfile(item) and "/" in str(item)), None)  # noqa: PTH113
    if found is None:
        raise error("program-missing", "mpiboot's own program is not installed")
    return found.resolve()


def install(folder: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Make the shims in a folder; give a line to print for each.

    Raises:
        MpibootError: ``usage`` or ``runtime-folder``; there is a file that is no shim, or the
            folder can't be written.
    """
    entry, target = own_file(), Path(folder)
    path, lines = environ.get("PATH", ""), []
    with files.writing(folder):
        target.mkdir(mode=0o755, parents=True, exist_ok=True)
        for name in _INSTALLED:
            place = target / name
            if place.is_symlink() and place.resolve() == entry:
                place.unlink()
            elif place.exists() or place.is_symlink():
                raise error("usage", f"{place} exists and is not one of mpiboot's shims")
            place.symlink_to(entry)
            behind = real(name, path)
            lines.append(f"{place} -> {entry} (the real one: {behind or 'none'})")
    if any(shutil.which(name, path=path) != str(target / name) for name in _INSTALLED):
        lines.append(f"put {folder} first on PATH: ENV PATH={folder}:$PATH")
    return tuple(lines)


def write_ssh(folder: Path, path: str, hosts: str, logins: str = "", ssh: str = "") -> None:
    """Write what a command's ssh reads: ``name='value'`` lines, for a POSIX shell.

    Args:
        folder: the command's.
        path: the PATH that has the image's ssh.
        hosts: the names and patterns of hosts that are waited for.
        logins: the folder of the hosts' logins; empty before the first host is ready.
        ssh: the words that reach a host; empty where no ssh can run.

    Raises:
        MpibootError: ``runtime-folder``; it can't be written.
    """
    # Where no ssh is installed, its usual place says so.
    plain = shutil.which("ssh", path=path) or "/usr/bin/ssh"
    values = {"plain": plain, "hosts": hosts, "dir": logins, "ssh": ssh}
    lines = (f"{name}={shlex.quote(value)}\n" for name, value in values.items())
    files.write_private(folder / "ssh.conf", "".join(lines))


def passed_by(proc: Path = Path("/proc/1")) -> str:
    """Report an mpirun that is the container's first process without mpiboot; else empty."""
    try:
        program = (proc / "cmdline").read_bytes().partition(b"\0")[0].decode("utf-8", "replace")
        environ = b"\0" + (proc / "environ").read_bytes()
    except OSError:
        return ""
    # With MPIBOOT_SUPERVISE=off mpiboot becomes mpirun, which then has its variables.
    if not program_words.is_mpirun(program) or f"\0{LAUNCH_DIR}=".encode() in environ:
        return ""
    return f"this container's first process is {program}, started without mpiboot"


# A script may set PATH anew (``bash -l``, an MPI's own init file), and call a real mpirun. By what
# the command's environment names each MPI then starts its daemons by ``libexec/agent``, which has
# the command's ssh wait for the host.
# Names of the agent, the first of which is set here (docs/reference/mpi.md; older ones are synonyms
# that the MPIs still read); what chooses how daemons are started; what has mpirun start all itself.
_AGENTS: Final[Sequence[tuple[Sequence[str], Sequence[str], Mapping[str, str]]]] = (
    (
        ("OMPI_MCA_plm_rsh_agent", "OMPI_MCA_orte_rsh_agent", "OMPI_MCA_pls_rsh_agent"),
        ("OMPI_MCA_plm",),
        {"OMPI_MCA_plm_rsh_no_tree_spawn": "1"},
    ),
    (
        ("PRTE_MCA_plm_ssh_agent", "PRTE_MCA_plm_rsh_agent", "OMPI_MCA_plm_rsh_agent"),
        ("PRTE_MCA_plm", "OMPI_MCA_plm"),
        {"PRTE_MCA_plm_ssh_no_tree_spawn": "1"},
    ),
    (("HYDRA_LAUNCHER_EXEC", "HYDRA_BOOTSTRAP_EXEC"), ("HYDRA_LAUNCHER", "HYDRA_BOOTSTRAP"), {}),
    (
        ("I_MPI_HYDRA_BOOTSTRAP_EXEC", "HYDRA_LAUNCHER_EXEC"),
        ("I_MPI_HYDRA_BOOTSTRAP",),
        {"I_MPI_HYDRA_BRANCH_COUNT": "0"},
    ),
)
_BY_SSH: Final = ("rsh", "ssh")
# MPIs of one row read each other's hostfiles: `NAME slots=N`, `NAME:N`.
_HOSTFILES: Final = (
    ("OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile"),
    ("HYDRA_HOST_FILE", "I_MPI_HYDRA_HOST_FILE"),
)
# Under these the MPIs start their daemons by the scheduler.
_SCHEDULERS: Final = ("SLURM_JOB_ID", "SLURM_JOBID", "LSB_JOBID", "PBS_JOBID")
_VARIABLES: Final = "variables"
_OURS: Final = "MPIBOOT_"
# Of an MPI's prefix, what scripts look for beside `bin`.
_PARTS: Final = ("etc", "include", "lib", "lib64", "share")


def command_variables(environ: Mapping[str, str], agent: str) -> dict[str, str]:
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
            found |= {names[0]: agent, **flat}
    return {name: value for name, value in found.items() if name not in environ}


def write_command(folder: Path, values: Mapping[str, str], path: str) -> None:
    """Make a command's folder: mpirun by its names, ssh, scp and sftp in ``bin``, the MPI's beside.

    Args:
        folder: the folder, which isn't there yet.
        values: its variables that a plain command lacks, and the settings.
        path: the PATH behind its ``bin``: an mpirun that isn't on it is not linked, but for the two
            names that the command may check for in an MPI that it adds itself.

    Raises:
        MpibootError: ``runtime-folder``; it can't be written.
    """
    entry, prefix, programs = own_file(), _prefix(path), folder / "bin"
    with files.writing():
        programs.mkdir(mode=0o700, parents=True)
        for name in program_words.MPIRUNS:
            if name in _INSTALLED or shutil.which(name, path=path):
                (programs / name).symlink_to(entry)
        (programs / "ssh").symlink_to(_SSH)
        for name in ("scp", "sftp"):
            if shutil.which(name, path=path):
                (programs / name).symlink_to(_SSH)
        (folder / "ssh_words").symlink_to(f"{_SSH}_words")
        for part in _PARTS if prefix else ():
            if os.path.isdir(f"{prefix}/{part}"):  # noqa: PTH112 - Path's raises where it is closed
                (folder / part).symlink_to(f"{prefix}/{part}")
    files.write_private(folder / _VARIABLES, json.dumps(values))


def _prefix(path: str) -> str:
    """Where the MPI is that is first on PATH; empty without one."""
    place = real("mpirun", path) or real("mpiexec", path)
    if place.startswith(f"{REAL}/"):
        place = os.path.realpath(place)
    return place.rpartition("/")[0].rpartition("/")[0]


def _variables(folder: str) -> dict[str, str]:
    """Read what a command was given; nothing where it is over."""
    found: dict[str, str] = {}
    with suppress(OSError, ValueError):
        found = json.loads(Path(folder, _VARIABLES).read_text())
    return found


def emptied(shim: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Give mpiboot's variables of the command whose shim was called with none of them.

    ``env -i PATH=$PATH mpirun`` is a launch all the same; the MPI's variables stay away.
    """
    folder = os.path.normpath(f"{shim}/../..")
    if COMMAND_DIR in environ or Path(folder).parent.name != "command":
        return {}
    return {name: value for name, value in _variables(folder).items() if name.startswith(_OURS)}


def without_command(
    environ: Mapping[str, str], program: Sequence[str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Give a launch's environment and line as they are without the command's own.

    Args:
        environ: this process's; outside a command it stays as it is.
        program: the launch's line, likewise.
    """
    folder, env = environ.get(COMMAND_DIR, ""), dict(environ)
    if not folder:
        return env, tuple(program)
    for name, value in _variables(folder).items():
        # Another value is the script's.
        if env.get(name) == value and not name.startswith(_OURS):
            del env[name]
    prefix = _prefix(env.get("PATH", DEFAULT_PATH))

    def moved(part: str) -> str:
        rest = os.path.relpath(part, folder) if f"{part}/".startswith(f"{folder}/") else ""
        there = prefix and rest.partition("/")[0] in (".", *_PARTS)
        return os.path.normpath(f"{prefix}/{rest}") if there else part

    def all_moved(value: str) -> str:
        return "".join(map(moved, re.split("([:=])", value)))  # also of NAME=PATH:PATH

    same = (COMMAND_DIR, "PATH")
    env = {name: value if name in same else all_moved(value) for name, value in env.items()}
    return env, tuple(map(all_moved, program))
