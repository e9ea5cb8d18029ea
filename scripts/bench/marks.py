"""Runs mpiboot and notes when each step is done: ``marks.py FILE PATHS PLACE... -- WORD...``.

A place is MODULE:NAME, a function after which a step is done; with a + behind it, before which.
Modules of places are loaded first, as mpiboot loads them, and that is a step of its own.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # what mpiboot loads itself is to be a step
    from collections.abc import Callable
    from typing import Any

PYTHON, LOADED = "python", "loaded"  # steps that have no place
_ASYNC = 0x80  # inspect.CO_COROUTINE; that module takes ten milliseconds
_FILE = 200  # a descriptor; mpiboot has a use for low ones


def note(place: str) -> None:
    """Note the time: a line that other processes' can't mix with."""
    os.write(_FILE, f"{place} {time.monotonic()}\n".encode())


def wrapped(place: str, function: Callable[..., Any], *, before: bool) -> Callable[..., Any]:
    """A function that does the same."""

    async def later(*words: object, **named: object) -> object:
        result = await function(*words, **named)
        note(place)
        return result

    def now(*words: object, **named: object) -> object:
        if before:
            note(place)
        result = function(*words, **named)
        if not before:
            note(place)
        return result

    return later if function.__code__.co_flags & _ASYNC else now


def main() -> None:
    """Load, wrap, and be mpiboot."""
    opened = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(opened, _FILE, inheritable=False)
    os.close(opened)
    note(PYTHON)
    sys.path[:0] = sys.argv.pop(2).split(":")
    end = sys.argv.index("--")
    places, words = sys.argv[2:end], sys.argv[end + 1 :]
    from mpiboot.cli.main import main as run  # noqa: PLC0415 - it is measured

    for place in places:
        __import__(place.partition(":")[0])
    note(LOADED)
    for place in places:
        module, _, path = place.partition(":")
        *outer, name = path.rstrip("+").split(".")
        owner = sys.modules[module]
        for part in outer:
            owner = getattr(owner, part)
        setattr(owner, name, wrapped(place, getattr(owner, name), before=path.endswith("+")))
    sys.argv = ["mpiboot", *words]
    run()


if __name__ == "__main__":
    main()
