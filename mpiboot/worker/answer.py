"""What a launcher queries of a pod by the pod's own mpiboot: one JSON record, and no wait.

``counts NAME...``, ``ranks LAUNCH`` or ``lacks PROGRAM PATHS FOLDER``. A copy of the worker answers
its sessions, also ``look``: it gathers the worker's facts anew. Elsewhere a new process does.
``stop NUMBER MARK`` is no query: a process of its own signals ranks and counts those that are left.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

from mpiboot.core import log
from mpiboot.core.launch_spec import LAUNCH_ID, RECORD_VERSION, find_launches
from mpiboot.system import processes
from mpiboot.system.processes import RunningProcess

NUMBERS: Final = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
_DEVICES: Final = Path("/sys/class/infiniband")
_MAX_MAPS: Final = 16  # of ranks, which are alike
_LIBRARY: Final = re.compile(r"/(lib(?:mpi|mpich)\.so\.\d+)")
_PMIX: Final = "PMIX_SERVER_URI"
_REPLY_S: Final = 60  # an answer that nobody reads

Record: TypeAlias = "dict[str, Any]"  # some fields of facts.HostAnswer


def counts(*names: str) -> Record:
    """Count memory kills, each link's bytes, and what RDMA ports count under these names.

    With ``launches`` among them find those, too; an earlier worker passes over that name.
    """
    found = processes.link_counters()
    for path in _DEVICES.glob("*/ports/*/*counters/*") if names else ():
        device, _, port, _, name = path.parts[-5:]
        # A port whose counters this pod lacks has none.
        with suppress(OSError, ValueError):
            if name in names:
                found.setdefault(f"{device}:{port}", {})[name] = int(path.read_text("ascii"))
    more = launches() if "launches" in names else {}
    return {"oom_kills": processes.memory_kills(), "counters": found, **more}


def launches() -> Record:
    """Find launches that have processes here, and those whose launcher is connected.

    All files of all processes are read for that: no query of a job's end has the time.
    """
    environs = [one for one in processes.environments() if LAUNCH_ID in one]
    sockets = processes.sockets("ESTABLISHED") if environs else ()
    ports = {(f"{one.laddr.port}", f"{one.raddr.port}") for one in sockets if one.raddr}
    own = os.environ.get("SSH_CONNECTION", "")
    found, held = find_launches(environs, own, ports)
    return {"launches": found, "held": held}


def ranks(launch: str) -> Record:
    """Count a launch's ranks; None where none of its processes is seen.

    Of some the MPI libraries that they have loaded are named, with ``connected`` where one is
    connected to its daemon by PMIx, as an MPICH or Intel MPI that has it may be under Open MPI.
    """
    environs = {pid: processes.environ(pid) for pid in processes.pids()}
    found = {pid: values for pid, values in environs.items() if values.get(LAUNCH_ID) == launch}
    numbers = {next(filter(None, map(one.get, NUMBERS)), None) for one in found.values()} - {None}
    libraries = set[str]()
    for pid in list(found)[:_MAX_MAPS]:
        libraries.update(_LIBRARY.findall(processes.text(Path(f"/proc/{pid}/maps"))))
    peers = {item.raddr.port for item in processes.sockets("ESTABLISHED") if item.raddr}
    if _servers(found.values()) & peers:
        libraries.add("connected")
    return {"ranks": len(numbers) if found else None, "libraries": sorted(libraries)}


def _servers(environs: Iterable[Mapping[str, str]]) -> set[int]:
    """Give the ports of the daemons that serve these ranks by PMIx."""
    uris = (value for one in environs for name, value in one.items() if name.startswith(_PMIX))
    ports = (uri.rpartition(":")[2] for uri in uris)
    return {int(port) for port in ports if port.isdecimal()}


def lacks(program: str, paths: str, folder: str) -> Record:
    """Find what keeps a program from running, from a folder if this host has it.

    A name is searched in ``paths``, the launcher's PATH, which ranks may have, and in this one.
    """
    if "/" not in program:
        found = shutil.which(program, path=f"{os.environ.get('PATH', '')}:{paths}")
        return {"lacks": [] if found else [("name", program)]}
    has_folder = os.path.isdir(folder) and os.access(folder, os.X_OK)  # noqa: PTH112 - raises nothing
    path = os.path.join(folder if has_folder else os.path.expanduser("~"), program)  # noqa: PTH111,PTH118
    if os.path.isfile(path) and os.access(path, os.X_OK):  # noqa: PTH113
        return {"lacks": []}
    if not has_folder and not program.startswith("/"):
        return {"lacks": [("folder", folder)]}
    return {"lacks": [("right" if os.path.exists(path) else "file", program)]}  # noqa: PTH110


# A shell, by the name of its program, and the signals that it catches: 1 << (number - 1).
_SHELL: Final = re.compile(
    r"Name:\t(?:sh|bash|dash|ash|ksh|mksh|zsh|busybox)\n.*^SigCgt:\t([0-9a-f]+)$",
    re.DOTALL | re.MULTILINE,
)


def stop_ranks(number: int, mark: str, folder: str) -> list[RunningProcess]:
    """Signal the ranks here to save and end; give the first process of each.

    That is the one whose parent is no rank's. It gets the signal, or where it is a shell that
    doesn't catch it, what runs below. Workers of a data loader go on, for who saves may need them.

    Args:
        number: of the signal.
        mark: a variable of the ranks' environment and how its value begins, ``NAME=VALUE``.
        folder: the worker's, where whom it signals notes that, so that each gets the signal once
            also where launcher and worker both do this; empty where there is no worker.
    """
    name, _, value = mark.partition("=")
    ranks = dict[int, RunningProcess]()
    for pid, item in processes.table().items():
        environ = processes.environ(pid)
        marked = environ.get(name, "").startswith(value)
        if marked and any(environ.get(number, "").isdecimal() for number in NUMBERS):
            ranks[pid] = item
    firsts = [item for item in ranks.values() if item.parent not in ranks]
    waiting = list(firsts)
    while waiting:
        item = waiting.pop()
        below = [one for one in ranks.values() if one.parent == item.pid]
        if below and _passes_on(item.pid, number):
            waiting += below
        elif not folder or _note(f"{folder}/signalled-{item.pid}-{item.identity}"):
            # A stopped process takes its signal only when it goes on.
            for each in (number, signal.SIGCONT):
                with suppress(OSError):
                    os.kill(item.pid, each)
    return firsts


def _passes_on(pid: int, number: int) -> bool:
    """Whether a process is a shell that doesn't catch a signal."""
    found = _SHELL.match(processes.text(Path(f"/proc/{pid}/status")))
    return found is not None and not int(found[1], 16) >> (number - 1) & 1


