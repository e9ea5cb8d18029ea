"""How a setting's text is read: one parser for each kind, with the kind's name and its rule.

A parser raises ValueError with what was expected; the caller says by whom the text was given.
Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

Parse = Callable[[str], Any]

# What a cluster sets in every pod for each of its Services, such as one called "mpiboot-ssh".
_SERVICE: Final = re.compile(r".*_(SERVICE_(HOST|PORT(_.+)?)|PORT_\d+_(TCP|UDP|SCTP)(_.+)?)")
_SERVICE_PORT: Final = re.compile(r"(?:tcp|udp|sctp)://")


def boolean(text: str) -> bool:
    """Read yes or no in the spellings that manifests use."""
    word = text.strip().lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off", ""):
        return False
    raise ValueError("true or false")


def seconds(text: str) -> float:
    """Read a length of time: seconds, or a number with s, m or h."""
    word = text.strip().lower()
    scale = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(word[-1:], 0.0)
    try:
        value = float(word[:-1]) * scale if scale else float(word)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ValueError("a number of seconds, such as 600, 90s or 10m")
    return value


def count(text: str) -> int:
    """Read a whole number from 1."""
    if not text.strip().isascii() or not text.strip().isdigit() or int(text) < 1:
        raise ValueError("a whole number from 1")
    return int(text)


def port(text: str) -> int:
    """Read a TCP port."""
    number = int(text) if text.strip().isascii() and text.strip().isdigit() else 0
    if not 0 < number < 65536:  # noqa: PLR2004 - the range of a TCP port
        raise ValueError("a port from 1 to 65535")
    return number


def ports(text: str) -> str:
    """Read a range of TCP ports; none below 1024, which MPI itself refuses."""
    first, dash, last = (part.strip() for part in text.partition("-"))
    try:
        low, high = port(first), port(last if dash else first)
    except ValueError:
        low, high = 0, 0
    if not 1024 <= low <= high:  # noqa: PLR2004 - the first port that needs no privilege
        raise ValueError("two ports from 1024 to 65535, such as 40000-40099")
    return f"{low}-{high}"


def words(text: str) -> tuple[str, ...]:
    """Read a list of words, split at commas and blanks."""
    return tuple(text.replace(",", " ").split())


def plain(text: str) -> str:
    """Read a value as it is; a control character is never meant."""
    if any(ord(char) < ord(" ") for char in text):
        raise ValueError("a value without control characters")
    return text.strip()


def path(text: str) -> str:
    """Read the path of a file or folder."""
    return plain(text)


def key_path(text: str) -> str:
    """Read the path of a private key; the key itself is never echoed."""
    if is_key(text):
        raise ValueError("the path of the key, not the key itself")
    return path(text)


def is_key(text: str) -> bool:
    """Whether a text is a private key itself, which no message may show."""
    return "PRIVATE KEY" in text


def one_of(*choices: str) -> Parse:
    """Read one word of a list."""

    def parse(text: str) -> str:
        word = text.strip().lower()
        if word not in choices:
            raise ValueError("one of " + ", ".join(choices))
        return word

    parse.__doc__ = "|".join(choices)
    return parse


def member_of(kind: type[Enum]) -> Parse:
    """Read the value of a member of an enumeration."""
    choices = [str(item.value) for item in kind]

    def parse(text: str) -> Enum:
        try:
            return kind(text.strip().lower())
        except ValueError:
            raise ValueError("one of " + ", ".join(choices)) from None

    parse.__doc__ = "|".join(choices)
    return parse


def signal_word(text: str) -> str:
    """Read the name of a signal that programs save on."""
    word = text.strip().upper().removeprefix("SIG")
    if word not in ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2"):
        raise ValueError("one of TERM, INT, HUP, QUIT, USR1, USR2")
    return word


signal_word.__doc__ = "TERM|INT|HUP|QUIT|USR1|USR2"


def rewriting(text: str) -> str:
    """Read ``off|on|auto``, and true or false as the older name has them."""
    word = text.strip().lower()
    if word in ("off", "on", "auto"):
        return word
    try:
        return "on" if boolean(word) else "off"
    except ValueError:
        raise ValueError("one of off, on, auto") from None


def switch(text: str) -> str:
    """Read on or off, also as true or false."""
    try:
        return "on" if boolean(text) else "off"
    except ValueError:
        raise ValueError("on or off") from None


_KINDS: Final[dict[Parse, str]] = {
    boolean: "true|false",
    seconds: "time",
    count: "number",
    port: "port",
    ports: "first-last",
    words: "words",
    plain: "text",
    path: "path",
    key_path: "path",
    rewriting: "off|on|auto",
    switch: "on|off",
}


def kind(parse: Parse) -> str:
    """Name what a parser reads, as help and pages show it; the choices, where it has some."""
    return _KINDS.get(parse) or parse.__doc__ or "text"


def shown(value: object) -> str:
    """Write a setting's value as a user would; nothing where it has none."""
    match value:
        case None | "" | ():
            return ""
        case bool():
            return "true" if value else "false"
        case tuple():
            return ",".join(str(item) for item in value)
        case float():
            return f"{value:g}"
        case Enum():
            return str(value.value)
        case _:
            return str(value)


def of_service(name: str, value: str) -> bool:
    """Tell whether the cluster set a variable, for a Service whose name begins as settings do."""
    if _SERVICE.fullmatch(name):
        return True
    return name.endswith("_PORT") and _SERVICE_PORT.match(value) is not None
