"""``mpiboot plan --offline``: what would be decided, away from the cluster; what can't be known.

No key, no host, no private folder: the hostfile, the settings, an MPI (the one here, or the one
that is named) and, where they were saved with ``mpiboot facts --json``, the pods' facts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mpiboot.core import facts_json
from mpiboot.core.choices import AUTO, Auto
from mpiboot.core.errors import error
from mpiboot.core.model import Finding, Host, Level, Mpi, MpiFamily, PodFacts, Worker
from mpiboot.core.setting_sources import Resolved
from mpiboot.core.wording import counted, first_few
from mpiboot.hosts import host_sources, job_hostfile
from mpiboot.job import mpirun_call, mpirun_line
from mpiboot.job import plan as plans
from mpiboot.launcher import launch_folder
from mpiboot.network import pod
from mpiboot.system import programs

_PORT: Final = 22
# Where a launcher's private files are in a pod that is as usual.
_FOLDER: Final = Path("/run/mpiboot/launcher")


def make(
    resolved: Resolved, program: tuple[str, ...], environ: Mapping[str, str], folder: str
) -> tuple[plans.Plan, tuple[Finding, ...]]:
    """Make the plan, and the findings of what could not be looked at.

    Args:
        resolved: the settings.
        program: what would be started.
        environ: the environment of this shell, in the place of the launcher pod's.
        folder: where saved facts are, a file ``*.json`` a pod; empty for none.

    Raises:
        MpibootError: ``hostfile-missing``, ``hostfile-invalid``; ``program-missing``: which MPI it
            would be is not known; ``usage``: the folder of facts can't be read.
    """
    saved = _saved(folder)
    settings = resolved.settings
    called = mpirun_call.called(program)
    mpi = _mpi(settings.mpi, str(resolved.given["mpi"]), environ, saved, called)
    line = mpirun_line.read(program, mpi.family)
    given = str(resolved.given["hostfile"])
    found = asyncio.run(
        job_hostfile.find(
            settings.hostfile,
            given,
            environ,
            patience=0.0,
            line=line.hostfiles,
            listed=host_sources.by_setting(resolved, environ),
            platform=lambda: host_sources.by_platform(environ, ""),
        )
    )
    workers = tuple(
        _worker(host, facts, settings.ssh_port or _PORT)
        for host in found.hostfile.hosts
        if (facts := _facts_of(host, saved))
    )
    named = {worker.facts.hostname for worker in workers if worker.facts}
    own = next((facts for facts in saved if facts.hostname not in named), None)
    observed = plans.Observed(
        hostfile=found.hostfile,
        workers=workers,
        mpi=mpi,
        links=own.links if own else (),
        identity=own.identity if own else pod.identity(environ),
        environ=environ,
        line=line,
        own=own,
        parameters=own.parameters if own else (),
    )
    missing = [host.name for host in found.hostfile.hosts if not _facts_of(host, saved)]
    plan = plans.make(observed, resolved, launch_folder.paths(_FOLDER))
    return plan, (*found.warnings, *_unknown(missing, own))


def _unknown(missing: list[str], own: PodFacts | None) -> tuple[Finding, ...]:
    """Say what an offline plan can't know."""
    said = ["offline: no name was resolved, no host was asked, no key was read"]
    if missing:
        hosts = f"{counted(len(missing), 'host')} ({first_few(missing)})"
        said.append(f"no facts of {hosts}: their links, RDMA ports and MPI are not known")
    if own is None:
        said.append(
            "no facts of the launcher's pod: its links are not known, and its user is yours"
        )
    hint = "save them with `kubectl exec POD -- mpiboot facts --json > DIR/POD.json`: --facts DIR"
    hints = ("", hint, hint)
    return tuple(
        Finding("offline", Level.UNKNOWN, text, hint=mend)
        for text, mend in zip(said, hints, strict=False)
    )


def _saved(folder: str) -> tuple[PodFacts, ...]:
    """Read the facts that were saved.

    Raises:
        MpibootError: ``usage``; there is no such folder, or a file is not what facts are.
    """
    if not folder:
        return ()
    try:
        texts = {path: path.read_text("utf-8", "replace") for path in sorted(_files(folder))}
    except OSError as wrong:
        raise error("usage", f"--facts {folder}: {wrong.strerror}") from None
    found = {path: facts_json.from_json(text) for path, text in texts.items()}
    bad = [str(path) for path, facts in found.items() if facts is None]
    if bad or not found:
        said = f"{first_few(bad)}: not what `mpiboot facts --json` of this version prints"
        raise error("usage", said if bad else f"--facts {folder}: no file *.json in it")
    return tuple(facts for facts in found.values() if facts)


def _files(folder: str) -> list[Path]:
    return [path for path in Path(folder).iterdir() if path.suffix == ".json"]


def _mpi(
    wanted: MpiFamily | Auto,
    given: str,
    environ: Mapping[str, str],
    saved: tuple[PodFacts, ...],
    called: str,
) -> Mpi:
    found = programs.detect_mpi(environ, called)
    found = next((facts.mpi for facts in saved if facts.mpi), found)
    if wanted is not AUTO and (found is None or wanted is not found.family):
        return Mpi(wanted, "(not known)", "mpirun", given)
    if found is None:
        hint = "say which one the image has: --mpi openmpi4, openmpi5, spectrum, mpich or intel"
        raise error("program-missing", "no mpirun or mpiexec in a folder of PATH", hint=hint)
    return found


def _facts_of(host: Host, saved: tuple[PodFacts, ...]) -> PodFacts | None:
    short = host.name.partition(".")[0]
    return next((facts for facts in saved if facts.hostname in (short, host.name)), None)


def _worker(host: Host, facts: PodFacts, port: int) -> Worker:
    user = host.user or facts.identity.user
    return Worker(host, facts.control_address, port, user, "", facts, facts.mpi)
