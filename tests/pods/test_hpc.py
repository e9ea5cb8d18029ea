"""Debian's LAMMPS, HPC Challenge and Quantum ESPRESSO: they compute the same as under mpirun."""

from __future__ import annotations

import re

import pytest

from tests.pods import images, same
from tests.pods.cluster import Cluster
from tests.pods.images import Image

pytestmark = pytest.mark.full

HPCC_INPUT = "/usr/share/doc/hpcc/examples/_hpccinf.txt"
# Ranks wait for each other without pause, and four of them may share one busy core.
GUARD = 600
LAMMPS = ("mpirun", "-n", "4", "lmp", "-log", "none", "-in", "/melt.in")
HPCC = ("mpirun", "-n", "2", "--map-by", "node", "hpcc")
# Energies and pressure at each twentieth step; checks and norms, but no times and rates.
THERMO = r"^ +\d+(?: +-?[\d.]+){5} *$"
CHECKS = (
    r"^(?:Success|CommWorldProcs|HPL_N|HPL_RnormI|HPL_Xnorm1|PTRANS_residual|MPIFFT_maxErr"
    r"|MPIRandomAccess_Errors)=.*$"
)


def with_programs(name: str) -> Image:
    """An image with LAMMPS, HPC Challenge and the input of both."""
    made = images.image(name).with_debian("lammps", "hpcc")
    small = re.sub(r"^1000( +Ns)", r"200\1", made.read_text(HPCC_INPUT), flags=re.MULTILINE)
    small = re.sub(r"^2( +Ps)", r"1\1", small, flags=re.MULTILINE)  # 1 x 2 ranks
    melt = (images.PROGRAMS / "melt.in").read_text()
    return made.with_files({"/hpccinf.txt": small, "/melt.in": melt})


@pytest.mark.parametrize("name", images.NAMES)
def test_a_solver_computes_the_same(cluster: Cluster, rig: None, name: str) -> None:
    job = same.pods(cluster, with_programs(name)).job
    found = []
    for front in ((), ("mpiboot",)):
        done = job.launcher.exec(*front, *LAMMPS, timeout=GUARD)
        assert done.returncode == 0, done.stderr
        thermo = re.findall(THERMO, done.stdout, re.MULTILINE)
        done = job.launcher.exec(*front, *HPCC, timeout=GUARD)
        assert done.returncode == 0, done.stderr
        # Rank 0 writes it, on the first worker, and adds to what is there.
        results = job.workers[0].shell("cat /hpccoutf.txt; rm /hpccoutf.txt")
        found.append((thermo, re.findall(CHECKS, results, re.MULTILINE)))
    plain, ours = found
    assert plain == ours
    assert len(ours[0]) == 4
    assert {"Success=1", "CommWorldProcs=2", "MPIRandomAccess_Errors=0"} <= set(ours[1])
    assert len(ours[1]) == 8
