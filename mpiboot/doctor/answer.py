"""What a launcher queries of a host by the host's own mpiboot: one JSON record, and no wait.

Run as a program, by the worker's script or the launcher's path of Python: ``ranks LAUNCH`` or
``lacks PROGRAM PATHS FOLDER``.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from mpiboot.core.launch_spec import LAUNCH_ID
from mpiboot.core.model import write_records
from mpiboot.doctor.ranks import NUMBERS, number_in
from mpiboot.hosts.host_shell import RECORD_VERSION, HostRecord
from mpiboot.network.rdma import text
from mpiboot.system import processes

_PROC: Final = Path("/proc")
_MAX_MAPS: Final = 16  # of ranks, which are alike
_LIBRARY: Final = re.compile(r"/(lib(?:mpi|mpich)\.so\.\d+)")
_PMIX: Final = "PMIX_SERVER_URI"


def ranks(launch: str) -> HostRecord:
    """Count a launch's ranks; None where none of its processes is seen.

    Of some the MPI libraries that they have loaded are named, with ``connected`` where one is
    connected to its daemon by PMIx, as an MPICH or Intel MPI that has it may be under Open MPI.
    """
    environs = {pid: processes.environ(pid) for pid in processes.pids()}
    found = {pid: values for pid, values in environs.items() if values.get(LAUNCH_ID) == launch}
    numbers = {number_in(environ, NUMBERS) for environ in found.values()} - {None}
    libraries = set[str]()
    for pid in list(found)[:_MAX_MAPS]:
        libraries.update(_LIBRARY.findall(text(_PROC / str(pid) / "maps")))
    peers = {item.raddr.port for item in processes.sockets("ESTABLISHED") if item.raddr}
    if _servers(found.values()) & peers:
        libraries.add("connected")
    return HostRecord(ranks=len(numbers) if found else None, libraries=tuple(sorted(libraries)))


def _servers(environs: Iterable[Mapping[str, str]]) -> set[int]:
    """Give the ports of the daemons that serve these ranks by PMIx."""
    uris = (value for one in environs for name, value in one.items() if name.startswith(_PMIX))
    ports = (uri.rpartition(":")[2] for uri in uris)
    return {int(port) for port in ports if port.isdecimal()}


def lacks(program: str, paths: str, folder: str) -> HostRecord:
    """Find what keeps a program from running, from a folder if this host has it.

    A name is searched in ``paths``, the launcher's PATH, which ranks may have, and in this one.
    """
    if "/" not in program:
        found = shutil.which(program, path=f"{os.environ.get('PATH', '')}:{paths}")
        return HostRecord(lacks=() if found else (("name", program),))
    has_folder = os.path.isdir(folder) and os.access(folder, os.X_OK)  # noqa: PTH112 - raises nothing
    path = os.path.join(folder if has_folder else os.path.expanduser("~"), program)  # noqa: PTH111,PTH118
    if os.path.isfile(path) and os.access(path, os.X_OK):  # noqa: PTH113
        return HostRecord()
    if not has_folder and not program.startswith("/"):
        return HostRecord(lacks=(("folder", folder),))
    return HostRecord(lacks=(("right" if os.path.exists(path) else "file", program),))  # noqa: PTH110


_QUERIES: Final[Mapping[str, Callable[..., HostRecord]]] = {
    "ranks": ranks,
    "lacks": lacks,
}


def main() -> None:
    """Answer the query of the command line."""
    name, *words = sys.argv[1:]
    found = replace(_QUERIES[name](*words), version=RECORD_VERSION)
    sys.stdout.write(write_records(found))


if __name__ == "__main__":
    main()
