"""Sets a rank's variables as torchrun would, from those of its MPI. Standard library only.

Every rank runs this before its program, so it imports as little as possible.
The variables are those that PyTorch's ``env://`` rendezvous reads:
https://pytorch.org/docs/stable/distributed.html#environment-variable-initialization
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

# PyTorch's own default (torch.distributed.run).
MASTER_PORT: Final = "29500"


class Launcher(NamedTuple):
    """An MPI, and the variables in which its ranks find their numbers."""

    title: str
    rank: str
    size: str
    local_rank: str
    local_size: str


LAUNCHERS: Final = (
    # Measured with 4.1.4 and 5.0.7 to 5.0.11; by PMIx alone no rank knows how many there are.
    Launcher(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    # Measured with MPICH 4.0.2 and 5.0.2, and Intel MPI 2021.18.1.
    Launcher("MPICH, Intel MPI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what torchrun would set for this rank.

    ``MASTER_ADDR`` and ``MASTER_PORT`` stay where they are set already.

    Raises:
        ValueError: this is no rank, or its variables contradict each other.
    """
    by = next((row for row in LAUNCHERS if all(environ.get(name) for name in row[1:])), None)
    if by is None:
        raise ValueError(_not_a_rank(environ))
    rank, size, local_rank, local_size = _numbers(by, environ)
    master = environ.get("MASTER_ADDR")
    if not master and local_size != size:
        raise ValueError(
            f"MASTER_ADDR is not set, and rank {rank} doesn't know rank 0's host: set it in the "
            "launcher's pod, or let `mpiboot launcher` set it, which it does for `mpiboot rank` on "
            "the mpirun line itself, and with MPIBOOT_RANK_ENV=on"
        )
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_size),
        "MASTER_ADDR": master or "127.0.0.1",
        "MASTER_PORT": environ.get("MASTER_PORT") or MASTER_PORT,
    }


def _not_a_rank(environ: Mapping[str, str]) -> str:
    """Return why this is no rank."""
    for row in LAUNCHERS:
        if environ.get(row.rank):
            missing = ", ".join(name for name in row[1:] if not environ.get(name))
            return f"{row.rank} is set, as by {row.title}, but not {missing}"
    names = ", ".join(row.rank for row in LAUNCHERS)
    message = f"this process was not started as a rank: none of {names} is set"
    return f"{message}; write it on an mpirun line: `mpirun mpiboot rank -- PROGRAM`"


def _numbers(by: Launcher, environ: Mapping[str, str]) -> tuple[int, int, int, int]:
    """Read rank, size, local rank and local size."""
    rank, size, local_rank, local_size = (_number(name, environ[name]) for name in by[1:])
    if not (local_rank <= rank < size and local_rank < local_size <= size):
        message = ", ".join(f"{name}={environ[name]}" for name in by[1:])
        raise ValueError(f"{message} can't all be true of one rank")
    return rank, size, local_rank, local_size


def _number(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError(f"{name} is {text!r}, expected a number")
    return int(text)
