"""Programs that run once, on the launcher, and start processes by themselves. Pure.

They are told by what they are (``horovodrun``, ``ssh``), or by what a shell script, or a ``sh -c``
line, calls. Every other program is what ranks run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_SHELLS: Final = frozenset({"sh", "bash", "dash", "ksh", "zsh", "ash", "busybox"})
_PYTHON: Final = re.compile(r"python[\d.]*")
_MPIRUN: Final = frozenset({"mpirun", "mpiexec"})
# Programs that log in to the hosts by themselves. Not scp: a rank may copy its result by that.
_LOG_IN: Final = frozenset({"ssh", "pdsh", "horovodrun", "deepspeed"})
# What keeps a container for whoever looks around in it.
_STAY: Final = (
    ("sleep", "infinity"),
    ("sleep", "inf"),
    ("tail", "-f", "/dev/null"),
    ("tail", "-F", "/dev/null"),
)
_NAMES: Final = "|".join(sorted(_MPIRUN | _LOG_IN))
# A call stands where a command begins: behind a line's start, an operator, a word that takes a
# command, and variables that are set for it.
_CALL: Final = re.compile(
    r"(?:^|[;&|(`{!]|\b(?:then|do|else|exec|time|nohup|command|env|if|while|until|timeout\s+\S+)\s)"
    r"\s*(?:[A-Za-z_]\w*=\S*\s+)*"
    rf"(?P<path>(?:[\w.$}}{{-]*/)*)(?P<name>{_NAMES})(?=[\s;&|)`]|$)",
    re.MULTILINE,
)
# The same in a Python program: the first word of what is started.
_PYTHON_CALL: Final = re.compile(
    r"\b(?:system|popen|run|call|check_call|check_output|Popen|getoutput|create_subprocess_\w+)"
    rf"\(\s*[\[(]?\s*f?[\"'](?P<path>(?:[\w.-]*/)*)(?P<name>{_NAMES})(?=[\"'\s])"
)
_CONTINUED: Final = re.compile(r"\\\n")
_COMMENT: Final = re.compile(r"(?:^|(?<=\s))#.*$", re.MULTILINE)
_WITH_VALUE: Final = frozenset({"-o", "+o", "-O", "+O", "--rcfile", "--init-file"})
_PYTHON_WITH_VALUE: Final = frozenset({"-W", "-X", "--check-hash-based-pycs"})


@dataclass(frozen=True, slots=True)
class Script:
    """What a program's own words say of a script: its file, or its text (of ``sh -c``).

    ``python`` where it is one for Python.
    """

    path: str = ""
    text: str = ""
    python: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """Where a script calls one of the programs: the path in front of the name, and the name."""

    path: str
    name: str

    @property
    def is_mpirun(self) -> bool:
        """Whether it is mpirun, by whatever path."""
        return self.name in _MPIRUN

    @property
    def enters_mpiboot(self) -> bool:
        """Whether it is mpirun by its name alone, which is mpiboot there, with its own gates."""
        return self.is_mpirun and not self.path


def named(program: Sequence[str]) -> Script:
    """Find the script that a program may be: an interpreter's argument, or the program itself."""
    first, *rest = program
    name = first.rsplit("/", 1)[-1]
    words = iter(rest)
    if _PYTHON.fullmatch(name):
        for word in words:
            if word in _PYTHON_WITH_VALUE:
                next(words, "")
            elif word.startswith("-"):
                if word.startswith(("-c", "-m")):
                    break
            else:
                return Script(path=word, python=True)
        return Script()
    if name not in _SHELLS:
        return Script(path=first)
    for word in words:
        if word in _WITH_VALUE:
            next(words, "")
        elif word.startswith("-") and not word.startswith("--") and "c" in word:
            return Script(text=next(words, ""))
        elif not word.startswith(("-", "+")):
            return Script(path=word)
    return Script()


def starts_by_itself(program: Sequence[str]) -> bool:
    """Tell whether a program is known to log in to the hosts, whatever is in its file."""
    return program[0].rsplit("/", 1)[-1] in _LOG_IN


def only_stays(program: Sequence[str]) -> bool:
    """Tell whether a program keeps the container for a look around: no job, and no ranks of it."""
    name, *rest = program[0].rsplit("/", 1)[-1], *program[1:]
    if (name, *rest) in _STAY:
        return True
    return name in _SHELLS - {"busybox"} and named(program) == Script() and "-s" not in rest


def calls(text: str) -> tuple[Call, ...]:
    """Find where a shell script calls mpirun, or what logs in to hosts."""
    plain = _COMMENT.sub("", _CONTINUED.sub(" ", text))
    return tuple(Call(found["path"], found["name"]) for found in _CALL.finditer(plain))


def python_calls(text: str) -> tuple[Call, ...]:
    """Find where a Python program plainly starts one of them."""
    plain = _COMMENT.sub("", text)
    return tuple(Call(found["path"], found["name"]) for found in _PYTHON_CALL.finditer(plain))
