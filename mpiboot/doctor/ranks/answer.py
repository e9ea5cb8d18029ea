"""What ``libexec/rank_questions`` printed, as records. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from ipaddress import IPv6Address
from typing import Final

from mpiboot.doctor.ranks.process import (
    Machine,
    ProcessLines,
    first_number,
    is_number,
    one_a_rank,
    rank_of,
    sockets,
)
from mpiboot.doctor.ranks.records import HostRanks, LinkRates, Look

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
                stats[int(pid)] = text.rpartition(") ")[2]
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
