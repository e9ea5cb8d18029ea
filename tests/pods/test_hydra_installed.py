"""The installed MPICH and Intel MPI: what they read, words of their own on the line, programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpiboot.job import hydra
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import PATIENCE, RING
from tests.pods.test_hydra import INTEL, MPICH4, quick, started


def strings_of(image: Image, path: str) -> set[str]:
    """The strings of a program; one that is a part of another isn't among them."""
    found: list[Path] = [layer / path for layer in image.layers if (layer / path).is_file()]
    parts = found[0].resolve().read_bytes().split(b"\0")
    return {part.decode("ascii", "replace") for part in parts}


@quick
def test_what_the_table_relies_on_is_read_by_the_installed_mpi(image: Image) -> None:
    """A release that gives one of them another name breaks this, and no user's job."""
    known = (hydra.INTEL, hydra.MPICH)
    mpi, other = known if image.name == INTEL else reversed(known)
    folder = "usr/bin" if image.name == MPICH4 else "opt/mpi/bin"
    names = {
        mpi.hostfile_var,
        mpi.agent_kind_vars[0],
        mpi.agent_vars[0],
        mpi.agent_args_vars[0],
        mpi.daemon_link_vars[0],
        mpi.default_slots_var,
        mpi.bind_var,
        hydra.EXIT_CODES.lstrip("-"),
        "machinefile",
        *(name for port in mpi.ports if port.daemons for name in port.names),
        *(constant.name for constant in mpi.constants),
    }
    read = strings_of(image, f"{folder}/mpiexec.hydra")
    assert names - {""} - read == set()
    # What only the operator believes in, and what the other family alone reads.
    assert set(mpi.agent_args_vars[1:]) & read == set()
    assert other.daemon_link_vars[0] not in read


@pytest.mark.full
@pytest.mark.parametrize("image", ["mpich-5.0"], indirect=True)
def test_memory_of_other_processes_that_may_not_be_read(cluster: Cluster, image: Image) -> None:
    """With containerd 1.6's profile on a new kernel MPI_Init itself ends so."""
    refused = {"refused_calls": ("process_vm_readv", "process_vm_writev")}
    job = started(cluster, image, "mpirun", RING, "--bytes", "4", slots=2, worker=refused)
    assert job.wait(PATIENCE) == 0
    assert job.launcher.stdout().count(" of 4 on ") == 4
    assert "process_vm_readv is refused (Operation not permitted)" in job.launcher.stderr()
