"""Hostfiles: reads every syntax in use into one record and writes the one that an MPI honours.

Pure text to records and back: files are opened, waited for and written elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from enum import Enum
from itertools import chain
from typing import Final

from mpiboot.core import addresses
from mpiboot.core.errors import MpibootError, error
from mpiboot.core.model import Host, Hostfile
from mpiboot.job import hostfile_line

_BOM: Final = "\ufeff"
# What may not go into a copy that an MPI reads: its own lexer sees it first.
_ODD: Final = re.compile(r"[^ -~]")


class Syntax(str, Enum):
    """How a hostfile's lines are written."""

    SLOTS = "slots"
    """``host slots=N``: Open MPI; the only form that 4.1 and 5.0 both honour."""
    COLON = "colon"
    """``host:N``: Hydra (MPICH, Intel MPI), which refuses ``slots=``."""


def _lines(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield number, content (without blanks at the end) and comment of each line."""
    for number, line in enumerate(text.removeprefix(_BOM).split("\n"), start=1):
        content, _, comment = line.removesuffix("\r").partition("#")
        yield number, content.rstrip(" \t"), _ODD.sub("?", comment.strip())


def is_blank(text: str) -> bool:
    """Tell whether a hostfile names no host yet: empty, or only blank lines and comments.

    A mounted file may be written late, so who waits for it asks this before ``parse``.
    """
    return not any(line for _, line, _ in _lines(text))


def _same(name: str) -> str:
    """Key under which two spellings of one host meet."""
    return str(addresses.parse(name) or name.removesuffix(".").lower())


def _added(first: Host, again: Host) -> Host:
    """One host of two lines; a line without max_slots has no limit, so the sum has none."""
    if first.user and again.user and first.user != again.user:
        raise hostfile_line.LineError(
            0,
            f"user {again.user} for {again.name}, which line {first.line} gives "
            f"to user {first.user}; expected one user for each host",
        )
    both = first.max_slots is not None and again.max_slots is not None
    return replace(
        first,
        slots=first.slots + again.slots,
        slots_given=first.slots_given or again.slots_given,
        max_slots=(first.max_slots or 0) + (again.max_slots or 0) if both else None,
        user=first.user or again.user,
        binding=first.binding or again.binding,
        notes=first.notes + again.notes,
    )


def _invalid(where: str, said: str, named_by: str) -> MpibootError:
    evidence = (f"this hostfile is named by {named_by}",) if named_by else ()
    return error("hostfile-invalid", f"{where}: {said}", evidence=evidence)


def parse(text: str, path: str, named_by: str) -> Hostfile:
    """Read a hostfile.

    Understood are ``host``, ``host slots=N`` (blanks around ``=`` or not; ``cpu=`` as Open MPI
    has it), ``max_slots=``, ``host:N``, ``user@host``, MPICH's ``user=`` and ``binding=``, IPv4,
    IPv6 bare or in brackets, comments, blank lines, CRLF, a byte order mark and a missing final
    newline. Lines of one host are added up at the place of the first. Bare words behind a host mean
    nothing, as for Open MPI.

    Raises:
        MpibootError: ``hostfile-invalid``; the message begins with ``path:line:column:``.
    """
    found: dict[str, Host] = {}
    notes: tuple[str, ...] = ()
    passed_over: list[str] = []
    for number, line, comment in _lines(text):
        notes += (comment,) if comment else ()
        if not line:
            continue
        try:
            host, unread = hostfile_line.read(line, number)
            host = replace(host, notes=notes)
            passed_over += [f"{path}:{number}:{at + 1}: {word}" for at, word in unread]
            notes = ()
            key = _same(host.name)
            found[key] = _added(found[key], host) if key in found else host
        except hostfile_line.LineError as wrong:
            where = f"{path}:{number}:{wrong.column + 1}"
            raise _invalid(where, wrong.said, named_by) from None
    if not found:
        raise _invalid(path, "has no hosts, expected one `host slots=N` a line", named_by)
    return Hostfile(path, named_by, tuple(found.values()), passed_over=tuple(passed_over))


def union(files: Sequence[Hostfile]) -> Hostfile:
    """Make one hostfile of those that the programs of a line name.

    Of a host that several have the first one counts, as Open MPI 4.1 takes it.
    """
    found: dict[str, Host] = {}
    for file in files:
        for host in file.hosts:
            found.setdefault(_same(host.name), host)
    return Hostfile(
        ", ".join(file.path for file in files),
        files[0].named_by,
        tuple(found.values()),
        passed_over=tuple(chain.from_iterable(file.passed_over for file in files)),
        parts=tuple(files),
    )


def render(hosts: Iterable[Host], syntax: Syntax) -> str:
    """Write hosts as the text of a hostfile, one line each, below the comments of the host.

    ``SLOTS`` writes IPv6 addresses bare, as Open MPI wants them, and knows no binding. ``COLON``
    leaves max_slots out (Hydra refuses the word) and writes IPv6 in brackets, the only form in
    which the count can be told from the address.
    """
    lines = []
    for host in hosts:
        lines += [f"# {note}\n" for note in host.notes]
        user = f"{host.user}@" if host.user else ""
        if syntax is Syntax.SLOTS:
            most = "" if host.max_slots is None else f" max_slots={host.max_slots}"
            lines.append(f"{user}{host.name} slots={host.slots}{most}\n")
        else:
            name = f"[{host.name}]" if ":" in host.name else host.name
            binding = f" binding={host.binding}" if host.binding else ""
            lines.append(f"{user}{name}:{host.slots}{binding}\n")
    return "".join(lines)
