"""A rank, made of the lines that the kernel and its own environment say of its process. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from mpiboot.core.addresses import address_of
from mpiboot.doctor.ranks import calls
from mpiboot.doctor.ranks.records import Activity, Look, MpiStage, Rank, SilentConnection
from mpiboot.job import masking

# Below this share of a core a rank that sleeps at both looks does nothing.
_WORKS: Final = 0.05
# Which of Linux' states (proc_pid_stat(5)) say by themselves what a process does.
_STATES: Final = {
    "T": Activity.STOPPED,
    "t": Activity.TRACED,
    "D": Activity.KERNEL,
    "Z": Activity.ENDED,
    "X": Activity.ENDED,
}
_NUMBERS: Final = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
_SIZES: Final = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "busybox"})
_DEVICE: Final = re.compile(r"/dev/(nvidia\d+|infiniband/\w+|kfd|dri/renderD\d+)")
# Columns of /proc/PID/stat behind the name (proc_pid_stat(5), whose field 3 is our 0).
_STATE, _PARENT, _USER, _SYSTEM, _THREADS, _START, _RSS = 0, 1, 11, 12, 17, 19, 21
# Columns of a row of /proc/net/tcp.
_OWN, _FAR, _HOW, _TIMES, _INODE = 1, 2, 3, 6, 9
_SYN_SENT: Final = "02"


@dataclass(slots=True)
class ProcessLines:
    """The lines of one process, while they are read."""

    pid: int
    values: dict[str, str] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    stack: list[str] = field(default_factory=list)
    closed: set[str] = field(default_factory=set)

    @property
    def number(self) -> int | None:
        """The rank's number; None where the process has ended meanwhile."""
        found = (self.environ.get(name, "") for name in _NUMBERS)
        return next((int(text) for text in found if is_number(text)), None)

    @property
    def job(self) -> str:
        """What all ranks of one launch have and no others."""
        names = ("MPIBOOT_JOB_MARK", "PMIX_NAMESPACE")
        return " ".join(filter(None, (self.environ.get(name, "") for name in names)))

    @property
    def program(self) -> str:
        """The file's name; of Python the script's."""
        name = self.values.get("exe", "").removesuffix(" (deleted)").rpartition("/")[2]
        if name.startswith("python"):
            script = next((word for word in self.words[1:] if not word.startswith("-")), "")
            return f"{name} {script.rpartition('/')[2]}".strip()
        return name


@dataclass(frozen=True, slots=True)
class Machine:
    """What the reading of each rank of a host needs: its answer's lines that are no rank's own."""

    host: str
    name: str
    ticks: int
    page: int
    looks: tuple[Look, Look]
    verbs: Mapping[str, str]
    served: frozenset[str]
    unanswered: Iterable[str]


def one_a_rank(processes: Iterable[ProcessLines], look: Look) -> list[ProcessLines]:
    """Choose one of each rank's processes: the first that has MPI, else the first that is no shell.

    A wrapper's child, a data loader and a shell all have the rank's number.
    """
    groups: dict[tuple[str, int], list[ProcessLines]] = {}
    for process in processes:
        if process.number is not None and process.pid in look.stats:
            groups.setdefault((process.job, process.number), []).append(process)
    chosen = []
    for group in groups.values():
        with_mpi = [item for item in group if "mpi" in item.values]
        no_shell = [item for item in group if item.program not in _SHELLS]
        left = with_mpi or no_shell or group
        pids = {item.pid for item in left}
        tops = [item for item in left if _parent(item, look) not in pids]
        chosen.append(min(tops or left, key=lambda item: item.pid))
    return chosen


def _parent(process: ProcessLines, look: Look) -> int:
    cells = look.stats[process.pid].split()
    return int(cells[_PARENT]) if len(cells) > _PARENT and is_number(cells[_PARENT]) else 0


