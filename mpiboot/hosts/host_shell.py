"""What is run on a host by SSH beside mpirun's own daemon, and what its output means.

The programs are ``libexec/host_questions`` (doctor's own, in ``libexec/doctor_questions``, are
sent in front) and ``libexec/rank_questions``, which only read, and ``libexec/host_orders``. They
are sent as a session's command, as a host may have no mpiboot. Light, and stdlib only: the child
that asks after a failure uses it too. Nothing is run here.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

_FOLDER: Final = __file__.rpartition("/")[0].rpartition("/")[0] + "/libexec/"
_ANSWER: Final = "mpiboot-"
# Words that stay one word, and themselves, in any shell.
_PLAIN: Final = re.compile(r"[A-Za-z0-9_./:+@%=,-]+")
# A line of a script that ends with one of these goes on in the next line.
_GOES_ON: Final = ("then", "do", "else", "{", "|", "||", "&&", ";;")
# A line of /proc/net/tcp with its two ports; 01 is ESTABLISHED (the kernel's tcp_states.h).
_ESTABLISHED: Final = re.compile(
    r"\d+: [0-9A-F]+:([0-9A-F]{4}) [0-9A-F]+:([0-9A-F]{4}) 01 ", re.ASCII
)
_REASON: Final = 500  # characters
_DOCTOR: Final = ("doctor_questions", "host_questions")
# One of doctor_questions, which can be asked alone too.
ENVIRONMENTS: Final = "environments"
_ENDS: Final = 4  # words of SSH_CONNECTION: the client's address and port, the server's


@functools.cache
def _one_line(program: str) -> str:
    """Read a program of ``libexec`` as one line: some login shells end a word at a line's end."""
    with open(_FOLDER + program, encoding="ascii") as file:  # noqa: PTH123 - light
        lines = [line.strip() for line in file]
    kept = [line for line in lines if line and not line.startswith("#")]
    return " ".join(
        line if line.split()[-1] in _GOES_ON or line.endswith(";") else f"{line};" for line in kept
    )


def _command(programs: Iterable[str], calls: Iterable[str]) -> str:
    words = " ".join(f"'{call}'" for call in calls)
    return f"exec /bin/sh -c '{' '.join(map(_one_line, programs))}' mpiboot {words}"


def ask(*questions: str) -> str:
    """Write the command that asks some of ``host_questions``; ``facts`` must be the last."""
    return _command(("host_questions",), questions)


def order(*orders: str) -> str:
    """Write the command that gives some of ``host_orders``."""
    return _command(("host_orders",), orders)


def gate(
    mpirun: str = "",
    *,
    attempt: str = "",
    may_disconnect: bool = False,
    doctor: Sequence[str] = (),
) -> str:
    """Write the gate's one command: the present state, and the facts or what stands for them.

    Args:
        mpirun: the path of one whose version is asked too; nothing where a shell could read it
            otherwise.
        attempt: this launcher's name for workers; empty where it only looks, or is a part of a job.
        may_disconnect: whether it may have no connection, as a script between two launches.
        doctor: some of ``doctor_questions``, which are asked too.
    """
    wanted = (f"version {mpirun}",) if _PLAIN.fullmatch(mpirun) else ()
    attempts = (f"attempts {attempt} {int(may_disconnect)}",) if attempt else ()
    asked = ("memory", "launches", *attempts, *wanted, *doctor, "facts")
    return _command(_DOCTOR if doctor else _DOCTOR[1:], asked)


def environments() -> str:
    """Write the command that asks what processes have in their environments."""
    return _command(_DOCTOR, (ENVIRONMENTS,))


def dials(seconds: int, places: Iterable[tuple[str, int]]) -> tuple[str, ...]:
    """Ask, for doctor, which of these addresses or names and ports a host can connect to."""
    words = [f"{address} {port}" for address, port in places if _PLAIN.fullmatch(address)]
    return (f"dials {seconds} {' '.join(words)}",) if words else ()


def probe(address: str, ports: str) -> str:
    """Write the command that has a worker dial others.

    Args:
        address: its own, at which it listens meanwhile.
        ports: the range of ports, ``first-last``; empty: any.
    """
    return ask(f"probe {ports or '0-0'} {address}")


def lacks(program: str, path: str, folder: str) -> tuple[str, ...]:
    """Ask whether a program can be run on a host; nothing where a shell could read it otherwise.

    Args:
        program: what ranks are to run.
        path: the launcher's PATH, which ranks may have; a name is looked for in both.
        folder: the launcher's folder, in which ranks begin where the host has it.
    """
    words = (program, path or ":", folder or "/")
    return (f"lacks {' '.join(words)}",) if all(map(_PLAIN.fullmatch, words)) else ()


def ranks(seconds: int) -> str:
    """Write the command that asks what a host's ranks do; ``doctor.ranks_answer`` reads it.

    Args:
        seconds: how long it looks, beyond what the reading takes.
    """
    return _command(("rank_questions",), (str(seconds),))


