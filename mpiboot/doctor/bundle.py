"""``mpiboot doctor --bundle FILE``: what a support ticket needs, as one archive.

It asks what a person would ask, by mpiboot's own commands; one that fails or does not end leaves
its reason in the place of its answer.
"""

from __future__ import annotations

import asyncio
import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mpiboot import __version__
from mpiboot.core import log, records_json
from mpiboot.core.errors import MpibootError, error
from mpiboot.core.model import Role, Worker
from mpiboot.core.settings import ROWS, Resolved
from mpiboot.core.wording import counted, size_of
from mpiboot.doctor import archive, looks
from mpiboot.doctor.archive import Part
from mpiboot.doctor.role import role_of
from mpiboot.hosts.access import own_namespace
from mpiboot.job import masking
from mpiboot.launcher import observation
from mpiboot.system import files, programs

STDOUT: Final = "-"
# Seconds that one command may take.
_PATIENCE: Final = 120.0
_LOGS: Final = "logs are not in it: kubectl logs{} {} --all-containers, and with --previous"


def write(
    resolved: Resolved, environ: Mapping[str, str], flags: Mapping[str, str | None], path: str
) -> None:
    """Write the bundle, and say on stderr what it is.

    Args:
        resolved: the settings.
        environ: this process's environment.
        flags: the settings that were given as options, which hold for what is asked here too.
        path: the file, or ``-`` for standard output.

    Raises:
        MpibootError: ``usage``; the file can't be written, or standard output is a terminal.
    """
    _check(path)
    try:
        parts, hosts = asyncio.run(_parts(resolved, environ, flags))
    finally:
        looks.remove_folder(resolved.settings, environ)
    parts = archive.without_secrets(parts, environ)
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
    data, cut = archive.pack(parts, about)
    _write(path, data)
    name = "standard output" if path == STDOUT else path
    message = f"{name}: {size_of(len(data))}, {counted(len(parts) + 1, 'file')}; {cut}".rstrip("; ")
    sys.stderr.write(f"mpiboot: {message}\nmpiboot: {_LOGS.format(in_namespace, 'POD')}\n")


def _check(path: str) -> None:
    """Refuse at once what would be refused after all the work."""
    if path == STDOUT:
        if sys.stdout.isatty():
            hint = "name a file, or `mpiboot doctor --bundle - > bundle.tar.gz`"
            raise error("usage", "--bundle -: standard output is a terminal", hint=hint)
        return
    folder = Path(path).parent
    if not folder.is_dir():
        raise _refused(path, f"there is no folder {folder}")
    if Path(path).is_dir():
        raise _refused(path, "it is a folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _refused(path, f"this user can't write to the folder {folder}")


def _refused(path: str, why: str) -> MpibootError:
    hint = "name a file in a folder that this user can write to, such as /tmp/bundle.tar.gz"
    return error("usage", f"--bundle {path}: {why}", hint=hint)


def _write(path: str, data: bytes) -> None:
    if path == STDOUT:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    try:
        files.write_private(Path(path), data)
    except MpibootError as wrong:
        raise _refused(path, wrong.finding.message) from None


async def _parts(
    resolved: Resolved, environ: Mapping[str, str], flags: Mapping[str, str | None]
) -> tuple[tuple[Part, ...], tuple[str, ...]]:
    """Ask for everything; the files, the most wanted first, and the job's hosts."""
    launcher = role_of(resolved, environ) is Role.LAUNCHER
    given = {row.variable: flags[row.name] for row in ROWS if flags.get(row.name) is not None}
    env = {**environ, **{name: str(value) for name, value in given.items()}}
    alone = [_command(env, "facts", "--json"), _command(env, "settings", "--json")]
    if launcher:
        alone.append(_command(env, "plan", "--json", "--", "true"))
    beside = asyncio.gather(*alone)
    # One after the other: doctor's private folder is one.
    found = [
        await _command(env, "doctor", "--json"),
        await _command(env, "doctor", "ranks", "--json"),
    ]
    workers, hosts = await _workers(resolved, environ) if launcher else ((), ())
    found += [*await beside, *_own(resolved, environ), *workers]
    return tuple(found), hosts


async def _command(environ: Mapping[str, str], *words: str) -> Part:
    """Ask mpiboot itself; a file's name is that of the command."""
    name = "-".join(word for word in words if word.isalpha() and word != "true") + ".json"
    line = (sys.executable, "-m", "mpiboot", *words)
    done = await programs.run_async(line, _PATIENCE, environ)
    if done is None:
        return Part(name, f"`mpiboot {' '.join(words)}` had no end within {_PATIENCE:g} s\n")
    if done.stdout:
        return Part(name, done.stdout)
    return Part(name, f"`mpiboot {' '.join(words)}` ended with {done.status}:\n{done.stderr}")


def _own(resolved: Resolved, environ: Mapping[str, str]) -> list[Part]:
    """Give what this pod has beside: versions, environment, its first process, how it ended."""
    versions = f"mpiboot {__version__}\nPython {platform.python_version()}\n{platform.platform()}\n"
    environment = Part("environment.txt", archive.environment(environ))
    found = [Part("versions.txt", versions), environment]
    first = _read(Path("/proc/1/cmdline")).rstrip("\0").split("\0")
    found.append(Part("first-process.txt", " ".join(masking.masked_words(first)) + "\n"))
    ended = log.read_termination(resolved.settings.termination_log)
    found.append(Part("termination-log.txt", ended or "nothing is in it\n"))
    folder = environ.get("MPIBOOT_WORKER_DIR", "")
    wanted = resolved.settings.runtime_dir
    there = (
        Path(folder)
        if folder
        else files.find_role(wanted, os.getuid(), "worker", environ.get("TMPDIR", ""))
    )
    if there is not None and (there / "attempts").exists():
        found.append(Part("attempts.txt", _read(there / "attempts")))
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError as wrong:
        return f"{path}: {wrong.strerror}\n"


async def _workers(
    resolved: Resolved, environ: Mapping[str, str]
) -> tuple[tuple[Part, ...], tuple[str, ...]]:
    """Give every worker's facts, or why there are none."""
    try:
        hosts, _, passed = await observation.probe_hosts(resolved, environ, looks.role())
    except MpibootError as wrong:
        return (Part("workers.txt", f"no worker was asked: {wrong.finding.message}\n"),), ()
    found = {f"workers/{_plain(item.host.name)}": _facts(item) for item in passed.workers}
    for wrong_one in passed.findings:
        name = f"workers/{_plain(wrong_one.host)}"
        lines = (
            wrong_one.message,
            *wrong_one.evidence,
            *(["-> " + wrong_one.hint] if wrong_one.hint else []),
        )
        found.setdefault(name, "\n".join(lines) + "\n")
    parts = tuple(
        Part(f"{name}.{'json' if text.startswith('{') else 'txt'}", text)
        for name, text in found.items()
    )
    return parts, tuple(host.name for host in hosts)


def _facts(worker: Worker) -> str:
    if worker.facts is not None:
        return records_json.facts_to_json(worker.facts)
    why = worker.no_facts.value if worker.no_facts else "told nothing of itself"
    mpi = f"; its MPI: {worker.mpi.banner}" if worker.mpi else ""
    return f"{worker.host.name} {why}{mpi}\n"


def _plain(name: str) -> str:
    """Make a file's name of a host's."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)
