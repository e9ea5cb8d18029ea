"""Whether a program calls mpirun itself: what a shell script, or a ``sh -c`` line, says. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_SHELLS: Final = frozenset({"sh", "bash", "dash", "ksh", "zsh", "ash", "busybox"})
# Programs that are known to call mpirun by its name.
_CALLERS: Final = frozenset({"horovodrun"})
_NAMES: Final = "mpirun|mpiexec"
# A call stands where a command begins: behind a line's start, an operator, a word that takes a
# command, and variables that are set for it.
_CALL: Final = re.compile(
    r"(?:^|[;&|(`{!]|\b(?:then|do|else|exec|time|nohup|command|env|if|while|until|timeout\s+\S+)\s)"
    r"\s*(?:[A-Za-z_]\w*=\S*\s+)*"
    rf"(?P<path>(?:[\w.$}}{{-]*/)*)(?:{_NAMES}|{'|'.join(_CALLERS)})(?=[\s;&|)`]|$)",
    re.MULTILINE,
)
_CONTINUED: Final = re.compile(r"\\\n")
_COMMENT: Final = re.compile(r"(?:^|(?<=\s))#.*$", re.MULTILINE)
_WITH_VALUE: Final = frozenset({"-o", "+o", "-O", "+O", "--rcfile", "--init-file"})


@dataclass(frozen=True, slots=True)
class Script:
    """What a program's own words say of a script: its file, or its text (of ``sh -c``)."""

    path: str = ""
    text: str = ""


def named(program: Sequence[str]) -> Script:
    """Find the script that a program may be: a shell's argument, or the program itself."""
    first, *rest = program
    if first.rsplit("/", 1)[-1] not in _SHELLS:
        return Script(path=first)
    words = iter(rest)
    for word in words:
        if word in _WITH_VALUE:
            next(words, "")
        elif word.startswith("-") and not word.startswith("--") and "c" in word:
            return Script(text=next(words, ""))
        elif not word.startswith(("-", "+")):
            return Script(path=word)
    return Script()


def is_caller(program: Sequence[str]) -> bool:
    """Tell whether a program is known to call mpirun, whatever is in its file."""
    return program[0].rsplit("/", 1)[-1] in _CALLERS


def calls(text: str) -> tuple[str, ...]:
    """Find where a script calls mpirun.

    Returns:
        For each call the path in front of the name, empty where it is called by its name alone.
    """
    plain = _COMMENT.sub("", _CONTINUED.sub(" ", text))
    return tuple(found["path"] for found in _CALL.finditer(plain))
