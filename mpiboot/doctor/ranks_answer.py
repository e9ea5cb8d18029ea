"""Reads what ``libexec/rank_questions`` printed: a host's ranks, what they do, its links. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import IPv6Address
from typing import Final, TypeVar

from mpiboot.core import masking
from mpiboot.core.addresses import address_of
from mpiboot.core.wording import grouped


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
    """A TCP connection without acknowledgements: its ends, and how often data was sent again.

    ``new``: it was never established.
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
    looks and since its start; None where they are not known. ``memory`` is its resident memory in
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
    """A link or an RDMA port: bytes a second sent and received, None where that is not known."""

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
BEGIN: Final = "mpiboot-ranks"
# Of RDMA ports the kernel counts words of four bytes (Documentation/ABI, class infiniband).
_WORD: Final = 4
_PORT: Final = re.compile(r".*/infiniband/([^/]+)/ports/(\d+)/counters/port_(xmit|rcv)_data")
_Default = TypeVar("_Default", int, None)


@dataclass(slots=True, eq=False)
class ProcessLines:
    """The lines of one process, while they are read."""

    pid: int
    values: dict[str, str] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)
    lists: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def add(self, word: str, rest: str) -> None:
        """Read a line; only of some words there are several."""
        if word == "env":
            name, _, value = rest.partition("=")
            self.environ[name] = value
        elif word == "fd":
            path = rest.partition(" -> ")[2]
            self.lists["fd"] += [path] if path else []
        elif word in ("word", "stack", "closed"):
            self.lists[word].append(rest)
        else:
            self.values[word] = rest

    @property
    def number(self) -> int | None:
        """The rank's number; None where the process has ended meanwhile."""
        return number((self.environ.get(name, "") for name in _NUMBERS), None)

    @property
    def job(self) -> str:
        """What all ranks of one launch have in common, and no others."""
        names = ("MPIBOOT_LAUNCH_ID", "PMIX_NAMESPACE")
        return " ".join(filter(None, (self.environ.get(name, "") for name in names)))

    @property
    def program(self) -> str:
        """The file's name; of Python the script's."""
        name = self.values.get("exe", "").removesuffix(" (deleted)").rpartition("/")[2]
        if name.startswith("python"):
            words = self.lists["word"][1:]
            script = next((word for word in words if not word.startswith("-")), "")
            return f"{name} {script.rpartition('/')[2]}".strip()
        return name


@dataclass(slots=True, eq=False)
class Look:
    """One look at a host: seconds of its clock, stat's columns by pid, bytes by link and port."""

    uptime: float = 0.0
    stats: dict[int, list[str]] = field(default_factory=dict)
    moved: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, word: str, rest: str) -> None:
        """Read a line; a broken one is passed over."""
        if word == "uptime":
            self.uptime = float(rest) if re.fullmatch(r"\d+\.?\d*", rest) else 0.0
        elif word == "stat":
            pid, _, text = rest.partition(" ")
            if is_number(pid):
                self.stats[int(pid)] = text.rpartition(") ")[2].split()
        elif word == "link":
            name, _, text = rest.partition(":")
            cells = text.split()
            if len(cells) > 8 and is_number(cells[0]) and is_number(cells[8]):  # noqa: PLR2004
                self.moved[name] = (int(cells[8]), int(cells[0]))
        elif word == "port":
            path, _, count = rest.rpartition(" ")
            found = _PORT.fullmatch(path)
            if found and is_number(count):
                name = f"{found[1]}:{found[2]}"
                sent, received = self.moved.get(name, (0, 0))
                size = int(count) * _WORD
                self.moved[name] = (size, received) if found[3] == "xmit" else (sent, size)


