"""What ``libexec/rank_questions`` printed of a host: its ranks, what they do, its links. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import IPv6Address
from typing import Final

from mpiboot.core.addresses import address_of
from mpiboot.job import masking


class Activity(Enum):
    """What a rank does, as far as that can be seen from outside."""

    BUSY = "busy"
    WAITS = "waits"
    KERNEL = "sleeps in the kernel"
    STOPPED = "stopped"
    TRACED = "held by a debugger"
    ENDED = "ended"


class MpiStage(Enum):
    """How far a rank has come in MPI."""

    BEFORE = "before MPI_Init"
    INSIDE = "in MPI"
    LEFT = "after MPI_Finalize"
    UNKNOWN = "not known"


@dataclass(frozen=True, slots=True)
class SilentConnection:
    """A TCP connection on which nobody acknowledges: its ends, and how often it was repeated.

    ``new`` tells that it was never made.
    """

    own: str
    far: str
    port: int
    times: int
    new: bool = False


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank: where it is, what it uses, what it does.

    ``job`` names the launch; ``size`` is how many ranks it has, ``local`` how many of them are to
    be on this host (0: not known). ``cpu`` and ``cpu_since`` are shares of one core, between the
    looks and since its start; None where they can't be told. ``memory`` is its resident memory in
    bytes, ``running`` the threads of ``threads`` that run. ``call`` is the system call in which it
    waits and ``file`` what that is for; ``place`` is the kernel's function (wchan). ``devices`` are
    the GPUs and HCAs that it holds open. ``stack`` is a Python rank's, in py-spy's words.
    """

    number: int
    host: str
    pid: int
    job: str = ""
    size: int = 0
    local: int = 0
    program: str = ""
    command: str = ""
    activity: Activity = Activity.BUSY
    stage: MpiStage = MpiStage.UNKNOWN
    cpu: float | None = None
    cpu_since: float | None = None
    memory: int = 0
    threads: int = 0
    running: int = 0
    call: str = ""
    file: str = ""
    place: str = ""
    devices: tuple[str, ...] = ()
    unanswered: tuple[SilentConnection, ...] = ()
    stack: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LinkRates:
    """A link or an RDMA port: bytes a second sent and received, None where that can't be told."""

    name: str
    sent: float | None = None
    received: float | None = None
    state: str = ""


@dataclass(frozen=True, slots=True)
class HostRanks:
    """The ranks of a host, its links, and what could not be read there.

    ``addresses`` are its own as far as they are known; ``seconds`` lay between the two
    looks; ``closed`` names what this user may not read, ``others`` counts processes of other users.
    """

    host: str
    ranks: tuple[Rank, ...] = ()
    links: tuple[LinkRates, ...] = ()
    seconds: float = 0.0
    closed: frozenset[str] = frozenset()
    others: int = 0
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a host: seconds of its clock, stat's columns by pid, bytes by link and port."""

    uptime: float = 0.0
    stats: Mapping[int, list[str]] = field(default_factory=dict)
    moved: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def _table(text: str) -> dict[int, str]:
    pairs = (item.split() for item in text.split(", "))
    return {int(number): name for number, name in pairs}


