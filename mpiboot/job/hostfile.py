"""Hostfiles: reads every syntax in use into one record and writes the one that an MPI honours.

Pure text to records and back: files are opened, waited for and written elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from enum import Enum
from itertools import chain
from typing import Final, TypeAlias

from mpiboot.core import addresses
from mpiboot.core.addresses import IPV6
from mpiboot.core.checks import MpibootError, error
from mpiboot.core.facts import Host, Hostfile
from mpiboot.job.names import canonical

_SHOWN: Final = 60
LONGEST_NAME: Final = 253  # RFC 1035 section 2.3.4, without the final dot
_MOST_SLOTS: Final = 2**31 - 1  # every MPI keeps it in a C int

# RFC 1123 labels, and underscores, which host names of some platforms hold.
LABEL: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_ODD: Final = re.compile(r"[^A-Za-z0-9_.-]")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
_PAIR: Final = re.compile(
    r"[ \t]*(?P<key>[^ \t=]+)(?:[ \t]*(?P<equals>=)[ \t]*(?P<value>[^ \t]*))?[ \t]*"
)

# By runs of Open MPI 4.1 and 5.0, which end over any other key with a value.
_KEYS: Final = {
    **dict.fromkeys(("slots", "cpu", "count"), "slots"),
    **dict.fromkeys(("max_slots", "max-slots", "slots_max", "slots-max"), "max_slots"),
    **dict.fromkeys(("user", "username", "user_name"), "user"),  # the first is MPICH's column, too
    "port": "port",  # they pass over it
    "binding": "binding",  # MPICH's; both of Open MPI and Intel MPI end over it
}


class LineError(Exception):
    """What is wrong in a line, at which column (from 0)."""

    def __init__(self, column: int, message: str) -> None:
        """Say what is wrong where."""
        super().__init__(message)
        self.column = column
        self.message = message


def _shown(text: str) -> str:
    """Quote what was read, on one line and not too long."""
    cut = text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
    return ascii(cut)


def _number(text: str, column: int, what: str) -> int:
    digits = text.lstrip("0") if text.isascii() and text.isdigit() else ""
    if not digits or len(digits) > len(str(_MOST_SLOTS)) or int(digits) > _MOST_SLOTS:
        most = f" to {_MOST_SLOTS}" if digits else ""
        raise LineError(column, f"{what} is {_shown(text)}, expected a whole number from 1{most}")
    return int(digits)


def _address(text: str, column: int) -> str:
    found = addresses.parse(text)
    if found is None or found.version != IPV6:
        raise LineError(column, f"{_shown(text)} is not an IPv6 address; a count goes as `host:N`")
    if "%" in text:
        raise LineError(
            column, f"{_shown(text)} has a zone, expected an address that is the same in every pod"
        )
    return text


def _name(text: str, column: int) -> str:
    """Check a host name or IPv4 address; nothing that a shell would read gets through."""
    odd = _ODD.search(text)
    if odd:
        hint = "one host a line" if odd[0] == "," else "letters, digits, dots and hyphens"
        raise LineError(
            column + odd.start(), f"{_shown(odd[0])} in host {_shown(text)}, expected {hint}"
        )
    bare = text.removesuffix(".")
    if not bare:
        raise LineError(column, "expected a host name")
    if len(bare) > LONGEST_NAME:
        raise LineError(
            column, f"host {_shown(text)} has {len(bare)} characters, at most {LONGEST_NAME} fit"
        )
    if not bare.replace(".", "").strip("0123456789"):
        if addresses.parse(text) is None:
            raise LineError(column, f"{_shown(text)} is not an IPv4 address")
        return text
    at = column
    for label in bare.split("."):
        if not LABEL.fullmatch(label):
            raise LineError(
                at,
                f"{_shown(label)} in host {_shown(text)}, expected labels of 1 to 63 characters "
                "that neither begin nor end with a hyphen",
            )
        at += len(label) + 1
    return text


# The values that are no numbers, and what they are made of.
_WORDS: Final = {
    "user": (re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"), "letters, digits, . _ and -"),
    "binding": (re.compile(r"[A-Za-z0-9_.,:+-]+"), "letters, digits, : , + . _ and -"),
    "port": (re.compile(".*"), "anything"),
}


def _value(meaning: str, text: str, column: int, what: str) -> int | str:
    """Read a value; errors call it ``what``."""
    if meaning not in _WORDS:
        return _number(text, column, what)
    pattern, expected = _WORDS[meaning]
    if not pattern.fullmatch(text):
        raise LineError(column, f"{what} {_shown(text)}, expected {expected}")
    return text


# By key the value, and its column.
_Given: TypeAlias = "dict[str, tuple[int | str, int]]"


def _first_word(word: str, column: int) -> tuple[str, _Given]:
    """Read ``[user@]host[:N]``, ``[user@][IPv6][:N]`` or a bare IPv6 address."""
    given: _Given = {}
    user, at, rest = word.rpartition("@")
    if at:
        given["user"] = _value("user", user, column, "user"), column
    column += len(user) + len(at)
    if rest.startswith("["):
        address, closed, tail = rest[1:].partition("]")
        if not closed:
            raise LineError(column, f"{_shown(rest)}, expected a closing bracket")
        name = _address(address, column + 1)
        if tail and not tail.startswith(":"):
            raise LineError(column + len(address) + 2, f"{_shown(tail)}, expected `:N` or a blank")
        count, column = tail[1:] if tail else None, column + len(address) + 3
    elif rest.count(":") > 1:
        name, count = _address(rest, column), None
    else:
        name, colon, tail = rest.partition(":")
        name = _name(name, column)
        count, column = tail if colon else None, column + len(name) + 1
    if count is not None:
        given["slots"] = _number(count, column, f"slots of {name}"), column
    return name, given


def _read_line(text: str, number: int) -> tuple[Host, list[tuple[int, str]]]:
    """Read a line that isn't blank and has no comment.

    Returns:
        The host, and the bare words behind it, each with its column: Open MPI passes over them.

    Raises:
        LineError: it has something that no hostfile may have.
    """
    control = _CONTROL.search(text)
    if control:
        raise LineError(
            control.start(), f"control character {_shown(control[0])}: not a text file?"
        )
    start = len(text) - len(text.lstrip(" \t"))
    word = re.split("[ \t]", text[start:], maxsplit=1)[0]
    name, given = _first_word(word, start)
    unread = []
    at = start + len(word)
    while at < len(text):
        pair = _PAIR.match(text, at)
        if pair is None:
            rest = text[at:].lstrip()
            raise LineError(len(text) - len(rest), f"{_shown(rest)}, expected `slots=N`")
        key, column, at = pair["key"], pair.start("key"), pair.end()
        if pair["equals"] is None and key not in _KEYS and not _ODD.search(key):
            unread.append((column, _shown(key)))
            continue
        if pair["equals"] is None or key not in _KEYS:
            raise LineError(
                column,
                f"{_shown(key)}, expected `slots=N`, `max_slots=N`, `user=NAME` or a comment",
            )
        meaning = _KEYS[key]
        value = _value(meaning, pair["value"], pair.start("value"), key)
        if meaning in given:
            raise LineError(column, f"{meaning} is given twice in this line")
        given[meaning] = value, column
    slots = int(given["slots"][0]) if "slots" in given else None
    most, column = given.get("max_slots", (None, 0))
    if most is not None and int(most) < (slots or 1):
        raise LineError(column, f"max_slots is {most}, expected at least the {slots or 1} slots")
    host = Host(
        name=name,
        slots=slots or 1,
        slots_given=slots is not None,
        max_slots=None if most is None else int(most),
        user=str(given.get("user", [""])[0]),
        binding=str(given.get("binding", [""])[0]),
        line=number,
    )
    return host, unread


_BOM: Final = "\ufeff"
# What may not go into a copy that an MPI reads: its own lexer sees it first.
_UNPRINTABLE: Final = re.compile(r"[^ -~]")


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
        yield number, content.rstrip(" \t"), _UNPRINTABLE.sub("?", comment.strip())


def is_blank(text: str) -> bool:
    """Tell whether a hostfile names no host yet: empty, or only blank lines and comments.

    A mounted file may be written late, so who waits for it asks this before ``parse``.
    """
    return not any(line for _, line, _ in _lines(text))


def _added(first: Host, again: Host) -> Host:
    """One host of two lines; a line without max_slots has no limit, so the sum has none."""
    if first.user and again.user and first.user != again.user:
        raise LineError(
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


def _invalid(where: str, message: str, named_by: str) -> MpibootError:
    evidence = (f"this hostfile is named by {named_by}",) if named_by else ()
    return error("hostfile-invalid", f"{where}: {message}", evidence=evidence)


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
            host, unread = _read_line(line, number)
            host = replace(host, notes=notes)
            passed_over += [f"{path}:{number}:{at + 1}: {word}" for at, word in unread]
            notes = ()
            key = canonical(host.name)
            found[key] = _added(found[key], host) if key in found else host
        except LineError as wrong:
            where = f"{path}:{number}:{wrong.column + 1}"
            raise _invalid(where, wrong.message, named_by) from None
    if not found:
        raise _invalid(path, "has no hosts, expected one `host slots=N` per line", named_by)
    return Hostfile(path, named_by, tuple(found.values()), passed_over=tuple(passed_over))


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