def rank_of(process: ProcessLines, machine: Machine) -> Rank:
    """Make the record of a rank."""
    before, now = (look.stats.get(process.pid, "").split() for look in machine.looks)
    first, last = (look.uptime for look in machine.looks)
    used, used_before = _ticks(now) / machine.ticks, _ticks(before) / machine.ticks
    age = last - _cell(now, _START) / machine.ticks
    cpu = (used - used_before) / (last - first) if before and last > first else None
    call, file = _call(process, machine.name)
    sizes = (process.environ.get(name, "") for name in _SIZES)
    local = process.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "")
    return Rank(
        process.number or 0,
        machine.host,
        process.pid,
        process.job,
        next((int(text) for text in sizes if is_number(text)), 0),
        int(local) if is_number(local) else 0,
        process.program,
        " ".join(masking.masked_words(process.words)),
        _activity(before, now, cpu),
        _stage(process, machine.served),
        cpu,
        used / age if age > 0 else None,
        _cell(now, _RSS) * machine.page,
        _cell(now, _THREADS),
        first_number([process.values.get("running", "")], 0),
        call,
        file,
        process.values.get("wchan", "").removeprefix("0"),
        tuple(sorted({_device(path, machine.verbs) for path in process.files} - {""})),
        tuple(_unanswered(machine.unanswered, process.files)),
        tuple(process.stack),
    )


def _activity(before: list[str], now: list[str], cpu: float | None) -> Activity:
    states = {cells[_STATE] for cells in (before, now) if cells}
    state = now[_STATE] if now else ""
    if states == {state} and state in _STATES:
        return _STATES[state]
    return Activity.BUSY if "R" in states or (cpu or 0.0) >= _WORKS else Activity.WAITS


def _stage(process: ProcessLines, served: frozenset[str]) -> MpiStage:
    """Tell how far a rank is in MPI, by what it holds open.

    Open MPI's ranks are connected with their daemon (PMIx) from MPI_Init to MPI_Finalize. Its event
    loop and MPICH's are an epoll; what both leave behind of shared memory they have after
    MPI_Finalize too. Before MPI_Init there is none of these. Tried with Open MPI 4.1 and 5.0 and
    MPICH 5.0.
    """
    if "fd" in process.closed:
        return MpiStage.UNKNOWN
    waits = any("eventpoll" in path for path in process.files)
    by_pmix = any(name.startswith("PMIX_SERVER_URI") for name in process.environ)
    if by_pmix and served.intersection(process.files):
        return MpiStage.INSIDE
    if not by_pmix and waits:
        return MpiStage.INSIDE
    if waits or any(path.startswith("/dev/shm/") for path in process.files):  # noqa: S108
        return MpiStage.LEFT
    return MpiStage.BEFORE


def _call(process: ProcessLines, machine: str) -> tuple[str, str]:
    """Name the system call and its file; both empty where it runs, or where nothing is known."""
    number = process.values.get("syscall", "").partition(" ")[0]
    if not is_number(number):
        return "", ""
    name = calls.name(machine, int(number))
    return name, process.values.get("file", "") if name in calls.WITH_FILE else ""


def _device(path: str, verbs: Mapping[str, str]) -> str:
    """Name a GPU or HCA; empty for what is none."""
    found = _DEVICE.fullmatch(path)
    if not found:
        return ""
    name = found[1].rpartition("/")[2]
    return "" if name == "rdma_cm" else verbs.get(name, name)


def sockets(rows: Iterable[str]) -> frozenset[str]:
    """Name the sockets of rows of /proc/net/tcp, as /proc/PID/fd has them."""
    cells = (row.split() for row in rows)
    return frozenset(f"socket:[{row[_INODE]}]" for row in cells if len(row) > _INODE)


def _unanswered(rows: Iterable[str], files: Iterable[str]) -> Iterable[SilentConnection]:
    own = set(files)
    for cells in (row.split() for row in rows):
        if len(cells) <= _INODE or f"socket:[{cells[_INODE]}]" not in own:
            continue
        near, far = cells[_OWN].partition(":")[0], cells[_FAR].partition(":")
        try:
            port, times = int(far[2], 16), int(cells[_TIMES], 16)
            ends = address_of(near), address_of(far[0])
        except (ValueError, OSError):
            continue
        yield SilentConnection(*ends, port, times, cells[_HOW] == _SYN_SENT)


def _ticks(cells: list[str]) -> int:
    return _cell(cells, _USER) + _cell(cells, _SYSTEM)


def _cell(cells: list[str], at: int) -> int:
    return int(cells[at]) if len(cells) > at and is_number(cells[at]) else 0


def first_number(rows: Iterable[str], otherwise: int) -> int:
    """Read the first number of these; another where none is."""
    return next((int(row) for row in rows if is_number(row)), otherwise)


def is_number(text: str) -> bool:
    """Tell digits from other text."""
    return text.isascii() and text.isdigit()