@dataclass(slots=True, eq=False)
class HostLines:
    """A host's lines: its two looks, the lines of processes, and the others by their first word."""

    host: str
    values: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    looks: list[Look] = field(default_factory=list)
    processes: list[ProcessLines] = field(default_factory=list)

    def add(self, word: str, rest: str) -> None:
        """Read a line."""
        if word == "look":
            self.looks.append(Look())
        elif word == "process" and is_number(rest):
            self.processes.append(ProcessLines(int(rest)))
        elif self.processes:
            self.processes[-1].add(word, rest)
        elif self.looks and word in ("uptime", "stat", "link", "port"):
            self.looks[-1].add(word, rest)
        else:
            self.values[word].append(rest)

    def of_files(self, word: str) -> dict[str, str]:
        """What files hold, each by the name of its folder."""
        cells = (row.partition(" ") for row in self.values[word])
        return {path.split("/")[-2]: text for path, _, text in cells if "/" in path}


def read(output: str, host: str, address: str = "") -> HostRanks | None:
    """Read a host's answer; None where this is none.

    Args:
        output: what was printed; lines of a login shell's own before it are passed over.
        host: the name by which it is shown.
        address: its own on the control link, where that is known.
    """
    lines = output.splitlines()
    if BEGIN not in lines:
        return None
    answer = HostLines(host)
    for line in lines[lines.index(BEGIN) + 1 :]:
        word, _, rest = line.partition(" ")
        answer.add(word, rest)
    if len(answer.looks) != 2:  # noqa: PLR2004
        return None
    before, now = answer.looks
    chosen = _one_a_rank(answer.processes, now)
    ranks = [_rank(item, answer) for item in chosen]
    return HostRanks(
        host,
        tuple(sorted(ranks, key=lambda item: item.number)),
        tuple(_links(answer)),
        now.uptime - before.uptime,
        frozenset(word for item in chosen for word in item.lists["closed"]),
        len(answer.values["unreadable"]),
        tuple(dict.fromkeys([*([address] if address else []), *_addresses(answer)])),
    )


def _one_a_rank(processes: Iterable[ProcessLines], look: Look) -> list[ProcessLines]:
    """Choose one of each rank's processes: the first that has MPI, else the first that is no shell.

    A wrapper's child, a data loader and a shell all have the rank's number.
    """
    groups = grouped(
        ((process.job, process.number), process)
        for process in processes
        if process.number is not None and process.pid in look.stats
    )
    chosen = []
    for group in groups.values():
        with_mpi = [item for item in group if "mpi" in item.values]
        no_shell = [item for item in group if item.program not in _SHELLS]
        left = with_mpi or no_shell or group
        pids = {item.pid for item in left}
        tops = [item for item in left if _cell(look.stats[item.pid], _PARENT) not in pids]
        chosen.append(min(tops or left, key=lambda item: item.pid))
    return chosen


def _rank(process: ProcessLines, answer: HostLines) -> Rank:
    first, last = answer.looks
    before, now = (look.stats.get(process.pid, []) for look in answer.looks)
    ticks = number(answer.values["ticks"], 100)
    used, used_before = (
        (_cell(cells, _USER) + _cell(cells, _SYSTEM)) / ticks for cells in (now, before)
    )
    age = last.uptime - _cell(now, _START) / ticks
    seconds = last.uptime - first.uptime
    cpu = (used - used_before) / seconds if before and seconds > 0 else None
    call, file = _call(process, next(iter(answer.values["machine"]), ""))
    verbs = answer.of_files("verbs")
    files = process.lists["fd"]
    return Rank(
        process.number or 0,
        answer.host,
        process.pid,
        process.job,
        number((process.environ.get(name, "") for name in _SIZES), 0),
        number([process.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "")], 0),
        process.program,
        " ".join(masking.masked_words(process.lists["word"])),
        _activity(before, now, cpu),
        _stage(process, {_socket(row.split()) for row in answer.values["served"]}),
        cpu,
        used / age if age > 0 else None,
        _cell(now, _RSS) * number(answer.values["page"], 4096),
        _cell(now, _THREADS),
        number([process.values.get("running", "")], 0),
        call,
        file,
        process.values.get("wchan", "").removeprefix("0"),
        tuple(sorted({_device(path, verbs) for path in files} - {""})),
        tuple(dict.fromkeys(_unanswered(answer.values["unanswered"], files))),
        tuple(process.lists["stack"]),
    )