def end_processes(marks: Iterable[str]) -> str:
    """Write the command that ends what carries one of these marks, and tells how many."""
    return order(f"end_processes {' '.join(f'MPIBOOT_JOB_MARK={mark}' for mark in marks)}")


def job_failed(attempt: str, hold: float | None, why: str) -> str:
    """Write the order that tells a worker how the job failed.

    Args:
        attempt: the launcher's name for workers.
        hold: seconds that the launcher stays for a look inside; None where it may go on, as a
            script one of whose launches failed.
        why: the reason, any text.
    """
    from urllib.parse import quote  # noqa: PLC0415 - heavy, and rarely wanted

    reason = quote(why[:_REASON], safe="", errors="replace").replace("~", "%7E")
    held = "-" if hold is None else f"{hold:.0f}"
    return order(f"job_failed {attempt} {held} {reason}")


@dataclass(frozen=True, slots=True)
class Connecting:
    """A rank's connection that nobody has answered yet.

    ``far`` is its far end as /proc/net/tcp has it, ``again`` how often it was tried again, and
    ``rank`` empty where that isn't known.
    """

    far: str
    again: int
    inode: str
    rank: str = ""


@dataclass(frozen=True, slots=True)
class HostAnswer:
    """What a host has answered; empty or None is what it was not asked, or can't tell.

    ``oom_kills`` counts its out-of-memory kills, ``limit`` and ``peak`` are its memory's in bytes;
    ``marks`` are those of launches whose processes are there, ``held`` those of them whose launcher
    is still connected, each with its address; ``attempts`` are the launchers that were there, each
    with how it ended (empty: it told nothing). ``facts`` is its facts' JSON, ``late`` tells that it
    runs mpiboot and has none yet, and ``look_failed`` why it could not look again; ``mpirun`` is,
    without mpiboot, the path and what it said of its version, ``mpirun_by_path`` the same of the
    one that was asked for by its path. ``began`` is when its mpiboot began; ``disks`` are mount
    point, size and free space in KiB; ``ports`` an RDMA port's path and its state; ``lacks`` the
    way in which a program can't be run (``file``, ``right``, ``name``) and that program;
    ``connecting`` are the connections that nobody answers. ``listener`` is who
    listens at the port asked for, empty where that can't be seen, None where nobody does, and
    ``to_accept`` how many connections wait for it to accept them; ``overflows`` counts those that
    found such a queue of that pod full;
    ``in_mpi`` counts the ranks that have not left MPI. ``ended`` and ``left`` count the processes
    that an order has ended, and those that it could not. An address is empty
    where the launcher came by kubectl. For doctor ``values`` are what hosts are compared by,
    ``own_checks`` is the JSON of the worker's own doctor (None: it has none), ``dials`` are an
    address, a port and how it went to connect there, and ``environments`` lines of variables, each
    behind whose it is.
    """

    oom_kills: int | None = None
    limit: int | None = None
    peak: int | None = None
    marks: tuple[str, ...] = ()
    held: tuple[tuple[str, str], ...] = ()
    attempts: tuple[tuple[str, str], ...] = ()
    facts: str | None = None
    late: bool = False
    look_failed: str = ""
    mpirun: tuple[str, str] | None = None
    mpirun_by_path: tuple[str, str] | None = None
    began: float | None = None
    disks: tuple[tuple[str, int, int], ...] = ()
    ports: tuple[tuple[str, str], ...] = ()
    lacks: tuple[tuple[str, str], ...] = ()
    connecting: tuple[Connecting, ...] = ()
    listener: str | None = None
    to_accept: int = 0
    overflows: int = 0
    in_mpi: int = 0
    ended: int = 0
    left: int = 0
    values: tuple[tuple[str, str], ...] = ()
    own_checks: str | None = None
    dials: tuple[tuple[str, str, str], ...] = ()
    environments: tuple[str, ...] = ()


