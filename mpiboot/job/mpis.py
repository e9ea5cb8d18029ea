"""The MPIs that mpiboot knows. A new one is a class in a module like ``openmpi`` and ``hydra``."""

from __future__ import annotations

from typing import Final

from mpiboot.core.model import Mpi, MpiFamily
from mpiboot.job.hydra import INTEL, MPICH
from mpiboot.job.openmpi import NEWER, OPENMPI4, OPENMPI5, SPECTRUM
from mpiboot.job.plan_input import Implementation

IMPLEMENTATIONS: Final[dict[MpiFamily, Implementation]] = {
    mpi.family: mpi for mpi in (OPENMPI4, OPENMPI5, MPICH, INTEL, SPECTRUM)
}


_TRIED: Final = "5.0"


def implementation_of(mpi: Mpi) -> Implementation | None:
    """Find what mpiboot does for an installed MPI; None for one that it does not know.

    Of a series of Open MPI that was not tried it does what is safe. Off a cluster the version may
    not be known: then it is the series that was tried.
    """
    known = mpi.version[:1].isdigit() and not mpi.version.startswith(_TRIED)
    newer = mpi.family is MpiFamily.OPENMPI5 and known
    return NEWER if newer else IMPLEMENTATIONS.get(mpi.family)
