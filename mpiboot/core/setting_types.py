"""How a setting's text is read: one parser for each kind, with the kind's name and its rule.

A parser raises ValueError with what was expected; the caller says by whom the text was given.
Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple


class HostKeys(str, Enum):
    """Which host keys a worker may show: the job's, any that is then kept, or any at all."""

    JOB = "job"
    ACCEPT_NEW = "accept-new"
    OFF = "off"


class DataNetworkUse(str, Enum):
    """Whether a job needs its data network, uses what it finds, or has none looked for."""

    REQUIRE = "require"
    PREFER = "prefer"
    OFF = "off"


class NcclSocket(str, Enum):
    """Over which link NCCL's sockets go; ``AUTO``: the data link where every worker reaches it."""

    AUTO = "auto"
    DATA = "data"
    CONTROL = "control"


class MpiNetwork(str, Enum):
    """Over which network MPI's own messages go."""

    CONTROL = "control"
    DATA = "data"


class Auto(str, Enum):
    """The value of a setting that leaves the choice to mpiboot."""

    AUTO = "auto"


AUTO: Final = Auto.AUTO


class ByIndex(str, Enum):
    """The role of a pod that is one of several alike: number 0 is the launcher, others workers."""

    BY_INDEX = "by-index"


BY_INDEX: Final = ByIndex.BY_INDEX


class LaunchAgent(str, Enum):
    """How a launcher reaches the job's hosts."""

    SSH = "ssh"
    KUBECTL = "kubectl"


class Switch(str, Enum):
    """Whether something is done."""

    OFF = "off"
    ON = "on"


class Stuck(str, Enum):
    """What is done about a job that seems stuck, which can't be proved."""

    WARN = "warn"
    END = "end"


class ValidateFirst(str, Enum):
    """Whether the ways between the workers are measured before a job."""

    QUICK = "quick"
    OFF = "off"


class ProveTransport(str, Enum):
    """What follows where RDMA was planned and carried nothing: a warning, or a failed job."""

    WARN = "warn"
    FAIL = "fail"
    OFF = "off"


class TagOutput(str, Enum):
    """How one tells in the job's output which rank wrote what."""

    OFF = "off"
    ON = "on"
    RANK0 = "rank0"


class WorkerExit(str, Enum):
    """After which end of the job a worker ends by itself: a good one, any, or none."""

    WITH_JOB = "with-job"
    AFTER_JOB = "after-job"
    NEVER = "never"


class LogFormat(str, Enum):
    """In which form lines are logged."""

    HUMAN = "human"
    JSON = "json"


class LogLevel(str, Enum):
    """The level of a log line, the lowest first."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Parse(NamedTuple):
    """Reads a setting's text; ``kind`` is what help and pages call what it reads."""

    kind: str
    read: Callable[[str], Any]

    def __call__(self, text: str) -> Any:  # noqa: ANN401 - the setting's own type
        """Read a text."""
        return self.read(text)


# What a cluster sets in every pod for each of its Services, such as one called "mpiboot-ssh".
_SERVICE: Final = re.compile(r".*_(SERVICE_(HOST|PORT(_.+)?)|PORT_\d+_(TCP|UDP|SCTP)(_.+)?)")
_SERVICE_PORT: Final = re.compile(r"(?:tcp|udp|sctp)://")


def _reads(kind: str) -> Callable[[Callable[[str], Any]], Parse]:
    return lambda read: Parse(kind, read)


@_reads("true|false")
def boolean(text: str) -> bool:
    """Read yes or no in the spellings that manifests use."""
    word = text.strip().lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off", ""):
        return False
    raise ValueError("true or false")


# What programs that get a number read it into: a C int.
_MOST: Final = 2**31 - 1
# What one Kubernetes cluster is made for (kubernetes.io, "Considerations for large clusters").
_MOST_PODS: Final = 150_000


@_reads("time")
def seconds(text: str) -> float:
    """Read a length of time: seconds, or a number with s, m or h."""
    word = text.strip().lower()
    scale = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(word[-1:], 0.0)
    try:
        value = float(word[:-1]) * scale if scale else float(word)
    except ValueError:
        value = -1.0
    if _MOST < value < float("inf"):
        raise ValueError(f"at most {_MOST} seconds")
    if not 0 <= value <= _MOST:
        raise ValueError("a number of seconds, such as 600, 90s or 10m")
    return value


@_reads("time")
def some_seconds(text: str) -> float:
    """Read a length of time that must not be 0."""
    value: float = seconds(text)
    if not value:
        raise ValueError("more than 0 seconds, such as 600, 90s or 10m")
    return value


def _whole(text: str, most: int) -> int:
    """Read a whole number from 1."""
    word = text.strip()
    digits = word.lstrip("0") if word.isascii() and word.isdigit() else ""
    if not digits:
        raise ValueError("a whole number from 1")
    if len(digits) > len(str(most)) or int(digits) > most:  # Python refuses to read very long ones
        raise ValueError(f"a whole number from 1 to {most}")
    return int(digits)


count: Final = Parse("number", partial(_whole, most=_MOST))
pods: Final = Parse("number", partial(_whole, most=_MOST_PODS))


@_reads("port")
def port(text: str) -> int:
    """Read a TCP port."""
    try:
        return _whole(text, 65535)
    except ValueError:
        raise ValueError("a port from 1 to 65535") from None


@_reads("first-last")
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


@_reads("words")
def words(text: str) -> tuple[str, ...]:
    """Read a list of words, split at commas and blanks."""
    return tuple(text.replace(",", " ").split())


@_reads("task[:slots],...")
def tasks(text: str) -> tuple[str, ...]:
    """Read names of tasks, each with the number of slots of its hosts behind a colon, or none."""
    found: tuple[str, ...] = words(text)
    for word in found:
        _, colon, slots = word.partition(":")
        if colon:
            count(slots)
    return found


def _plain(text: str) -> str:
    """Read a value as it is; a control character is never meant."""
    if any(ord(char) < ord(" ") for char in text):
        raise ValueError("a value without control characters")
    return text.strip()


plain: Final = Parse("text", _plain)
path: Final = Parse("path", _plain)


@_reads("path")
def key_path(text: str) -> str:
    """Read the path of a private key; the key itself is never echoed."""
    if is_key(text):
        raise ValueError("the path of the key, not the key itself")
    return _plain(text)


def is_key(text: str) -> bool:
    """Whether a text is a private key itself, which no message may show."""
    return "PRIVATE KEY" in text


def one_of(*choices: Enum) -> Parse:
    """Read the value of one of some members of enumerations."""
    found = {str(item.value): item for item in choices}

    def read(text: str) -> Enum:
        try:
            return found[text.strip().lower()]
        except KeyError:
            raise ValueError("one of " + ", ".join(found)) from None

    return Parse("|".join(found), read)


_SAVED_ON: Final = ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2")


@_reads("|".join(_SAVED_ON))
def signal_word(text: str) -> str:
    """Read the name of a signal that programs save on."""
    word = text.strip().upper().removeprefix("SIG")
    if word not in _SAVED_ON:
        raise ValueError("one of " + ", ".join(_SAVED_ON))
    return word


def switch(*choices: Enum) -> Parse:
    """Read ``on``, ``off`` or another choice; true and false are on and off."""
    word = one_of(*choices)
    found = {str(item.value): item for item in choices}

    def read(text: str) -> Enum:
        try:
            return found["on" if boolean(text) else "off"]
        except ValueError:
            member: Enum = word(text)
            return member

    return Parse(word.kind, read)


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
