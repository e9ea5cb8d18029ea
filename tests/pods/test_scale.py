"""What a launcher is beside its mpirun: one Python, and a shell for each worker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

import psutil
import pytest

from tests.pages import ROOT
from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.jobs import held

MPIS = {
    "openmpi-4.1": {"mpirun": 1},
    "openmpi-5.0": {"prterun": 1},
    "mpich-4.0": {"mpirun": 1},
    # Its agents get sockets, which have no name to open, and copy them.
    "intel-mpi": {"mpiexec.hydra": 1, "cat": 8},
}
AT_MOST = 55 << 20  # bytes resident


@pytest.mark.parametrize("mpi", MPIS)
def test_what_runs_beside_mpirun(cluster: Cluster, rig: None, mpi: str) -> None:
    job = held(cluster, images.image(mpi), workers=4)
    found = [psutil.Process(one.host_pid) for one in job.launcher.processes()]
    assert Counter(one.name() for one in found) == {"mpiboot": 1, "agent": 4, **MPIS[mpi]}
    assert max(one.memory_info().rss for one in found) <= AT_MOST
    assert sum(one.memory_info().rss for one in found if one.name() == "agent") < AT_MOST / 4


@pytest.mark.full
@pytest.mark.parametrize("mpi", MPIS)
def test_a_job_of_24_and_one_of_200_workers(rig: None, mpi: str) -> None:
    """Real mpirun and daemons on loopback, by the project's benchmark."""
    argv = ["--hosts", "24,200", "--ways", "mpiboot", "--mpirun", "real", "--image", mpi, "--json"]
    done = subprocess.run(
        [sys.executable, "scripts/bench/scale", *argv], cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    each = 1 + MPIS[mpi].get("cat", 0) // 4
    for hosts, table in zip((24, 200), json.loads(done.stdout)["tables"], strict=True):
        (row,) = table["rows"]
        assert row["processes"] == each * hosts + 3, row
        assert row["ran"] > 0
