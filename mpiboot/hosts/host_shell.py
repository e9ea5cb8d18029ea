"""The scripts that are run on a host by SSH beside mpirun's daemon, and their output.

They are calls of functions of ``libexec/host``, behind ``libexec/environs``, on a shell's standard
input, as a host may have no mpiboot. Nothing is run here.
"""

from __future__ import annotations

import functools
import json
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from mpiboot.core.facts import HostAnswer
from mpiboot.core.launch_spec import LAUNCH_ID, RECORD_VERSION, find_launches
from mpiboot.core.model import Json, read_record
from mpiboot.network import records

_FOLDER: Final = __file__.rpartition("/")[0].rpartition("/")[0] + "/libexec/"
_ANSWER: Final = "mpiboot-"
JOB_IS_OVER: Final = "notify_worker over"
# A line of /proc/net/tcp with its two ports; 01 is ESTABLISHED (the kernel's tcp_states.h).
_ESTABLISHED: Final = re.compile(
    r"\d+: [0-9A-F]+:([0-9A-F]{4}) [0-9A-F]+:([0-9A-F]{4}) 01 ", re.ASCII
)
_NUMBER: Final = re.compile(r"\d{1,19}", re.ASCII)  # int() takes 4,300 digits at most
_REASON: Final = 500  # characters


@functools.cache
def _text(program: str) -> str:
    with open(_FOLDER + program, encoding="ascii") as file:  # noqa: PTH123 - light
        return file.read()


def ask(*calls: str) -> str:
    """Build a script of calls, ``facts`` the last, which read what follows its last line."""
    return f"{_text('environs')}{_text('host')}{{ {'; '.join((*calls, 'exit 0'))}; }}"


def gate(
    mpirun: str = "",
    *,
    workdir: str = "",
    attempt: str = "",
    may_disconnect: bool = False,
    doctor: Sequence[str] = (),
    traffic: bool = False,
) -> str:
    """Build the gate's one script: the host's state, and its facts or a substitute.

    Args:
        mpirun: the path of one whose version is queried; ignored if it has blanks.
        workdir: where ranks start.
        attempt: this launcher's name for workers; empty where it only
            observes, or is a part of a job.
        may_disconnect: whether it may be without connections, as a script between two launches.
        doctor: queries of doctor's.
        traffic: whether the counters of ports and links are read, to compare them later.
    """
    wanted = (shlex.join(("version", mpirun)),) if len(mpirun.split()) == 1 else ()
    folder = (shlex.join(("folder", workdir)),) if workdir else ()
    attempts = (f"attempts {attempt} {int(may_disconnect)}",) if attempt else ()
    first = counts("launches", traffic=traffic)
    return ask(first, "launches", *attempts, *wanted, *folder, *doctor, "facts")


def probe(address: str, ports: str, launch: str) -> str:
    """Build the script that has a worker listen, and dial others.

    Args:
        address: its own, at which it listens.
        ports: the range of ports, ``first-last``; 0-0: any.
        launch: the launch's ID.
    """
    return ask(f"run_script probe {ports} {address} {launch}")


def query(*words: str) -> str:
    """Build the question that the host's own mpiboot answers (``worker/answer.py``).

    A host without a worker may have the launcher's image, and in it the same Python.
    """
    return shlex.join(("answer", sys.executable, *words))


def counts(*more: str, traffic: bool) -> str:
    """Build the question for memory kills and, with ``traffic``, what ports and links count."""
    return query("counts", *more, *(records.COUNTERS if traffic else ()))


def lacks(program: str, path: str, folder: str) -> str:
    """Build the question whether a program can be run on a host.

    Args:
        program: what ranks are to run.
        path: the launcher's PATH, which ranks may have; a name is searched in both.
        folder: the launcher's working directory, where ranks start if the host has it.
    """
    return query("lacks", program, path, folder or "/")


def doctor_ranks(seconds: int, *, gdb: bool = False) -> str:
    """Build the script that has a worker's own doctor report its ranks, as JSON.

    Args:
        seconds: between its two samples.
        gdb: whether gdb reads C stacks, which halts each rank meanwhile.
    """
    return ask(f"run_script doctor ranks --json --seconds {seconds}{' --gdb' if gdb else ''}")