def _note(path: str) -> bool:
    """Make a folder; False where somebody has made it. A full disk keeps no signal back."""
    try:
        os.mkdir(path, 0o700)  # noqa: PTH102 - of two at once one makes it
    except OSError as why:
        return not isinstance(why, FileExistsError)
    return True


def running(found: Iterable[RunningProcess]) -> list[RunningProcess]:
    """Give those of these processes that have not ended."""
    now = ((item, processes.find(item.pid)) for item in found)
    return [item for item, same in now if same and same.identity == item.identity]


def stop(number: str, mark: str) -> None:
    """Signal ranks, and print how many are left: at once, and again for each line on stdin."""
    left = stop_ranks(int(number), mark, os.environ.get("MPIBOOT_WORKER_DIR", ""))
    with suppress(BrokenPipeError):  # a failure would have the shell signal them once more
        while os.write(1, f"ranks {len(left)}\n".encode()) and left and sys.stdin.readline():
            left = running(left)


_QUERIES: Final[Mapping[str, Callable[..., Record]]] = {
    "counts": counts,
    "ranks": ranks,
    "lacks": lacks,
}


def answer(query: Sequence[str], **more: Callable[..., Record]) -> str:
    """Answer a query, of those here or of ``more``: JSON on one line."""
    name, *words = query
    return json.dumps({"version": RECORD_VERSION, **{**_QUERIES, **more}[name](*words)})


def reply(folder: Path, pid: int, **more: Callable[..., Record]) -> None:
    """Answer the shell of a session, a process of that number, by its FIFO in this folder."""
    found = ""
    try:
        _, _, *words = processes.command(pid)
        os.environ.update(processes.environ(pid))
        found = answer(words, **more)
    except Exception as error:  # noqa: BLE001 - the shell waits for a line
        log.failed("a launcher's query", error)
    signal.alarm(_REPLY_S)
    write(folder, pid, found)


def write(folder: Path, pid: int, line: str) -> None:
    """Write the line that a session's shell waits for; one that is gone isn't waited for.

    Raises:
        OSError: the shell is gone.
    """
    # Not by a name that may be gone with the shell: it would be made anew, as a file.
    flags = os.O_WRONLY | os.O_NONBLOCK
    with open(os.open(folder / f"reply-{pid}", flags), "w", encoding="utf-8") as fifo:  # noqa: PTH123
        os.set_blocking(fifo.fileno(), True)
        fifo.write(f"{line}\n")


if __name__ == "__main__":
    if sys.argv[1] == "stop":
        stop(*sys.argv[2:])
    else:
        sys.stdout.write(answer(sys.argv[1:]))
