"""``mpiboot facts``: what is observed in this pod, for a person, for JSON, for the launcher."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mpiboot import __version__
from mpiboot.core import log, masking
from mpiboot.core.checks import MpibootError, error
from mpiboot.core.facts import Fabric, MpiParameter, PodFacts, facts_to_json
from mpiboot.core.model import Mpi
from mpiboot.core.settings import Resolved
from mpiboot.job import parameter_files
from mpiboot.job.forward import SEARCH_PATHS
from mpiboot.network import nccl, pod, rdma
from mpiboot.system import files, programs
from mpiboot.worker.role import running_worker, worker_state

if TYPE_CHECKING:  # a worker has no line
    from mpiboot.job.mpirun_line import UserLine


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
    from mpiboot.network import netlink  # noqa: PLC0415 - loaded late, as what it needs is

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
        sshd=sshd,
        memlock=pod.memlock(),
        shm=pod.shm_size(),
        environment=pod.spec_names(pid),
        fabric=_fabric(environ, unread),
        memory_refused=memory_refused(),
        gpus=rdma.gpus(),
        cpus=pod.cpus(os.sched_getaffinity(0)),
        parameters=tuple(map(_masked, find_parameters(mpi, environ) if mpi else ())),
        search_paths=tuple((name, environ[name]) for name in SEARCH_PATHS if environ.get(name)),
        program=_mpiboot_program(environ.get("PATH", "")),
        node=rdma.text(Path("/proc/sys/kernel/random/boot_id")),
    )


def _mpiboot_program(path: str) -> str:
    """Find mpiboot beside its own Python, in bin; empty where the PATH leads to one."""
    program = str(Path(sys.executable).parent.parent / "bin" / "mpiboot")
    return "" if shutil.which("mpiboot", path=path) else shutil.which(program) or ""


def _masked(item: MpiParameter) -> MpiParameter:
    """Hide what a file gives to secrets, as in a list of variables: facts travel, and are shown."""
    return replace(item, value=masking.mask_within(item.variable, item.value))


def _fabric(environ: Mapping[str, str], unread: tuple[str, ...]) -> Fabric:
    # Loaded late: a launcher has other things to do first.
    from mpiboot.network import rdma  # noqa: PLC0415

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
        for name, value in nccl.read_conf(rdma.text(Path(path))).items():
            if name not in environ:
                found.setdefault(name, MpiParameter(name, value, path))
    return tuple(found.values())


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
    if path:
        state, pid = worker_state(Path(path).parent), os.getppid()
    else:
        state, pid = running_worker(resolved.settings.runtime_dir, environ), 1
    sshd, reason, pid = (state.sshd, state.reason, state.pid) if state else ("", "", pid)
    found = gather(resolved, environ, sshd=sshd, pid=pid, mpi=mpi)
    found = replace(found, sshd_reason=reason)
    if not path:
        width = log.width(1)
        shown = facts_to_json(found) + "\n" if as_json else as_text(found, width)
        sys.stdout.write(shown)
        return
    # The ranks' sessions get what a profile has set as well as what the pod's specification has.
    found = replace(found, environment=tuple(sorted({*found.environment, *environ})))
    try:
        files.write_private(Path(path), facts_to_json(found))
    except MpibootError as wrong:
        hint = "name a file in a folder that this user may write: `mpiboot facts --write PATH`"
        raise error("runtime-folder", wrong.finding.message, hint=hint) from None


def find_parameters(
    mpi: Mpi, environ: Mapping[str, str], line: UserLine | None = None
) -> tuple[MpiParameter, ...]:
    """Read all of them, the strongest first; a file that isn't there has none."""
    if not parameter_files.names(mpi.family):
        return ()
    home = environ.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 - as mpirun has it
    found = []
    etc = _folder(mpi, environ)
    for path, prefix in parameter_files.paths(mpi.family, line, environ, etc=etc, home=home):
        for name, value in parameter_files.read(rdma.text(Path(path))).items():
            found.append(MpiParameter(f"{prefix}{name}", value, path))
    return tuple(found)


def _folder(mpi: Mpi, environ: Mapping[str, str]) -> str:
    """Find the folder that has the installation's files; ompi_info takes a third of a second."""
    paths = (mpi.path, os.path.realpath(mpi.path))
    folders = dict.fromkeys(
        folder for path in paths for folder in parameter_files.folders(path, environ)
    )
    names = parameter_files.names(mpi.family)
    for folder in folders:
        if any(os.path.exists(f"{folder}/{name}") for name in names):  # noqa: PTH110 - light
            return folder
    return programs.config_folder(mpi, environ)


def as_text(found: PodFacts, width: int | None = None) -> str:
    """Lay a pod's facts out for a person, by the names that they have in JSON.

    Records of a list are counted from 0; what is empty is left out. ``width`` is a terminal's.
    """
    from mpiboot.job.render import table  # noqa: PLC0415 - only for people

    rows = _rows("", json.loads(facts_to_json(found)))
    return table(("fact", "value"), rows, width=width)


def _rows(name: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _rows(f"{name}.{key}" if name else key, item)
    elif value not in ("", None, []):
        yield name, _cell(value)


def _cell(value: object) -> str:
    """Write a value, or several, and pairs as a variable and its value."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, list):
        return str(value)
    return " ".join("=".join(item) if isinstance(item, list) else str(item) for item in value)


def memory_refused() -> str:
    """Give the kernel's error for reading another process's memory; empty where it may be read.

    Ranks of one host do that for large messages, and Open MPI's shared memory (vader, sm) calls
    process_vm_readv without having tried it: where a container's seccomp profile refuses it, every
    large message ends with `Read -1, expected N, errno = 1` (open-mpi/ompi issue 4948). Here a byte
    of a copy of this process is read. Empty where that is unknown, too.
    """
    import ctypes  # noqa: PLC0415 - for a worker's facts alone

    try:
        read = ctypes.CDLL(None, use_errno=True).process_vm_readv
        reader, writer = os.pipe()
        copy = os.fork()
    except (OSError, AttributeError):  # no such call in this C library, no room for a process
        return ""
    if not copy:
        os.close(writer)
        os.read(reader, 1)  # until it was looked at
        os._exit(0)
    byte, one = ctypes.create_string_buffer(1), ctypes.c_ulong(1)
    piece = ctypes.byref((ctypes.c_size_t * 2)(ctypes.addressof(byte), 1))  # iovec, alike in both
    got = read(copy, piece, one, piece, one, ctypes.c_ulong())
    refused = "" if got == 1 else os.strerror(ctypes.get_errno())
    os.close(reader)
    os.close(writer)
    os.waitpid(copy, 0)
    return refused
