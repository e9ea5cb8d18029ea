"""Which shared libraries the loader finds in this image.

``python -I -S libraries.py NAME...`` writes the names that are not there, as JSON. It is a program
of its own because a library that is loaded runs code, which may print, hang or crash.
"""

# Run by its path, it must get along without its package.
from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from typing import Final

_SECONDS: Final = 5.0


def missing(
    names: Iterable[str], seconds: float = _SECONDS, program: str = __file__
) -> tuple[str, ...]:
    """Tell which libraries are not there; none where that can't be told.

    Args:
        names: their file names, as a program would load them.
        seconds: how long the child may take.
        program: what is run in its place, for tests.
    """
    wanted = tuple(names)
    try:
        done = subprocess.run(
            (sys.executable, "-I", "-S", program, *wanted),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=seconds,
            check=False,
        )
        said = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return ()
    return tuple(name for name in wanted if name in said) if isinstance(said, list) else ()


def _there(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError as error:
        # The loader names the file that it did not find. One that the library itself needs (CUDA's,
        # of a Python package) may be there already in the program that will load it.
        return not str(error).startswith(f"{name}: cannot open shared object file")
    return True


def _main(names: Iterable[str]) -> None:
    # A library may write to stdout, which is for the answer.
    answer = os.dup(1)
    os.dup2(2, 1)
    said = [name for name in names if not _there(name)]
    with os.fdopen(answer, "w") as out:
        json.dump(said, out)
    os._exit(0)  # past the libraries' own ends


if __name__ == "__main__":
    _main(sys.argv[1:])
