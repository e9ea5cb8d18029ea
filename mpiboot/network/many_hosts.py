"""What is said of very many hosts: one line a kind, with the odd ones named. Pure.

The whole is in ``plan --json``, and in the log at debug.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from mpiboot.core.model import Finding
from mpiboot.core.wording import first_few
from mpiboot.network.cluster_view import WorkerRow

# So many hosts still have a line each.
MOST: Final = 16
# What differs from host to host: an address, a port, a time.
_NUMBERS: Final = re.compile(r"[\da-f]*[\d:][\da-f:.]*")


def findings(items: Iterable[Finding]) -> tuple[Finding, ...]:
    """Make one finding of those of one kind, where these are of more hosts than have a line each.

    A kind is a check, its level and what is to be done. What most of these hosts say is said; what
    others say stands behind it, with their names. Where none of them says the same, texts that
    differ by numbers and addresses alone are one.
    """
    kinds: dict[tuple[object, ...], list[Finding]] = {}
    for item in items:
        alone = () if item.host else (id(item),)
        kinds.setdefault((item.check, item.level, item.hint, *alone), []).append(item)
    return tuple(
        one
        for alike in kinds.values()
        for one in (alike if len(alike) <= MOST else (_one_of(alike),))
    )


def _one_of(alike: Sequence[Finding]) -> Finding:
    usual, *others = sorted(_groups(alike), key=lambda group: -len(group))
    hosts = tuple(item.host for item in alike)
    odd = [f"{first_few(item.host for item in group)}: {group[0].message}" for group in others]
    text = usual[0].message
    if len(usual) == 1:
        text = f"each in words of its own, {usual[0].host}: {text}"
    elif usual[1].message != text:
        text = f"each with numbers of its own, {usual[0].host}: {text}"
    if odd and len(usual) > 1:
        text += f"; but {first_few(odd)}"
    return replace(alike[0], message=text, host="", hosts=hosts, evidence=())


def _groups(alike: Sequence[Finding]) -> Iterable[list[Finding]]:
    """Put those together that say the same, or differ by numbers alone where none comes twice."""
    masked: dict[str, dict[str, list[Finding]]] = {}
    for item in alike:
        texts = masked.setdefault(_NUMBERS.sub("#", item.message), {})
        texts.setdefault(item.message, []).append(item)
    for texts in masked.values():
        if all(len(group) == 1 for group in texts.values()):
            yield [group[0] for group in texts.values()]
        else:
            yield from texts.values()


def rows(table: Sequence[WorkerRow]) -> tuple[WorkerRow, ...]:
    """Make one row of those that differ by name and address alone, the rarest kinds first."""
    if len(table) <= MOST:
        return tuple(table)
    kinds: dict[WorkerRow, list[str]] = {}
    for row in table:
        kind = replace(row, worker="", control=_link(row.control), data=_links(row.data))
        kinds.setdefault(kind, []).append(row.worker)
    order = sorted(kinds.items(), key=lambda item: len(item[1]))
    shown = [replace(kind, worker=_names(hosts)) for kind, hosts in order]
    if len(shown) <= MOST:
        return tuple(shown)
    rest = sum(len(hosts) for _, hosts in order[: len(order) - MOST + 1])
    more = WorkerRow(f"{rest} more, of other kinds", *("",) * 7)
    return (*shown[len(order) - MOST + 1 :], more)


def variables(per_host: Mapping[str, Mapping[str, str]]) -> Iterable[tuple[str, str, str]]:
    """List hosts, name and value of the variables of single hosts: a line for each value."""
    if len(per_host) <= MOST:
        return [(host, *item) for host, mine in per_host.items() for item in mine.items()]
    hosts: dict[tuple[str, str], list[str]] = {}
    for host, mine in per_host.items():
        for item in mine.items():
            hosts.setdefault(item, []).append(host)
    lines: dict[str, list[tuple[str, str, str]]] = {}
    for (name, value), those in sorted(hosts.items(), key=lambda item: -len(item[1])):
        lines.setdefault(name, []).append((_names(those), name, value))
    return [
        line
        for name, found in lines.items()
        for line in (
            *found[:MOST],
            *([(f"{len(found) - MOST} more values", name, "")] if len(found) > MOST else ()),
        )
    ]


def _names(hosts: Sequence[str]) -> str:
    return hosts[0] if len(hosts) == 1 else f"{len(hosts)}: {first_few(hosts, 3)}"


def _link(cell: str) -> str:
    """Cut the address off: ``net1 10.0.0.1``."""
    return cell.partition(" ")[0]


def _links(cell: str) -> str:
    """Cut the addresses off in a list, or in the first and the last of one."""
    return ", ".join(
        " .. ".join(map(_link, part.split(" .. "))) + _count(part) for part in cell.split(", ")
    )


def _count(part: str) -> str:
    return " (" + part.rpartition("(")[2] if part.endswith(")") else ""
