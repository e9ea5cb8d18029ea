"""``mpiboot facts``: what this pod observes of itself, as JSON."""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mpiboot import __version__
from mpiboot.core import masking
from mpiboot.core.facts import Fabric, MpiParameter, PodFacts, facts_to_json
from mpiboot.core.model import Mpi
from mpiboot.core.settings import Resolved
from mpiboot.job import parameter_files
from mpiboot.job.forward import SEARCH_PATHS
from mpiboot.network import nccl, pod, rdma
from mpiboot.ssh.server import WorkerState, running_worker, worker_state
from mpiboot.system import files, programs
from mpiboot.system.processes import text

if TYPE_CHECKING:  # workers need no mpirun line
    from mpiboot.job.mpirun_line import UserLine


def gather(
    resolved: Resolved,
    environ: Mapping[str, str],
    *,
    mpi: Mpi | None,
    pid: int,
    state: WorkerState | None = None,
) -> PodFacts:
    """Gather this pod's facts; what can't be observed is empty, never an error.

    ``state`` is that of the worker that runs here, else ``pid`` the pod's first mpiboot process:
    it was started with the pod's environment.
    """
    from mpiboot.network import netlink  # noqa: PLC0415 - heavy: pyroute2

    seen, unread = netlink.observe()
    control, _ = pod.control_address(
        resolved.settings.control_ifname, socket.gethostname(), api=environ.get(pod.API, "")
    )
    return PodFacts(
        hostname=socket.gethostname(),
        mpiboot=__version__,
        identity=pod.identity(environ),
        control_address=control,
        links=seen,
        mpi=mpi,
        sshd=state.sshd if state else "",
        sshd_reason=state.reason if state else "",
        memlock=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],  # -1: unlimited
        shm=pod.shm_size(),
        environment=pod.spec_names(state.pid if state else pid),
        fabric=_fabric(environ, unread),
        memory_refused=memory_refused(),
        gpus=rdma.gpus(),
        cpus=pod.cpus(os.sched_getaffinity(0)),
        parameters=tuple(map(_masked, find_parameters(mpi, environ) if mpi else ())),
        search_paths=tuple((name, environ[name]) for name in SEARCH_PATHS if environ.get(name)),
        program=_mpiboot_program(environ.get("PATH", "")),
        node=text(Path("/proc/sys/kernel/random/boot_id")),
    )


def _mpiboot_program(path: str) -> str:
    """Find mpiboot in the bin folder of its own Python; empty if PATH has an mpiboot."""
    program = str(Path(sys.executable).parent.parent / "bin" / "mpiboot")
    return "" if shutil.which("mpiboot", path=path) else shutil.which(program) or ""


def _masked(item: MpiParameter) -> MpiParameter:
    """Mask secrets, as in variables: facts are sent to the launcher, and printed."""
    return replace(item, value=masking.mask_within(item.variable, item.value))


def _fabric(environ: Mapping[str, str], unread: tuple[str, ...]) -> Fabric:
    seen = rdma.observe()
    checked = tuple((name, environ[name]) for name in nccl.CHECKED if name in environ)
    return replace(
        seen,
        settings=checked,
        nccl_files=_nccl_files(environ),
        functions=rdma.given_functions(environ),
        unreadable=(*unread, *seen.unreadable),
    )


def _nccl_files(environ: Mapping[str, str]) -> tuple[MpiParameter, ...]:
    found: dict[str, MpiParameter] = {}
    for path in nccl.conf_files(environ, pod.identity(environ).home):
        for name, value in nccl.read_conf(text(Path(path))).items():
            if name not in environ:
                found.setdefault(name, MpiParameter(name, value, path))
    return tuple(found.values())


def run(resolved: Resolved, environ: Mapping[str, str], *, as_json: bool) -> None:
    """Print the facts, with ``as_json`` on one line."""
    state = running_worker(resolved.settings.runtime_dir, environ)
    mpi = programs.detect_mpi(environ, patience=programs.SHORT)
    found = gather(resolved, environ, mpi=mpi, pid=1, state=state)
    shown = json.dumps(json.loads(facts_to_json(found)), indent=None if as_json else 2)
    sys.stdout.write(f"{shown}\n")


def write(resolved: Resolved, environ: Mapping[str, str], path: Path) -> None:
    """Write a worker's facts to a private file of its folder, atomically, in a child of its."""
    mpi, state = programs.detect_mpi(environ, patience=programs.LONG), worker_state(path.parent)
    found = gather(resolved, environ, mpi=mpi, pid=os.getppid(), state=state)
    # Ranks' sessions get the profile's variables as well as the pod spec's.
    found = replace(found, environment=tuple(sorted({*found.environment, *environ})))
    files.write_private(path, facts_to_json(found))


def find_parameters(
    mpi: Mpi, environ: Mapping[str, str], line: UserLine | None = None
) -> tuple[MpiParameter, ...]:
    """Read the MPI's parameter files, highest precedence first; a missing file has none."""
    if not parameter_files.names(mpi.family):
        return ()
    home = environ.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 - like mpirun
    found = []
    etc = _folder(mpi, environ)
    for path, prefix in parameter_files.paths(mpi.family, line, environ, etc=etc, home=home):
        for name, value in parameter_files.read(text(Path(path))).items():
            found.append(MpiParameter(f"{prefix}{name}", value, path))
    return tuple(found)


def _folder(mpi: Mpi, environ: Mapping[str, str]) -> str:
    """Find the folder of the MPI's own files; ompi_info, which takes 0.3 s, comes last."""
    paths = (mpi.path, os.path.realpath(mpi.path))
    folders = dict.fromkeys(
        folder for path in paths for folder in parameter_files.folders(path, environ)
    )
    names = parameter_files.names(mpi.family)
    for folder in folders:
        if any(os.path.exists(f"{folder}/{name}") for name in names):  # noqa: PTH110 - light
            return folder
    return programs.config_folder(mpi, environ)


def memory_refused() -> str:
    """Give the error of process_vm_readv (CMA); empty if it works, or that is unknown.

    Ranks on one host read each other's memory for large messages. Open MPI's vader and sm don't
    test the call: where a container's seccomp profile denies it, every large message fails with
    `Read -1, expected N, errno = 1` (open-mpi/ompi issue 4948). The test reads one byte of a
    forked child.
    """
    import ctypes  # noqa: PLC0415 - only here

    try:
        read = ctypes.CDLL(None, use_errno=True).process_vm_readv
        reader, writer = os.pipe()
        copy = os.fork()
    except (OSError, AttributeError):  # no such call, or fork failed
        return ""
    if not copy:
        os.close(writer)
        os.read(reader, 1)  # until the parent has read this process
        os._exit(0)
    byte, one = ctypes.create_string_buffer(1), ctypes.c_ulong(1)
    piece = ctypes.byref((ctypes.c_size_t * 2)(ctypes.addressof(byte), 1))  # both iovecs
    got = read(copy, piece, one, piece, one, ctypes.c_ulong())
    refused = "" if got == 1 else os.strerror(ctypes.get_errno())
    os.close(reader)
    os.close(writer)
    os.waitpid(copy, 0)
    return refused
