"""Whether a command line calls an mpirun, and which one, whatever its options mean. Pure, light."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

PROGRAMS: Final = frozenset({"mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"})
# Debian's alternatives have the MPI's name behind a dot.
_SUFFIXES: Final = (".openmpi", ".mpich")
_SLIP: Final = 3


def is_mpirun(word: str) -> bool:
    """Tell whether a program is an mpirun by its name, with or without a path."""
    name = word.rsplit("/", 1)[-1]
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return name in PROGRAMS


def called(program: Sequence[str]) -> str:
    """Give the mpirun that a line calls, by name or path; empty where it calls none.

    ``prterun`` does not say whose it is: the mpirun beside it does.
    """
    if not program or not is_mpirun(program[0]):
        return ""
    folder, slash, name = program[0].rpartition("/")
    return f"{folder}{slash}mpirun" if name == "prterun" else program[0]


def slip(argv: Sequence[str]) -> str:
    """Say what a usual slip in manifests did to a line: several words in one argument.

    ``args: ["mpirun -n 4 ./prog"]`` is one word, the name of a program that isn't there.

    Returns:
        A sentence; empty where nothing is odd.
    """
    for word in argv[:2]:
        parts = word.split()
        if len(parts) >= _SLIP and (is_mpirun(parts[0]) or parts[0].startswith("-")):
            from mpiboot.job.masking import masked_words  # noqa: PLC0415 - heavy, and rarely needed

            (shown,) = masked_words((word,))
            wanted = ", ".join(f'"{part}"' for part in masked_words(parts))
            return f"{shown!r} is one argument, probably meant as several: [{wanted}]"
    return ""