def read(output: str) -> HostAnswer:
    """Read what a host printed; lines of the login shell's own come before and are passed over."""
    head, *facts = re.split(rf"^{_ANSWER}facts\s*\n", output, maxsplit=1, flags=re.MULTILINE)
    head, *plain = re.split(rf"^{_ANSWER}plain\s*\n", head, maxsplit=1, flags=re.MULTILINE)
    lines = [line.strip() for line in head.splitlines()]
    rows: dict[str, list[str]] = {}
    for line in lines:
        if line.startswith(_ANSWER):
            word, _, rest = line.removeprefix(_ANSWER).partition(" ")
            rows.setdefault(word, []).append(rest)
    marks, held = _launches(lines, rows.get("own", ()))
    dialled = map(str.split, rows.get("dial", ()))
    began = [float(item) for item in rows.get("began", ()) if re.fullmatch(r"[\d.]*\d", item)]
    return HostAnswer(
        oom_kills=_number(rows, "oom"),
        limit=_number(rows, "limit"),
        peak=_number(rows, "peak"),
        marks=marks,
        held=held,
        attempts=tuple(_attempts(rows["attempt"])) if "attempt" in rows else (),
        facts=facts[0] if facts else None,
        late="late" in rows,
        look_failed=next(iter(rows.get("look-failed", ())), ""),
        mpirun=_mpirun(plain[0].splitlines()) if plain else None,
        mpirun_by_path=next(iter(_by_path(rows.get("mpirun", ()))), None),
        began=began[0] if began else None,
        disks=tuple(_disks(rows.get("disk", ()))),
        ports=tuple((row.split()[0], row.split()[-1]) for row in rows.get("port", ()) if row),
        lacks=tuple(_pairs(rows.get("lacks", ()))),
        connecting=tuple(dict.fromkeys(_connecting(rows.get("connecting", ())))),
        listener=next(iter(rows.get("listener", ())), None),
        to_accept=_number(rows, "to-accept") or 0,
        overflows=_number(rows, "overflows") or 0,
        in_mpi=len(rows.get("in-mpi", ())),
        ended=_number(rows, "ended") or 0,
        left=_number(rows, "left") or 0,
        values=tuple(
            (row.partition(" ")[0], row.partition(" ")[2]) for row in rows.get("value", ())
        ),
        own_checks=next(iter(rows.get("doctor", ())), None),
        dials=tuple((words[0], words[1], words[2]) for words in dialled if len(words) == 3),  # noqa: PLR2004 - address, port, result
        environments=tuple(rows.get("environment", ())),
    )


def _number(rows: dict[str, list[str]], word: str) -> int | None:
    found = [row for row in rows.get(word, ()) if row.isascii() and row.isdigit()]
    return int(found[0]) if found else None


def _pairs(rows: Iterable[str]) -> list[tuple[str, str]]:
    return [(words[0], words[1]) for words in map(str.split, rows) if len(words) > 1]


def _attempts(rows: Iterable[str]) -> Iterable[tuple[str, str]]:
    from urllib.parse import unquote  # noqa: PLC0415 - heavy, and rarely wanted

    for row in rows:
        name, _, why = row.partition(" ")
        yield name, "".join(c if c.isprintable() else " " for c in unquote(why))


def _disks(rows: Iterable[str]) -> list[tuple[str, int, int]]:
    """Read size, free space and mount point; a folder may have blanks."""
    found = (re.fullmatch(r"(\d+) (\d+) (.+)", row, re.ASCII) for row in rows)
    return [(item[3], int(item[1]), int(item[2])) for item in found if item]


def _by_path(rows: Iterable[str]) -> list[tuple[str, str]]:
    return [(path, message) for path, _, message in (row.partition(" ") for row in rows)]


def _connecting(rows: Iterable[str]) -> list[Connecting]:
    form = r"([0-9A-F]+:[0-9A-F]{4}) (\d+) (\d+) ?(\d*)"
    found = (re.fullmatch(form, row, re.ASCII) for row in rows)
    return [Connecting(item[1], int(item[2]), item[3], item[4]) for item in found if item]


def _mpirun(lines: list[str]) -> tuple[str, str] | None:
    """Read host name, path and version; the path is missing where there is no mpirun."""
    path = lines[1].strip() if len(lines) > 1 else ""
    return (path, "\n".join(lines[2:])) if path.startswith("/") else None


def _launches(
    lines: list[str], own: Iterable[str]
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Read the marks of launches that run there, and those whose launcher is connected."""
    marks: set[str] = set()
    held: set[tuple[str, str]] = set()
    came: set[tuple[str, str, tuple[int, int]]] = set()
    for text in "\n".join(lines).split(f"{_ANSWER}process\n")[1:]:
        values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        mark = values.get("MPIBOOT_JOB_MARK", "")
        ends = values.get("SSH_CONNECTION", "").split()
        marks.add(mark)
        if "MPIBOOT_POD_SESSION" in values:  # it lives as long as its launcher's kubectl
            held.add((mark, ""))
        if len(ends) == _ENDS and ends[1].isdigit() and ends[3].isdigit():
            came.add((mark, ends[0], (int(ends[3]), int(ends[1]))))
    found = (_ESTABLISHED.match(line) for line in lines)
    there = {(int(item[1], 16), int(item[2], 16)) for item in found if item}
    this = [pair for pair in _pairs(own) if all(word.isdigit() for word in pair)]
    # A table without this very connection tells nothing: then nobody counts as gone.
    blind = not this or (int(this[0][1]), int(this[0][0])) not in there
    held |= {(mark, address) for mark, address, ports in came if blind or ports in there}
    return tuple(sorted(marks - {""})), tuple(sorted(held))