# The kernel's tables: arch/x86/entry/syscalls/syscall_64.tbl and, of aarch64, the generic one in
# include/uapi/asm-generic/unistd.h.
_X86_64: Final = _table(
    "0 read, 1 write, 2 open, 3 close, 4 stat, 5 fstat, 6 lstat, 7 poll, 16 ioctl, 17 pread, 18 "
    "pwrite, 19 readv, 20 writev, 23 select, 24 sched_yield, 34 pause, 35 nanosleep, 42 connect, "
    "43 accept, 44 sendto, 45 recvfrom, 46 sendmsg, 47 recvmsg, 61 wait4, 72 fcntl, 73 flock, 74 "
    "fsync, 75 fdatasync, 77 ftruncate, 130 rt_sigsuspend, 202 futex, 217 getdents, 219 "
    "restart_syscall, 230 clock_nanosleep, 232 epoll_wait, 247 waitid, 257 openat, 262 stat, 270 "
    "select, 271 poll, 281 epoll_wait, 285 fallocate, 332 statx"
)
_AARCH64: Final = _table(
    "22 epoll_wait, 25 fcntl, 29 ioctl, 32 flock, 46 ftruncate, 47 fallocate, 56 openat, 57 "
    "close, 61 getdents, 63 read, 64 write, 65 readv, 66 writev, 67 pread, 68 pwrite, 72 select, "
    "73 poll, 79 stat, 80 fstat, 82 fsync, 83 fdatasync, 95 waitid, 98 futex, 101 nanosleep, 115 "
    "clock_nanosleep, 124 sched_yield, 128 restart_syscall, 133 rt_sigsuspend, 202 accept, 203 "
    "connect, 206 sendto, 207 recvfrom, 211 sendmsg, 212 recvmsg, 260 wait4, 291 statx"
)
_TABLES: Final = {"x86_64": _X86_64, "aarch64": _AARCH64}

_OF_FILES: Final = (
    "read write close fstat pread pwrite readv writev fcntl flock fsync fdatasync ftruncate "
    "fallocate getdents"
)
_OF_SOCKETS: Final = "ioctl connect accept sendto recvfrom sendmsg recvmsg"
# Calls whose first argument is the open file that they are for.
WITH_FILE: Final = frozenset(f"{_OF_FILES} {_OF_SOCKETS}".split())
# Calls that ask a file system, also where no file is open yet.
FILE_SYSTEM_CALLS: Final = frozenset(f"{_OF_FILES} open openat stat lstat statx".split())
SLEEPS: Final = frozenset({"nanosleep", "clock_nanosleep", "pause", "rt_sigsuspend"})


def call_name(machine: str, number: int) -> str:
    """Name a call; where the table has none, by its number."""
    return _TABLES.get(machine, {}).get(number, f"system call {number}")


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
        tops = [item for item in left if _cell(look.stats[item.pid], _PARENT) not in pids]
        chosen.append(min(tops or left, key=lambda item: item.pid))
    return chosen


def rank_of(process: ProcessLines, machine: Machine) -> Rank:
    """Make the record of a rank."""
    before, now = (look.stats.get(process.pid, []) for look in machine.looks)
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
        tuple(dict.fromkeys(_unanswered(machine.unanswered, process.files))),
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
    name = call_name(machine, int(number))
    return name, process.values.get("file", "") if name in WITH_FILE else ""


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


BEGIN: Final = "mpiboot-ranks"
_LOOKS: Final = 2
# Of RDMA ports the kernel counts words of four bytes (Documentation/ABI, class infiniband).
_WORD: Final = 4
_PORT: Final = re.compile(r".*/infiniband/([^/]+)/ports/(\d+)/counters/port_(xmit|rcv)_data")
_FD: Final = re.compile(r"(\d+) -> (.*)")


def read(output: str, host: str, address: str = "") -> HostRanks | None:
    """Read a host's answer; None where this is none.

    Args:
        output: what was printed; lines of a login shell's own before it are passed over.
        host: the name by which it is told.
        address: its own on the control link, where that is known.
    """
    lines = output.splitlines()
    if BEGIN not in lines:
        return None
    values: dict[str, list[str]] = {}
    looks: list[list[str]] = []
    processes: list[ProcessLines] = []
    for line in lines[lines.index(BEGIN) + 1 :]:
        word, _, rest = line.partition(" ")
        if word == "look":
            looks.append([])
        elif word == "process" and is_number(rest):
            processes.append(ProcessLines(int(rest)))
        elif processes:
            _take(processes[-1], word, rest)
        elif looks and word in ("uptime", "stat", "link", "port"):
            looks[-1].append(line)
        else:
            values.setdefault(word, []).append(rest)
    if len(looks) != _LOOKS:
        return None
    first, second = (_look(item) for item in looks)
    return _host(host, address, values, (first, second), processes)