def _activity(before: list[str], now: list[str], cpu: float | None) -> Activity:
    states = {cells[_STATE] for cells in (before, now) if cells}
    state = now[_STATE] if now else ""
    if states == {state} and state in _STATES:
        return _STATES[state]
    return Activity.BUSY if "R" in states or (cpu or 0.0) >= _WORKS else Activity.WAITS


def _stage(process: ProcessLines, served: set[str]) -> MpiStage:
    """Find how far a rank is in MPI, by what it holds open.

    Open MPI's ranks are connected with their daemon (PMIx) from MPI_Init to MPI_Finalize. Its event
    loop and MPICH's are an epoll; what both leave behind of shared memory they have after
    MPI_Finalize too. Before MPI_Init there is none of these. Tried with Open MPI 4.1 and 5.0 and
    MPICH 5.0.
    """
    if "fd" in process.lists["closed"]:
        return MpiStage.UNKNOWN
    files = process.lists["fd"]
    polls = any("eventpoll" in path for path in files)
    by_pmix = any(name.startswith("PMIX_SERVER_URI") for name in process.environ)
    if served.intersection(files) if by_pmix else polls:
        return MpiStage.INSIDE
    if polls or any(path.startswith("/dev/shm/") for path in files):  # noqa: S108
        return MpiStage.LEFT
    return MpiStage.BEFORE


def _call(process: ProcessLines, machine: str) -> tuple[str, str]:
    """Name the system call and its file; both empty where it runs, or where nothing is known."""
    call = process.values.get("syscall", "").partition(" ")[0]
    if not is_number(call):
        return "", ""
    name = call_name(machine, int(call))
    return name, process.values.get("file", "") if name in WITH_FILE else ""


def _device(path: str, verbs: Mapping[str, str]) -> str:
    """Name a GPU or HCA; empty for what is none."""
    found = _DEVICE.fullmatch(path)
    name = found[1].rpartition("/")[2] if found else ""
    return "" if name == "rdma_cm" else verbs.get(name, name)


def _socket(cells: Sequence[str]) -> str:
    """Name the socket of a row of /proc/net/tcp, as /proc/PID/fd has it."""
    return f"socket:[{cells[_INODE]}]" if len(cells) > _INODE else ""


def _unanswered(rows: Iterable[str], files: Sequence[str]) -> Iterable[SilentConnection]:
    for cells in map(str.split, rows):
        if _socket(cells) not in files:
            continue
        near, far = cells[_OWN].partition(":")[0], cells[_FAR].partition(":")
        try:
            port, times = int(far[2], 16), int(cells[_TIMES], 16)
            ends = address_of(near), address_of(far[0])
        except (ValueError, OSError):
            continue
        yield SilentConnection(*ends, port, times, cells[_HOW] == _SYN_SENT)


def _addresses(answer: HostLines) -> Iterable[str]:
    yield from (item for item in answer.values["own"] if not item.startswith("127."))
    for word in answer.values["own6"]:
        if len(word) == 32 and int(word, 16) > 1:  # noqa: PLR2004 - of IPv6, and not ::1
            yield IPv6Address(int(word, 16)).compressed


def _links(answer: HostLines) -> Iterable[LinkRates]:
    first, last = answer.looks
    seconds = last.uptime - first.uptime
    states = answer.of_files("state")
    for name, now in last.moved.items():
        before = first.moved.get(name)
        if name == "lo":
            continue
        sent = received = None
        if before and seconds > 0 and now[0] >= before[0] and now[1] >= before[1]:
            sent, received = ((now[at] - before[at]) / seconds for at in (0, 1))
        yield LinkRates(name, sent, received, states.get(name, ""))


def _cell(cells: Sequence[str], at: int) -> int:
    return number(cells[at : at + 1], 0)


def is_number(text: str) -> bool:
    """Whether a text is digits alone."""
    return text.isascii() and text.isdigit()


def number(words: Iterable[str], otherwise: _Default) -> int | _Default:
    """Read the first number of these; another where none is."""
    return next((int(word) for word in words if is_number(word)), otherwise)
