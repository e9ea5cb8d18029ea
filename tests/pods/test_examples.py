"""The examples, played as scripts/play does: their own numbers, users, rights and probes' ports."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from tests.manifests.examples import FOLDER, read
from tests.pages import ROOT, named
from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.jobs import PATIENCE, ranks
from tests.pods.manifest import Without
from tests.pods.play import prepare

# Each with the hosts of its ranks, two on each.
WORKERS = ["train-worker-0", "train-worker-1"]
HOSTS = {
    "mpi-operator/openmpi.yaml": WORKERS,
    "mpi-operator/root.yaml": WORKERS,
    "mpi-operator/mpich.yaml": WORKERS,
    "mpi-operator/intel.yaml": WORKERS,
    "statefulset/configmap.yaml": WORKERS,
    "volcano/job.yaml": WORKERS,
    "volcano/two-groups.yaml": ["train-gpu-0", "train-cpu-0"],
    "jobs/jobset.yaml": ["train-worker-0-0", "train-worker-0-1"],
    "jobs/indexed-job.yaml": ["train-0", "train-1"],
    "trainer/trainjob.yaml": ["train-launcher-0-0", "train-node-0-0", "train-node-0-1"],
}
# Debian's MPICH 4.0 hangs in the ranks' MPI_Finalize now and then.
IMAGES = {
    **dict.fromkeys(("mpi-operator/mpich.yaml", "jobs/indexed-job.yaml"), "mpich-5.0"),
    **dict.fromkeys(("mpi-operator/intel.yaml", "volcano/job.yaml"), "intel-mpi"),
}
ROWS = [(name, IMAGES.get(name, images.NAMES[at % 2])) for at, name in enumerate(HOSTS)]
QUICK = ("mpi-operator/root.yaml", "trainer/trainjob.yaml", "jobs/indexed-job.yaml")
# What their launchers log: hosts without a hostfile in the manifest, a role without a setting.
LOGGED = {
    "jobs/indexed-job.yaml": "role launcher (MPIBOOT_ROLE: pod 0, by JOB_COMPLETION_INDEX)",
    "jobs/jobset.yaml": "4 ranks on 2 hosts of train-worker-0-[0-1].train",
    "trainer/trainjob.yaml": "role launcher (OMPI_MCA_orte_default_hostfile, which trainer sets",
}


def played(cluster: Cluster, name: str, image: str) -> Without:
    job = prepare(FOLDER / name).played(cluster, images.image(image))
    job.start(PATIENCE)
    return job


@pytest.mark.parametrize(
    ("name", "image"),
    [pytest.param(*row, marks=[] if row[0] in QUICK else pytest.mark.full) for row in ROWS],
)
def test_an_example_runs_its_ranks_on_all_its_hosts(
    cluster: Cluster, rig: None, name: str, image: str
) -> None:
    job = played(cluster, name, image)
    assert job.launcher.wait(PATIENCE) == 0, job.launcher.stderr()
    hosts = HOSTS[name]
    total = 2 * len(hosts)
    assert ranks(job.launcher.stdout()) == [(n, total, hosts[n // 2]) for n in range(total)]
    assert LOGGED.get(name, "") in " ".join(job.launcher.stderr().split())
    message = job.workers[0].stderr()
    assert "sshd (openssh) listens on" in message
    assert f":2222 as {'root' if 'root' in name else 'mpiuser'}" in message or "indexed" in name
    assert "warning" not in job.launcher.stderr().lower()


@pytest.mark.full
@pytest.mark.parametrize("name", ["rdma/sriov-openshift.yaml", "rdma/dranet.yaml"])
def test_an_rdma_example_needs_rdma(cluster: Cluster, rig: None, name: str) -> None:
    """By MPIBOOT_DATA_NETWORK=require: nothing here has a device."""
    job = played(cluster, name, "openmpi-5.0")
    assert job.launcher.wait(PATIENCE) == 72, job.launcher.stderr()
    assert job.launcher.stdout() == ""


@pytest.mark.full
def test_the_command_of_the_page_plays_an_example(rig: None) -> None:
    """As a user runs it: what is left out is listed, and the exit code is the job's."""
    argv = ["sh", "-ec", named("play")]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count("launcher | rank ") == 4
    assert "# MPIJob train: a launcher and 2 workers, each a container\n" in done.stdout
    assert "# its image is replaced by openmpi-5.0 of container/\n" in done.stdout
    assert (
        "# /train is not in that image: a program that prints its rank stands in\n" in done.stdout
    )
    assert "# left out: backoffLimit, cleanPodPolicy, restartPolicy (there is no co" in done.stdout
    assert done.stdout.endswith("# the launcher's container ended with exit code 0\n")


@pytest.mark.full
def test_play_ends_with_the_jobs_exit_code(rig: None, tmp_path: Path) -> None:
    """A user's own manifest: its program is the image's, and fails."""
    (job,) = read("mpi-operator/openmpi.yaml")
    pod = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]
    pod["containers"][0]["args"] = ["sh", "-c", "exit 3"]
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    argv = [str(ROOT / "scripts/play"), "--image", "openmpi-4.1", str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stdout[-3000:] + done.stderr[-3000:]
    assert "# its program:" not in done.stdout
    assert done.stdout.endswith("# the launcher's container ended with exit code 3\n")
