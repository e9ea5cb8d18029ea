"""Hostfiles: reads every syntax in use into one record and writes the one that an MPI honours.

Pure text to records and back: files are opened, waited for and written elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from mpiboot.core import addresses
from mpiboot.core.addresses import IPV4, IPV6, canonical
from mpiboot.core.checks import MpibootError, error
from mpiboot.core.facts import Host, Hostfile

_MAX_SHOWN_CHARACTERS: Final = 60
LONGEST_NAME: Final = 253  # RFC 1035 section 2.3.4, without the final dot
_MAX_SLOTS: Final = 2**31 - 1  # every MPI keeps it in a C int

# RFC 1123 labels, and underscores, which host names of some platforms hold.
LABEL: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
# Nothing that a shell reads gets through.
_WORD: Final = r"[ \t]+(\w[\w.-]*)(?:[ \t]*=[ \t]*((?:\w[\w.,:+-]*)?))?"
_LINE: Final = re.compile(
    rf"""[ \t]*
    (?:(?P<user>\w[\w.-]*)@)?
    (?:
        \[(?P<bracketed>[0-9A-Fa-f:.]+)\]
        | (?P<ipv6>[0-9A-Fa-f.]*:[0-9A-Fa-f.]*:[0-9A-Fa-f.:]*)
        | (?P<name>(?:{LABEL.pattern}\.)*{LABEL.pattern}\.?)
    )
    (?::(?P<slots>\w+))?
    (?P<words>(?:{_WORD})*)
    """,
    re.VERBOSE | re.ASCII,
)
_WORDS: Final = re.compile(_WORD, re.ASCII)

# By runs of Open MPI 4.1 and 5.0, which end over any other key with a value.
_KEYS: Final = {
    **dict.fromkeys(("slots", "cpu", "count"), "slots"),
    **dict.fromkeys(("max_slots", "max-slots", "slots_max", "slots-max"), "max_slots"),
    **dict.fromkeys(("user", "username", "user_name"), "user"),  # the first is MPICH's column, too
    "port": "port",  # they pass over it
    "binding": "binding",  # MPICH's; both of Open MPI and Intel MPI end over it
}


class LineError(Exception):
    """What is wrong in a line."""


def _shown(text: str) -> str:
    """Quote what was read, on one line and not too long."""
    cut = text if len(text) <= _MAX_SHOWN_CHARACTERS else text[:_MAX_SHOWN_CHARACTERS] + "..."
    return ascii(cut)


def _number(what: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or len(text) > _MAX_SHOWN_CHARACTERS or int(text) > _MAX_SLOTS:
        raise LineError(f"{what} is {_shown(text)}, expected a whole number up to {_MAX_SLOTS}")
    return int(text)


def _checked(address: str, name: str) -> str:
    """Return a host's IPv6 address, or its name or IPv4 address.

    Raises:
        LineError: it is too long, or no address.
    """
    host = address or name
    if len(host) > LONGEST_NAME:
        raise LineError(f"{_shown(host)} has {len(host)} characters, at most {LONGEST_NAME} fit")
    if address or not host.strip("0123456789."):
        version, parsed = IPV6 if address else IPV4, addresses.parse(host)
        if parsed is None or parsed.version != version:
            raise LineError(f"{_shown(host)} is not an IPv{version} address")
    return host


def _read_line(text: str, number: int) -> Host:
    """Read a line that isn't blank and has no comment.

    Raises:
        LineError: it has something that no hostfile may have.
    """
    found = _LINE.fullmatch(text)
    if found is None:
        raise LineError(
            f"{_shown(text.strip())}, expected `host slots=N` or `host:N`, one host a line, in "
            "letters, digits, dots and hyphens, with at most 63 between dots"
        )
    name = _checked(found["bracketed"] or found["ipv6"] or "", found["name"])
    given = {key: value for key in ("user", "slots") if (value := found[key]) is not None}
    for key, value in (word.groups() for word in _WORDS.finditer(found["words"])):
        meaning = _KEYS.get(key, "")
        if value is None and not meaning:
            continue  # Open MPI ignores bare words
        if value is None or not meaning:
            expected = "expected `slots=N`, `max_slots=N`, `user=NAME` or a comment"
            raise LineError(f"{_shown(key)}, {expected}")
        if meaning in given:
            raise LineError(f"{meaning} is given twice")
        given[meaning] = value
    slots, most = (_number(key, given.get(key)) for key in ("slots", "max_slots"))
    return Host(
        name=name,
        slots=1 if slots is None else slots,
        slots_given=slots is not None,
        max_slots=most,
        user=given.get("user", ""),
        binding=given.get("binding", ""),
        line=number,
    )


_BOM: Final = "\ufeff"


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number and the content of each line that has more than blanks and a comment."""
    for number, line in enumerate(text.removeprefix(_BOM).split("\n"), start=1):
        content = line.removesuffix("\r").partition("#")[0].rstrip(" \t")
        if content:
            yield number, content


