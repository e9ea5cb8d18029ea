"""Programs on PATH, and the signals and locale that a started program must find.

A folder that is closed to this user holds no program.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Final

DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Python ignores these at its start, and what is ignored stays so over exec.
IGNORED_BY_PYTHON: Final = (signal.SIGPIPE, signal.SIGXFSZ)


def is_executable(path: str) -> bool:
    """Whether this user can run the file; False also where a folder on the way is closed."""
    # Not Path.is_file: it raises where a folder on the way is closed to this user.
    return os.path.isfile(path) and os.access(path, os.X_OK)  # noqa: PTH113


def find(program: str, path: str) -> str | None:
    """Find the file that a program's name stands for on a PATH; None where there is none.

    A name with a slash is that path itself.
    """
    if "/" in program:
        return program if is_executable(program) else None
    # An empty entry is the current folder, as the shell has it.
    places = (os.path.join(folder or ".", program) for folder in path.split(os.pathsep))  # noqa: PTH118 - names only
    return next(filter(is_executable, places), None)


def is_script(path: str) -> bool:
    """Whether a file begins as a script does; False also where it can't be read."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib costs the parent a megabyte
            return file.read(2) == b"#!"
    except OSError:
        return False


def knows(binary: str, word: str) -> bool:
    """Whether a program's file contains a word, such as an option's name.

    To run it would cost a process, and an unknown option ends it at its start.
    """
    from mmap import PROT_READ, mmap  # noqa: PLC0415 - this module is also the parent's

    try:
        # Mapped: a megabyte that is read once stays in a process that stays.
        with open(binary, "rb") as file, mmap(file.fileno(), 0, prot=PROT_READ) as data:  # noqa: PTH123
            return data.find(word.encode()) >= 0
    except (OSError, ValueError):  # an empty file can't be mapped
        return False


def take_out_locale() -> None:
    """Take LC_CTYPE out of the environment, unless this process was started with it.

    A program that mpiboot starts, and its ranks, would else have a variable that nobody set, and
    the launcher's log would name it as one of the pod's. Python keeps the locale that it chose.
    """
    if "LC_CTYPE" in os.environ:
        with contextlib.suppress(OSError), open("/proc/self/environ", "rb") as given:  # noqa: PTH123 - light
            if not any(item.startswith(b"LC_CTYPE=") for item in given.read().split(b"\0")):
                del os.environ["LC_CTYPE"]
