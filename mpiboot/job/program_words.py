"""Classifies a program by its words: mpirun, a single program, torchrun. Pure.

No option of mpirun is read here: see ``mpirun_line``. Options and variables for torchrun are those
of its torch/distributed/run.py: with each option goes a variable PET_..., and a master address
counts where there is no endpoint. A program without torchrun has MASTER_ADDR.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

# The names by which a line is a launch; Debian's alternatives have the MPI's name behind a dot.
MPIRUNS: Final = (
    *("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "oshrun"),
    *("mpirun.openmpi", "mpiexec.openmpi", "mpirun.mpich", "mpiexec.mpich"),
)


def is_mpirun(word: str) -> bool:
    """Whether a program is an mpirun by its name, with or without a path."""
    return word.rpartition("/")[2] in MPIRUNS


def called(program: Sequence[str]) -> str:
    """Give the mpirun that a line calls, by name or path; empty where it calls none.

    ``prterun --version`` does not name the MPI: the mpirun beside it does.
    """
    if not program or not is_mpirun(program[0]):
        return ""
    folder, slash, name = program[0].rpartition("/")
    return f"{folder}{slash}mpirun" if name == "prterun" else program[0]


# The strongest first.
_NAMED_BY: Final = (
    ("rdzv-endpoint", "PET_RDZV_ENDPOINT"),
    ("master-addr", "PET_MASTER_ADDR"),
    ("", "MASTER_ADDR"),
)


class Rendezvous(NamedTuple):
    """Where processes meet: a host's name or address, and the option or variable that names it."""

    host: str
    by: str


def find_rendezvous(program: Sequence[str], environ: Mapping[str, str]) -> Rendezvous | None:
    """Find where a program's processes meet; None where nothing names it.

    Args:
        program: the words of its line.
        environ: its environment.
    """
    if "--standalone" in program:  # torchrun then meets in this pod, whatever else is said
        return None
    found = (
        Rendezvous(_host(text), by)
        for option, variable in _NAMED_BY
        for text, by in (
            (_option(program, option), f"--{option}"),
            (environ.get(variable, ""), variable),
        )
    )
    return next((one for one in found if one.host), None)


def _option(program: Sequence[str], option: str) -> str:
    """Give an option's value; it is written with dashes or underscores, after `=` or a blank."""
    for word, following in pairwise((*program, "")):
        name, equals, value = word.partition("=")
        if option and name.replace("_", "-") == f"--{option}":
            return value if equals else following
    return ""


def _host(endpoint: str) -> str:
    """Cut the port off: ``trainer-0:29500``, ``[fd00::1]:29500``, or an address without one."""
    text = endpoint.strip()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text if text.count(":") > 1 else text.partition(":")[0]