def is_blank(text: str) -> bool:
    """Whether a hostfile names no host yet: empty, or only blank lines and comments.

    A mounted file may be written after the start: it is waited for until this is false.
    """
    return not any(True for _ in _lines(text))


def _added(first: Host, again: Host) -> Host:
    """One host of two lines; a line without max_slots has no limit, so the sum has none."""
    both = first.max_slots is not None and again.max_slots is not None
    return replace(
        first,
        slots=first.slots + again.slots,
        slots_given=True,
        max_slots=(first.max_slots or 0) + (again.max_slots or 0) if both else None,
        user=first.user or again.user,
        binding=first.binding or again.binding,
    )


def _invalid(where: str, message: str, named_by: str) -> MpibootError:
    evidence = (f"this hostfile is named by {named_by}",) if named_by else ()
    return error("hostfile-invalid", f"{where}: {message}", evidence=evidence)


def parse(text: str, path: str, named_by: str) -> Hostfile:
    """Read a hostfile.

    Understood are ``host``, ``host slots=N`` (blanks around ``=`` or not; ``cpu=`` as Open MPI
    has it), ``max_slots=``, ``host:N``, ``user@host``, MPICH's ``user=`` and ``binding=``, IPv4,
    IPv6 bare or in brackets, comments, blank lines, CRLF, a byte order mark and a missing final
    newline. Lines of one host are added up at the place of the first, without numbers as Open MPI
    adds them up. Bare words behind a host mean nothing, as for Open MPI.

    Raises:
        MpibootError: ``hostfile-invalid``; the message begins with ``path:line:``.
    """
    found: dict[str, Host] = {}
    for number, line in _lines(text):
        try:
            host = _read_line(line, number)
        except LineError as line_error:
            raise _invalid(f"{path}:{number}", str(line_error), named_by) from None
        key = canonical(host.name)
        found[key] = _added(found[key], host) if key in found else host
    if not found:
        raise _invalid(path, "has no hosts, expected one `host slots=N` per line", named_by)
    return Hostfile(path, named_by, tuple(found.values()))


def union(files: Sequence[Hostfile]) -> Hostfile:
    """Make one hostfile of those that the programs of a line name.

    Of a host that several have the first one counts, as Open MPI 4.1 takes it.
    """
    found: dict[str, Host] = {}
    for file in files:
        for host in file.hosts:
            found.setdefault(canonical(host.name), host)
    return Hostfile(
        ", ".join(file.path for file in files),
        files[0].named_by,
        tuple(found.values()),
        parts=tuple(files),
    )


def render(hosts: Sequence[Host], *, colon: bool = False) -> str:
    """Write hosts as the text of a hostfile, one line each.

    A host without a number gets none: each MPI has its own for it. ``host slots=N``, the only form
    that Open MPI 4.1 and 5.0 both honour, has IPv6 addresses bare, as they want them, and knows no
    binding. With ``colon``, ``host:N`` is for Hydra, which refuses ``slots=`` and ``max_slots=``:
    IPv6 is in brackets there, which separate it from the count; hosts of no slots it leaves out
    while others have some, as MPICH dies of ``:0``.
    """
    if colon:
        hosts = [host for host in hosts if host.slots] or hosts
    lines = []
    for host in hosts:
        user = f"{host.user}@" if host.user else ""
        name = f"[{host.name}]" if colon and ":" in host.name else host.name
        slots = f":{host.slots}" if colon else f" slots={host.slots}"
        most = "" if colon or host.max_slots is None else f" max_slots={host.max_slots}"
        binding = f" binding={host.binding}" if colon and host.binding else ""
        lines.append(f"{user}{name}{slots * host.slots_given}{most}{binding}\n")
    return "".join(lines)