def measure(port: int, line: str) -> str:
    """Build the script that has a worker measure, as a server at a port or a client (0)."""
    return ask(f"run_script probe measure {port} {line}")


def end_processes(launches: Iterable[str]) -> str:
    """Build the script that ends the processes of these launches, and counts them."""
    return ask(shlex.join(("end_processes", *(f"{LAUNCH_ID}={one}" for one in launches))))


def stop_ranks(signal: int, mark: str) -> str:
    """Build the script that signals the ranks with this mark, and counts those that are left."""
    return ask(shlex.join(("stop_ranks", sys.executable, f"{signal:d}", mark)))


def job_failed(attempt: str, hold: float | None, why: str) -> str:
    """Build the order that notifies a worker why the job failed.

    Args:
        attempt: the launcher's name for workers.
        hold: seconds that the launcher's pod stays up for inspection; None if the launcher may
            continue, as a script one of whose launches failed.
        why: the reason, any text.
    """
    from urllib.parse import quote  # noqa: PLC0415 - heavy, and rarely wanted

    reason = quote(why[:_REASON], safe="", errors="replace").replace("~", "%7E")
    held = "-" if hold is None else f"{hold:.0f}"
    return ask(f"notify_worker ended {attempt} {held} {reason}")


def read(output: str) -> HostAnswer:
    """Parse a host's output; lines of the login shell before it are ignored."""
    head, *facts = re.split(rf"^{_ANSWER}facts\s*\n", output, maxsplit=1, flags=re.MULTILINE)
    head, *plain = re.split(rf"^{_ANSWER}plain\s*\n", head, maxsplit=1, flags=re.MULTILINE)
    lines = [line.strip() for line in head.splitlines()]
    rows: dict[str, list[str]] = {}
    for line in lines:
        if line.startswith(_ANSWER):
            word, _, rest = line.removeprefix(_ANSWER).partition(" ")
            rows.setdefault(word, []).append(rest)
    record = _record(rows.get("answer", ()))
    if "process" in rows:  # of a host whose own mpiboot finds no launches
        texts = "\n".join(lines).split(f"{_ANSWER}process\n")[1:]
        environs = (
            dict(line.split("=", 1) for line in text.split("\n") if "=" in line) for text in texts
        )
        found = (_ESTABLISHED.match(line) for line in lines)
        ports = {(str(int(item[1], 16)), str(int(item[2], 16))) for item in found if item}
        launches, held = find_launches(environs, "".join(rows.get("own", ())), ports)
        record = replace(record, launches=launches, held=held)
    lacks = [row.split() for row in rows.get("lacks", ())]
    return replace(
        record,
        lacks=(*record.lacks, *((words[0], words[1]) for words in lacks if len(words) > 1)),
        attempts=tuple(_attempts(rows["attempt"])) if "attempt" in rows else (),
        facts=facts[0] if facts else None,
        late="late" in rows,
        mpirun=_path_and_version(plain[0].rstrip()) if plain else None,
        mpirun_by_path=_path_and_version(next(iter(rows.get("mpirun", ())), "")),
        ended=_number(rows, "ended") or 0,
        left=_number(rows, "left") or 0,
        doctor=next(iter(rows.get("doctor", ())), ""),
    )


def _record(texts: Iterable[str]) -> HostAnswer:
    """Read the answers to all queries, but for what can't be read or is of another version."""
    found: dict[str, Json] = {}
    for text in texts:
        with suppress(ValueError, TypeError, RecursionError):
            answer = json.loads(text)
            if read_record(HostAnswer, answer).version == RECORD_VERSION:
                found |= answer
    return read_record(HostAnswer, found)


def _number(rows: dict[str, list[str]], word: str) -> int | None:
    found = filter(_NUMBER.fullmatch, rows.get(word, ()))
    return next(map(int, found), None)


def _attempts(rows: Iterable[str]) -> Iterable[tuple[str, str]]:
    from urllib.parse import unquote  # noqa: PLC0415 - heavy, and rarely wanted

    for row in rows:
        name, _, why = row.partition(" ")
        yield name, "".join(c if c.isprintable() else " " for c in unquote(why))


def _path_and_version(text: str) -> tuple[str, str] | None:
    """Parse path and version; there is neither where there is no mpirun."""
    path, _, version = text.partition("\n" if "\n" in text else " ")
    return (path.strip(), version) if path.startswith("/") else None