def _take(process: ProcessLines, word: str, rest: str) -> None:
    if word == "env":
        name, _, value = rest.partition("=")
        process.environ[name] = value
    elif word == "word":
        process.words.append(rest)
    elif word == "fd":
        found = _FD.fullmatch(rest)
        process.files += [found[2]] if found else []
    elif word == "stack":
        process.stack.append(rest)
    elif word == "closed":
        process.closed.add(rest)
    else:
        process.values[word] = rest


def _look(lines: Iterable[str]) -> Look:
    uptime, stats, moved = 0.0, {}, {}
    for line in lines:
        word, _, rest = line.partition(" ")
        if word == "uptime":
            uptime = float(rest) if re.fullmatch(r"\d+\.?\d*", rest) else 0.0
        elif word == "stat":
            pid, _, text = rest.partition(" ")
            if is_number(pid):
                stats[int(pid)] = text.rpartition(") ")[2].split()
        elif word == "link":
            name, _, text = rest.partition(":")
            cells = text.split()
            if len(cells) > 8 and is_number(cells[0]) and is_number(cells[8]):  # noqa: PLR2004
                moved[name] = (int(cells[8]), int(cells[0]))
        elif word == "port":
            path, _, count = rest.rpartition(" ")
            found = _PORT.fullmatch(path)
            if found and is_number(count):
                name = f"{found[1]}:{found[2]}"
                sent, received = moved.get(name, (0, 0))
                bytes_ = int(count) * _WORD
                moved[name] = (bytes_, received) if found[3] == "xmit" else (sent, bytes_)
    return Look(uptime, stats, moved)


def _host(
    host: str,
    address: str,
    values: Mapping[str, list[str]],
    looks: tuple[Look, Look],
    processes: list[ProcessLines],
) -> HostRanks:
    seconds = looks[1].uptime - looks[0].uptime
    machine = Machine(
        host,
        next(iter(values.get("machine", ())), ""),
        first_number(values.get("ticks", ()), 100),
        first_number(values.get("page", ()), 4096),
        looks,
        _by_folder(values.get("verbs", ())),
        sockets(values.get("served", ())),
        values.get("unanswered", ()),
    )
    states = _by_folder(values.get("state", ()))
    chosen = one_a_rank(processes, looks[1])
    closed = {item for process in chosen for item in process.closed}
    return HostRanks(
        host,
        tuple(sorted((rank_of(item, machine) for item in chosen), key=lambda item: item.number)),
        tuple(_links(looks, seconds, states)),
        seconds,
        frozenset(closed),
        len(values.get("unreadable", ())),
        tuple(dict.fromkeys([*([address] if address else []), *_addresses(values)])),
    )


def _addresses(values: Mapping[str, list[str]]) -> Iterable[str]:
    yield from (item for item in values.get("own", ()) if not item.startswith("127."))
    for word in values.get("own6", ()):
        if len(word) == 32 and int(word, 16) > 1:  # noqa: PLR2004 - of IPv6, and not ::1
            yield IPv6Address(int(word, 16)).compressed


def _links(
    looks: tuple[Look, Look], seconds: float, states: Mapping[str, str]
) -> Iterable[LinkRates]:
    for name, now in looks[1].moved.items():
        before = looks[0].moved.get(name)
        if name == "lo":
            continue
        state = states.get(name, "")
        if before is None or seconds <= 0 or now[0] < before[0] or now[1] < before[1]:
            yield LinkRates(name, state=state)
        else:
            sent, received = ((now[at] - before[at]) / seconds for at in (0, 1))
            yield LinkRates(name, sent, received, state)


def _by_folder(rows: Iterable[str]) -> dict[str, str]:
    """Read what files hold, each by the name of its folder."""
    cells = (row.partition(" ") for row in rows)
    return {path.split("/")[-2]: text for path, _, text in cells if "/" in path}
