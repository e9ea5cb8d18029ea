"""Log lines on stderr: plain words for people, JSON lines on request; stdout stays the program's.

A line is an event name, a sentence and fields: ``log.info("gate", "2/4 hosts ready", ready=2)``.
Not the stdlib's logging: its import alone costs a worker a fifth of the time to sshd, and an
entrypoint needs neither handlers nor a tree of loggers.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from mpiboot.core.model import Finding, Json, Level, LogFormat, LogLevel

_Value = TypeVar("_Value")

# Lines of evidence that people are shown at once; JSON has all of them.
_MAX_EVIDENCE_LINES: Final = 24
# What the lines of a record that has several begin with.
BELOW: Final = "mpiboot:   "
# The form of JSON lines (docs/reference/log.md): a field that goes or means something else is a
# new number.
FORMAT: Final = 1
# mpiboot's own modules; the folders above may have any name, as /opt/mpiboot of an image.
_PACKAGE: Final = __file__.removesuffix("core/log.py")
# Its levels from the least; and those of findings, others than warnings.
_LEVELS: Final = tuple(LogLevel)
_OF_FINDINGS: Final = {Level.FAIL: LogLevel.ERROR, Level.OK: LogLevel.INFO}
_UNMARKED: Final = (LogLevel.DEBUG, LogLevel.INFO)


class _Log:
    """Where lines go and in which form; set once by the command line."""

    threshold = LogLevel.INFO
    as_json = False
    role = ""
    ends_container = True
    write: Callable[[bytes], object] | None = None


_STATE: Final = _Log()


def configure(
    *, level: LogLevel = LogLevel.INFO, form: LogFormat = LogFormat.HUMAN, role: str = ""
) -> None:
    """Set what is shown and how."""
    _STATE.threshold = level
    _STATE.as_json = form is LogFormat.JSON
    _STATE.role = role


def write_by(write: Callable[[bytes], object] | None) -> None:
    """Let lines be written by something else than a write to stderr; each call is whole lines."""
    _STATE.write = write


def _out(data: bytes) -> None:
    """Write whole lines at once: other processes (mpirun, ranks) share this stderr."""
    if _STATE.write is not None:
        _STATE.write(data)
        return
    try:
        sys.stderr.flush()
        os.write(2, data)
    except (OSError, ValueError):  # stderr is closed: never a reason to fail a job
        return


def shows(level: LogLevel) -> bool:
    """Whether lines of a level are written."""
    return _LEVELS.index(level) >= _LEVELS.index(_STATE.threshold)


def write(level: LogLevel, event: str, message: str, **fields: Json) -> None:
    """Write a line of any level."""
    if not shows(level):
        return
    message, fields = without_secrets(message), without_secrets(fields)
    if _STATE.as_json:
        text = _as_json(level, event, message, fields)
    else:
        mark = "" if level in _UNMARKED else f"{level.value}: "
        # A line of its own is a record of its own where logs are collected.
        evidence = fields.get("evidence")
        below = _shown(evidence) if isinstance(evidence, list) else ""
        text = f"mpiboot: {mark}{message}{below}".replace("\n", f"\n{BELOW}")
        hint = fields.get("hint")
        if hint:
            text += "\nmpiboot:   -> " + str(hint).replace("\n", "\nmpiboot:      ")
    _out((text + "\n").encode("utf-8", "backslashreplace"))


def without_secrets(value: _Value) -> _Value:
    """Hide secrets in text, or in a record's texts, that is about to leave this process."""
    from mpiboot.core import masking  # noqa: PLC0415 - its patterns take milliseconds to load

    return masking.masked(value)


def _as_json(level: LogLevel, event: str, message: str, fields: Mapping[str, Json]) -> str:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
    line: dict[str, Json] = {"format": FORMAT, "time": stamp + "Z", "level": level.value}
    line["event"] = event
    if _STATE.role:
        line["role"] = _STATE.role
    return json.dumps(line | {"message": message, **fields}, ensure_ascii=False, default=str)


