"""The installed MPICH and Intel MPI: what they read, words of their own on the line, programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpiboot.job import hydra
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import FOREVER, PATIENCE, RING
from tests.pods.test_hydra import INTEL, MPICH4, each, quick, started


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


@each
def test_a_list_of_hosts_on_the_line_is_heeded(cluster: Cluster, image: Image) -> None:
    line = ["mpirun", "-hosts", "pi-worker-1.pi.default.svc", "-n", "1", "hostname"]
    job = started(cluster, image, *line)
    assert job.wait(PATIENCE) == 0
    assert job.launcher.stdout().split() == ["pi-worker-1"]


# Its start waits until the test says so: all hosts are ready then.
LATE = """#!/bin/sh
[ "$1" = --version ] || until [ -e /tmp/go ]; do touch /tmp/waits; sleep 0.1; done
exec /opt/mpi/bin/mpiexec.real "$@"
"""


@pytest.mark.full
@pytest.mark.parametrize("image", [INTEL], indirect=True)
def test_sshs_own_reason_is_told_though_intel_mpi_asks_it_to_be_quiet(
    cluster: Cluster, image: Image
) -> None:
    program = "/opt/mpi/bin/mpiexec.hydra"
    late = image.after("mv", program, "/opt/mpi/bin/mpiexec.real").with_files(
        {program: LATE}, 0o755
    )
    job = started(cluster, late, *FOREVER)
    job.launcher.shell("until [ -e /tmp/waits ]; do sleep 0.1; done")
    job.workers[1].kill()
    job.launcher.shell("touch /tmp/go")
    assert job.wait(PATIENCE) == 69
    message = job.launcher.termination_log()
    assert "pi-worker-1.pi.default.svc" in message
    assert any(words in message for words in ("refused", "No route", "timed out", "reset"))


@pytest.mark.full
@pytest.mark.parametrize("image", [INTEL], indirect=True)
def test_intels_own_benchmark(cluster: Cluster, image: Image) -> None:
    """IMB-MPI1 comes with the library."""
    words = ("-npmin", "2", "-iter", "10", "-msglog", "0:10", "PingPong", "Allreduce")
    job = started(cluster, image, "mpirun", "IMB-MPI1", *words)
    assert job.wait(PATIENCE) == 0
    stdout = job.launcher.stdout()
    assert "# Benchmarking PingPong" in stdout
    assert "# Benchmarking Allreduce" in stdout
    assert stdout.count("# #processes = 2") == 2
    assert "# All processes entering MPI_Finalize" in stdout


# Past the work it ends by MPI_Abort: Debian's 4.0 hangs in MPI_Finalize now and then.
BENCHES = """
from mpi4py import MPI, bench
everybody = MPI.COMM_WORLD
bench.helloworld(everybody, [])
bench.ringtest(everybody, ["--loop", "1000"])
bench.pingpong(everybody, ["--max-size", "64"])
everybody.Barrier()
everybody.Abort(7)
"""


@each
def test_mpi4pys_own_benchmarks(cluster: Cluster, image: Image) -> None:
    """Its wheel takes the MPI that the image has, where that has the name of MPICH's ABI."""
    whole = image.with_packages("mpi4py==4.1.2")
    if image.name == MPICH4:  # Debian's is called libmpich.so.12 alone
        folder = "/usr/lib/x86_64-linux-gnu"
        whole = whole.after("ln", "-s", "libmpich.so.12", f"{folder}/libmpi.so.12")
    python = ("env", "PYTHONPATH=/opt/packages", "/opt/mpiboot/bin/python3", "-u", "-c", BENCHES)
    job = started(cluster, whole, "mpirun", *python)
    assert job.wait(PATIENCE) == 7
    stdout = job.launcher.stdout()
    for rank in (0, 1):
        assert f"Hello, World! I am process {rank} of 2 on pi-worker-{rank}." in stdout
    assert "time for 1000 loops" in stdout
    assert "# MPI PingPong Test" in stdout
