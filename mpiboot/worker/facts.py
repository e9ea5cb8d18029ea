"""``mpiboot facts``: what is observed in this pod, for a person, for JSON, for the launcher."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from mpiboot import __version__
from mpiboot.core import facts_json, log
from mpiboot.core.errors import MpibootError, error
from mpiboot.core.fabric import Fabric, Route
from mpiboot.core.model import Mpi, MpiParameter, PodFacts
from mpiboot.core.setting_sources import Resolved
from mpiboot.job import masking
from mpiboot.job.forward import SEARCH_PATHS
from mpiboot.network import links, platform_hints, pod
from mpiboot.network import service_mesh as meshes
from mpiboot.network.nccl import CHECKED
from mpiboot.system import files, programs, worker_state
from mpiboot.worker import facts_text, parameter_files


def gather(
    resolved: Resolved,
    environ: Mapping[str, str],
    *,
    sshd: str,
    pid: int,
    mpi: Mpi | None,
) -> PodFacts:
    """Observe everything; what can't be seen is empty, never an error.

    ``pid`` is the pod's first mpiboot, whose start and environment are the pod's own.
    """
    # Loaded late, as what it needs is.
    from mpiboot.network import gpus  # noqa: PLC0415
    from mpiboot.system import process_memory  # noqa: PLC0415

    seen, routes, odd = links.observe()
    control, _ = pod.control_address(
        resolved.settings.control_ifname, socket.gethostname(), api=environ.get(pod.API, "")
    )
    return PodFacts(
        hostname=socket.gethostname(),
        mpiboot=__version__,
        identity=pod.identity(environ),
        runtime_dir=environ.get("MPIBOOT_WORKER_DIR", ""),
        control_address=control,
        links=seen,
        mpi=mpi,
        sshd=sshd,
        started=pod.started(pid),
        cores=len(os.sched_getaffinity(0)),
        memlock=pod.memlock(),
        shm=pod.shm_size(),
        environment=pod.spec_names(pid),
        fabric=_fabric(environ, routes, odd),
        mesh=platform_hints.service_mesh(),
        memory_refused=process_memory.refused(),
        gpus=gpus.seen(search=environ.get("PATH", "")),
        cpus=pod.cpus(os.sched_getaffinity(0)),
        parameters=tuple(map(_masked, parameter_files.find(mpi, environ) if mpi else ())),
        search_paths=tuple((name, environ[name]) for name in SEARCH_PATHS if environ.get(name)),
    )


def _masked(item: MpiParameter) -> MpiParameter:
    """Hide what a file gives to secrets, as in a list of variables: facts travel, and are shown."""
    return replace(item, value=masking.mask_within(item.variable, item.value))


def _fabric(
    environ: Mapping[str, str], routes: tuple[Route, ...], unread: tuple[str, ...]
) -> Fabric:
    # Loaded late: a launcher has other things to do first.
    from mpiboot.network import platform_hints, rdma  # noqa: PLC0415

    seen = rdma.observe()
    said, odd = platform_hints.attachments(environ)
    checked = tuple((name, environ[name]) for name in CHECKED if name in environ)
    return replace(
        seen,
        settings=checked,
        routes=routes,
        attachments=said,
        unreadable=(*unread, *seen.unreadable, *odd),
    )


def run(resolved: Resolved, environ: Mapping[str, str], *, as_json: bool, path: str | None) -> None:
    """Print the facts, or write them as JSON to a private file that appears whole.

    Args:
        resolved: the settings.
        environ: the pod's environment.
        as_json: print JSON.
        path: a file in the folder of a running worker to write instead; that worker is the pod's
            first mpiboot.
    """
    mpi = programs.detect_mpi(environ, patience=programs.LONG if path else programs.SHORT)
    if not path:
        state = _worker(resolved, environ)
        sshd, pid = (state.sshd, state.pid) if state else ("", 1)
        found = gather(resolved, environ, sshd=sshd, pid=pid, mpi=mpi)
        found = replace(found, sshd_because=state.because if state else "")
        sys.stdout.write(facts_json.to_json(found) + "\n" if as_json else facts_text.facts(found))
        return
    state = worker_state.worker_state(Path(path).parent)
    pid, sshd = (state.pid, state.sshd) if state else (os.getppid(), "")
    found = gather(resolved, environ, sshd=sshd, pid=pid, mpi=mpi)
    if found.mesh and state:
        settings = resolved.settings
        for item in meshes.findings({"this pod": found.mesh}, [state.port], settings.port_range):
            log.finding(item)
    # The ranks' sessions get what a profile has set as well as what the pod's specification has.
    names = tuple(sorted({*found.environment, *environ}))
    because = state.because if state else ""
    found = replace(found, environment=names, sshd_because=because)
    try:
        files.write_private(Path(path), facts_json.to_json(found))
    except MpibootError as wrong:
        hint = "name a file in a folder that this user may write: `mpiboot facts --write PATH`"
        raise error("runtime-folder", wrong.finding.said, hint=hint) from None


def _worker(resolved: Resolved, environ: Mapping[str, str]) -> worker_state.WorkerState | None:
    """Find the worker of mpiboot's that runs in this container; None where none does."""
    wanted, uid = resolved.settings.runtime_dir, os.getuid()
    folder = files.find_role(wanted, uid, "worker", environ.get("TMPDIR", ""))
    state = worker_state.worker_state(folder) if folder else None
    return state if state and os.path.exists(f"/proc/{state.pid}") else None  # noqa: PTH110
