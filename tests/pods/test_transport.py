"""What carried a job's data, by the counters of real links; no pod here can have an RDMA device.

Of RDMA ports the counters are those of soft-RoCE in the virtual machine (tests/vm/inside/job.py),
and a worker's shell that prints such lines (tests/launcher/test_run.py).
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import RING, ended
from tests.pods.marks import ONE_IMAGE
from tests.pods.volumes import EmptyDir

RECORD = {"MPIBOOT_JOB_RECORD": "/record/job.json", "MPIBOOT_LOG_LEVEL": "info"}


def recorded(
    cluster: Cluster, image: Image, *program: str, code: int = 0, **env: str
) -> tuple[dict[str, Any], str]:
    """Run a job with a data network; give its record, and what it said of the data."""
    folder = EmptyDir("/record")
    launcher = {"env": {**RECORD, **env}, "volumes": (folder,)}
    job = ended(cluster, image, *program, code=code, data_link="net1", launcher=launcher)
    assert folder.host
    found: dict[str, Any] = json.loads((folder.host / "job.json").read_text())
    said = re.findall("^mpiboot: (data: .*)$", job.launcher.stderr(), re.MULTILINE)
    return found, "\n".join(said)


@ONE_IMAGE
@pytest.mark.parametrize("network", ["data", pytest.param("control", marks=pytest.mark.full)])
def test_the_link_that_carried_the_data(cluster: Cluster, image: Image, network: str) -> None:
    found, said = recorded(
        cluster, image, "mpirun", RING, "--bytes", "80", MPIBOOT_MPI_NETWORK=network
    )
    assert (found["exit"], found["ranks"], len(found["hosts"])) == (0, 2, 2)
    assert list(found["phases"]) == ["names", "ssh", "plan", "run", "end"]
    assert min(found["phases"].values()) >= 0
    assert found["phases"]["run"] > 0
    carried = found["transport"]
    used, other = ("net1", "eth0") if network == "data" else ("eth0", "net1")
    assert carried["planned"] == "TCP"
    assert carried["verdict"] == ("ok" if network == "data" else "unused")
    assert carried["hosts"].keys() == set(found["hosts"])
    for ports in carried["hosts"].values():
        assert ports[used]["sent"] > 64 << 20 > 8 << 20 > ports[other]["sent"]
    assert re.match(r"data: net1 sent \S+ \S+ per worker.* \(TCP\); eth0 ", said)


@ONE_IMAGE
@pytest.mark.full
def test_a_failed_job_has_a_record_of_its_links_too(cluster: Cluster, image: Image) -> None:
    found, said = recorded(cluster, image, "mpirun", RING, "--exit", "3", code=3)
    assert (found["exit"], found["reference"]) == (3, "program")
    assert found["transport"]["verdict"] == "unknown"
    assert said.startswith("data: net1 sent ")
    found, said = recorded(cluster, image, "mpirun", RING, MPIBOOT_PROVE_TRANSPORT="off")
    assert (found["transport"]["verdict"], found["transport"]["hosts"], said) == ("none", {}, "")