def record(event: str, message: str, **fields: Json) -> None:
    """Write a line that is JSON whatever the form and level of others, and begins a line."""
    before = "" if shows(LogLevel.INFO) else "\n"  # else mpiboot's own last line has ended it
    text = _as_json(LogLevel.INFO, event, message, without_secrets(fields))
    text = f"{before}{text}\n"
    _out(text.encode("utf-8", "backslashreplace"))


def _shown(evidence: Sequence[Json]) -> str:
    rest = len(evidence) - _MAX_EVIDENCE_LINES
    lines = "".join(f"\n{line}" for line in evidence[:_MAX_EVIDENCE_LINES])
    return lines + (f"\n... and {rest} more" if rest > 0 else "")


def fresh_line() -> None:
    """Begin a new line where each is JSON: another process may have left one without its end."""
    if _STATE.as_json:
        _out(b"\n")


# What only a developer wants to know, what changed, what looks wrong though the job goes on, and
# what failed: each takes the event, the message and fields, as ``write`` does behind its level.
debug: Final = partial(write, LogLevel.DEBUG)
info: Final = partial(write, LogLevel.INFO)
warning: Final = partial(write, LogLevel.WARNING)
error: Final = partial(write, LogLevel.ERROR)


def failed(what: str, wrong: Exception) -> None:
    """Warn of an exception in what only watches a job, with its place: the job goes on without."""
    place, trace = "", wrong.__traceback__
    while trace:  # without the module traceback: a pod without a free descriptor can't load one
        file = trace.tb_frame.f_code.co_filename
        if file.startswith(_PACKAGE) or not place:
            place = f" at {file.removeprefix(_PACKAGE)}:{trace.tb_lineno}"
        trace = trace.tb_next
    warning(
        "bug",
        f"[bug] {what} failed{place}: {type(wrong).__name__}: {wrong}; the job goes on without it",
    )


def ended(code: int, reference: str = "") -> None:
    """Log the end of this run as a JSON line; for people its last message or output is enough.

    Args:
        code: the exit code.
        reference: what the code stands for; empty for 0.
    """
    if _STATE.as_json:
        level = LogLevel.ERROR if code and reference != "signal" else LogLevel.INFO
        named = f" ({reference})" if reference else ""
        write(level, "ended", f"ended: exit {code}{named}", exit=code, reference=reference)


def finding(item: Finding) -> None:
    """Log a finding at its level."""
    where = f"{item.where}: " if item.where else ""
    fields: dict[str, Json] = {"check": item.check, "hint": item.hint}
    if item.host:
        fields["host"] = item.host
    if item.hosts:
        fields["hosts"] = list(item.hosts)
    if item.evidence:
        fields["evidence"] = list(item.evidence)
    message = f"[{item.check}] {where}{item.message}"
    write(_OF_FINDINGS.get(item.level, LogLevel.WARNING), item.check, message, **fields)


# The kubelet reads at most this much.
TERMINATION_LIMIT: Final = 4096


def _open_existing(path: str, flags: int) -> int:
    """Open what is there, never creating it; a pipe without a reader or writer can't block."""
    return os.open(path, flags & ~os.O_CREAT | os.O_NONBLOCK)


def ends_container(ends: bool) -> None:  # noqa: FBT001
    """Set whether this process's end is the container's: then it writes the termination message."""
    _STATE.ends_container = ends


def read_termination(path: str) -> str:
    """Read the reason that is there; empty where none is, or the file can't be read."""
    with (
        contextlib.suppress(OSError),
        open(path, "rb", buffering=0, opener=_open_existing) as file,
    ):
        return (file.read(TERMINATION_LIMIT) or b"").decode("utf-8", "replace")
    return ""


def write_termination(path: str, text: str) -> None:
    """Write the reason of a failure to where the kubelet reads it; ignored where there is none.

    The kubelet mounts that one file: it is opened and truncated, never created or renamed onto.
    """
    if not _STATE.ends_container:
        return
    data = without_secrets(text).encode("utf-8", "replace")[:TERMINATION_LIMIT]
    data = data.decode("utf-8", "ignore").encode()  # drop the part of a character at the cut
    with (
        contextlib.suppress(OSError),
        open(path, "wb", buffering=0, opener=_open_existing) as file,
    ):
        file.write(data)
