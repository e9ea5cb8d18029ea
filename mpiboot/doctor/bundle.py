"""``mpiboot doctor --bundle FILE``: what a support ticket needs, as one archive of a bounded size.

It runs the commands that a person would run; one that fails or does not end leaves its reason in
the place of its output.
"""

from __future__ import annotations

import asyncio
import io
import os
import platform
import re
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mpiboot import __version__
from mpiboot.core import log, masking, records_json
from mpiboot.core.checks import MpibootError, error
from mpiboot.core.facts import Worker
from mpiboot.core.model import Role
from mpiboot.core.settings import ROWS, Resolved
from mpiboot.core.wording import counted, first_few, size_of
from mpiboot.doctor import looks
from mpiboot.doctor.role import role_of
from mpiboot.hosts.access import own_namespace
from mpiboot.job.forward import ALLOWED, matches
from mpiboot.launcher import observation
from mpiboot.system import files, programs
from mpiboot.worker.state import worker_folder

STDOUT: Final = "-"
# Seconds that one command may take.
_PATIENCE: Final = 120.0
_LOGS: Final = "logs are not in it: kubectl logs{} {} --all-containers, and with --previous"


def write(
    resolved: Resolved, environ: Mapping[str, str], flags: Mapping[str, str | None], path: str
) -> None:
    """Write the bundle, and describe it on stderr.

    Args:
        resolved: the settings.
        environ: this process's environment.
        flags: the settings that were given as options; the commands that are run get them too.
        path: the file, or ``-`` for standard output.

    Raises:
        MpibootError: ``usage``; the file can't be written, or standard output is a terminal.
    """
    _check(path)
    try:
        texts, hosts = asyncio.run(_texts(resolved, environ, flags))
    finally:
        looks.remove_folder(resolved.settings, environ)
    namespace = own_namespace()
    in_namespace = f" -n {namespace}" if namespace else ""
    logs = "\n".join(
        _LOGS.format(in_namespace, name.partition(".")[0]) for name in (os.uname().nodename, *hosts)
    )
    about = (
        f"What mpiboot {__version__} knows of this pod and, on a launcher, of its workers.\n"
        "Secrets are hidden; variables that mpiboot does not know have their names alone.\n"
        f"{logs}\n"
    )
    data, cut = pack(without_secrets(texts, environ), about)
    if path == STDOUT:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    else:
        try:
            files.write_private(Path(path), data)
        except MpibootError as wrong:
            raise _refused(path, wrong.finding.message) from None
    name = "standard output" if path == STDOUT else path
    message = f"{name}: {size_of(len(data))}, {counted(len(texts) + 1, 'file')}; {cut}".rstrip("; ")
    sys.stderr.write(f"mpiboot: {message}\nmpiboot: {_LOGS.format(in_namespace, 'POD')}\n")


