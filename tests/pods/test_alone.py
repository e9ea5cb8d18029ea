"""A job of the launcher's pod alone: it needs no SSH key, and names the program that is missing."""

from __future__ import annotations

from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.jobs import PATIENCE, RING
from tests.pods.marks import each
from tests.pods.oci import PodSpec


@each("openmpi-5.0", "openmpi-4.1", "mpich-4.0", "mpich-5.0", "intel-mpi")
def test_it_starts_without_a_key(cluster: Cluster, rig: None, name: str) -> None:
    image = images.image(name).with_files({"/hosts": "localhost slots=2\n"})
    pods = [
        cluster.pod(
            PodSpec(name=word, image=image, args=["launcher", "--hostfile", "/hosts", *line])
        )
        for word, line in (
            ("good", ["mpirun", RING]),
            ("script", ["sh", "-c", f"ssh -V || :; mpirun {RING}"]),
            ("bad", ["mpirun", "/no-such-program"]),
        )
    ]
    *alone, bad = (pod.start() for pod in pods)
    for good in alone:
        assert good.wait(PATIENCE) == 0, good.stderr()
        said = sorted(good.stdout().splitlines())
        assert said == [f"rank {rank} of 2 on {good.hostname}" for rank in range(2)]
    code = bad.wait(PATIENCE)
    if name != "intel-mpi":  # whose own mpirun may be killed by SIGPIPE then
        assert code == 127, bad.stderr()
        assert "the program /no-such-program does not exist" in bad.stderr()
    assert code
