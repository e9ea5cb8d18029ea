"""Sets a rank's variables as torchrun would, from those of its MPI. Standard library only.

Every rank runs this before its program, so it imports as little as possible.
The variables are those that PyTorch's ``env://`` rendezvous reads:
https://pytorch.org/docs/stable/distributed.html#environment-variable-initialization
"""

from collections.abc import Mapping
from typing import Final

# PyTorch's own default (torch.distributed.run).
MASTER_PORT: Final = "29500"


# Of each MPI the variables of a rank: its number, how many there are, and both on its host.
LAUNCHERS: Final = (
    # Measured with 4.1.4 and 5.0.7 to 5.0.11; by PMIx alone no rank knows how many there are.
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    # Measured with MPICH 4.0.2 and 5.0.2, and Intel MPI 2021.18.1.
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what torchrun would set for this rank.

    ``MASTER_ADDR`` and ``MASTER_PORT`` stay where they are set already.

    Raises:
        ValueError: this is no rank, or its variables contradict each other.
    """
    names = next((row for row in LAUNCHERS if all(map(environ.get, row))), None)
    if names is None:
        known = " or all of ".join(", ".join(row) for row in LAUNCHERS)
        message = f"this process was not started as a rank, which has all of {known}"
        raise ValueError(f"{message}; write it on an mpirun line: `mpirun mpiboot rank -- PROGRAM`")
    rank, size, local_rank, local_size = (_number(name, environ[name]) for name in names)
    if not (local_rank <= rank < size and local_rank < local_size <= size):
        message = ", ".join(f"{name}={environ[name]}" for name in names)
        raise ValueError(f"{message} can't all be true of one rank")
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


def _number(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError(f"{name} is {text!r}, expected a number")
    return int(text)