def _check(path: str) -> None:
    """Refuse at once a path that could not be written at the end."""
    if path == STDOUT:
        if sys.stdout.isatty():
            hint = "name a file, or `mpiboot doctor --bundle - > bundle.tar.gz`"
            raise error("usage", "--bundle -: standard output is a terminal", hint=hint)
        return
    folder = os.path.dirname(path) or "."  # noqa: PTH120
    # Not Path.is_dir: it raises where this user may not enter a folder on the way.
    if not os.path.isdir(folder):  # noqa: PTH112
        raise _refused(path, f"there is no folder {folder}")
    if os.path.isdir(path):  # noqa: PTH112
        raise _refused(path, "it is a folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _refused(path, f"this user can't write to the folder {folder}")


def _refused(path: str, why: str) -> MpibootError:
    hint = "name a file in a folder that this user can write to, such as /tmp/bundle.tar.gz"
    return error("usage", f"--bundle {path}: {why}", hint=hint)


async def _texts(
    resolved: Resolved, environ: Mapping[str, str], flags: Mapping[str, str | None]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Collect everything: the files by their names, the most wanted first, and the job's hosts."""
    launcher = role_of(resolved, environ) is Role.LAUNCHER
    given = {row.variable: flags[row.name] for row in ROWS if flags.get(row.name) is not None}
    env = {**environ, **{name: str(value) for name, value in given.items()}}
    alone = [_command(env, "facts", "--json"), _command(env, "settings", "--json")]
    if launcher:
        alone.append(_command(env, "plan", "--json", "--", "true"))
    beside = asyncio.gather(*alone)
    # One after the other: each logs in to every host.
    found = [
        await _command(env, "doctor", "--json"),
        await _command(env, "doctor", "ranks", "--json"),
    ]
    workers, hosts = await _workers(resolved, environ) if launcher else ({}, ())
    return {**dict(found), **dict(await beside), **_own(resolved, environ), **workers}, hosts


async def _command(environ: Mapping[str, str], *words: str) -> tuple[str, str]:
    """Run a command of mpiboot's; its file has the command's name."""
    name = "-".join(word for word in words if word.isalpha() and word != "true") + ".json"
    line = (sys.executable, "-m", "mpiboot", *words)
    done = await programs.run_async(line, _PATIENCE, environ)
    if done is None:
        return name, f"`mpiboot {' '.join(words)}` had no end within {_PATIENCE:g} s\n"
    failed = f"`mpiboot {' '.join(words)}` ended with {done.status}:\n{done.stderr}"
    return name, done.stdout or failed


def _own(resolved: Resolved, environ: Mapping[str, str]) -> dict[str, str]:
    """Describe this pod: versions, environment, its first process, how it ended before."""
    first = _read(Path("/proc/1/cmdline")).rstrip("\0").split("\0")
    ended = log.read_termination(resolved.settings.termination_log)
    found = {
        "versions.txt": f"mpiboot {__version__}\nPython {platform.python_version()}\n"
        f"{platform.platform()}\n",
        "environment.txt": environment(environ),
        "first-process.txt": " ".join(masking.masked_words(first)) + "\n",
        "termination-log.txt": ended or "nothing is in it\n",
    }
    worker = worker_folder(resolved.settings.runtime_dir, environ)
    if worker is not None and (worker / "attempts").exists():
        found["attempts.txt"] = _read(worker / "attempts")
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError as wrong:
        return f"{path}: {wrong.strerror}\n"


async def _workers(
    resolved: Resolved, environ: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Get every worker's facts, or why there are none, and the names of all hosts."""
    try:
        hosts, _, passed = await observation.probe_hosts(resolved, environ, looks.role())
    except MpibootError as wrong:
        return {"workers.txt": f"no worker was asked: {wrong.finding.message}\n"}, ()
    found = {_file_name(item.host.name): _facts(item) for item in passed.workers}
    for item in passed.findings:
        hint = [f"-> {item.hint}"] if item.hint else []
        text = "\n".join((item.message, *item.evidence, *hint)) + "\n"
        found.setdefault(_file_name(item.host), text)
    texts = {
        f"workers/{name}.{'json' if text.startswith('{') else 'txt'}": text
        for name, text in found.items()
    }
    return texts, tuple(host.name for host in hosts)


def _facts(worker: Worker) -> str:
    if worker.facts is not None:
        return records_json.facts_to_json(worker.facts)
    why = worker.no_facts.value if worker.no_facts else "gave no facts"
    mpi = f"; its MPI: {worker.mpi.banner}" if worker.mpi else ""
    return f"{worker.host.name} {why}{mpi}\n"


def _file_name(host: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", host)


# --- secrets

# A shorter value may stand in any text without being that secret.
_SHORTEST: Final = 6
# Variables whose values are shown beside those of forward's table. Of others the name alone is: any
# of them may hold a connection string, a registry's login or a webhook's address.
_SHOWN: Final = (
    "OMPI_* PMIX_* PRTE_* PMI_* MPIR_* HYDRA_* MPIEXEC_* MPIBOOT_* K_MPI_JOB_ROLE "
    "NVIDIA_VISIBLE_DEVICES NVIDIA_DRIVER_CAPABILITIES KUBERNETES_* LD_PRELOAD "
    "HOME HOSTNAME USER LOGNAME SHELL PWD TERM TMPDIR LANG LC_* TZ"
)
# What such a value looks like; a plain word may stand anywhere without coming from a variable.
_CONNECTION: Final = re.compile(r"://.{4}|=.+;|\{.+:")


def environment(environ: Mapping[str, str]) -> str:
    """Write an environment, one variable per line; only known ones with their values."""
    lines = []
    for name, value in sorted(environ.items()):
        known = not value or _is_shown(name)
        shown = masking.mask_within(name, value) if known else masking.HIDDEN
        lines.append(f"{name}={shown}\n")
    return "".join(lines)


def _is_shown(name: str) -> bool:
    patterns = (*_SHOWN.split(), *ALLOWED)
    return any(matches(name, pattern) for pattern in patterns)


def _is_secret(name: str, value: str) -> bool:
    """Whether a value must be shown nowhere: `args` have those of variables as `$(NAME)`."""
    if masking.mask(name, value) == masking.HIDDEN:
        return len(value) >= _SHORTEST
    return bool(_CONNECTION.search(value)) and not _is_shown(name)


def without_secrets(texts: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Hide values of secret and of unknown variables, also where no name is beside them.

    Args:
        texts: already without secrets that have their names beside them.
        environ: where the values are.
    """
    values = [value for name, value in environ.items() if _is_secret(name, value)]
    hidden = dict(texts)
    for value in sorted(values, key=len, reverse=True):
        hidden = {name: text.replace(value, masking.HIDDEN) for name, text in hidden.items()}
    return hidden


# --- the archive

# Bytes before they are packed: of one file, and of all. Compressed it is about a tenth.
PART: Final = 1 << 20
WHOLE: Final = 16 << 20
_FOLDER: Final = "mpiboot-bundle/"


def pack(
    texts: Mapping[str, str], about: str, *, most: int = PART, whole: int = WHOLE
) -> tuple[bytes, str]:
    """Pack the files; one that is too long is cut, those beyond the total are left out.

    Args:
        texts: the files by their names, the most wanted first.
        about: what the file README.txt begins with.
        most: bytes of one file.
        whole: bytes of all.

    Returns:
        The archive, and what was cut or left out in one line (empty: nothing).
    """
    kept: dict[str, bytes] = {}
    cut: list[str] = []
    out: list[str] = []
    left = whole
    for name, text in texts.items():
        data = text.encode("utf-8", "replace")
        if len(data) > most:
            cut.append(name)
            note = f"\n[cut here: {size_of(len(data))} in all]\n".encode()
            data = data[:most].decode("utf-8", "ignore").encode() + note
        if len(data) > left:
            out.append(name)
        else:
            left -= len(data)
            kept[name] = data
    message = "; ".join(
        f"{what}: {first_few(names, 8)}"
        for what, names in (
            (f"cut to {size_of(most)}", cut),
            (f"left out, as all may have {size_of(whole)}", out),
        )
        if names
    )
    listed = "".join(f"  {name}\n" for name in kept)
    readme = f"{about}\n{listed}" + (f"\n{message}\n" if message else "")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, data in {"README.txt": readme.encode(), **kept}.items():
            entry = tarfile.TarInfo(_FOLDER + name)
            entry.size, entry.mode = len(data), 0o600
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue(), message
