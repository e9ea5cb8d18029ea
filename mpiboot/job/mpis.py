"""The MPIs that mpiboot knows. A new one is a class in a module like ``openmpi`` and ``hydra``."""

from __future__ import annotations

from typing import Final

from mpiboot.core.model import Mpi, MpiFamily
from mpiboot.job.hydra import INTEL, MPICH
from mpiboot.job.implementation import Implementation
from mpiboot.job.openmpi import OPENMPI4, OPENMPI5, SPECTRUM, of_series

IMPLEMENTATIONS: Final[dict[MpiFamily, Implementation]] = {
    mpi.family: mpi for mpi in (OPENMPI4, OPENMPI5, MPICH, INTEL, SPECTRUM)
}


def implementation_of(mpi: Mpi) -> Implementation | None:
    """Find what mpiboot does for an installed MPI; None for one that it does not know."""
    if mpi.family in (MpiFamily.OPENMPI4, MpiFamily.OPENMPI5):
        return of_series(mpi.family, mpi.version)
    return IMPLEMENTATIONS.get(mpi.family)
