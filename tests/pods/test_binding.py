"""Which CPUs a rank may use: what plain mpirun gives it in the same pods, but for one default."""

from __future__ import annotations

import re
import shlex

from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.marks import ONE_IMAGE
from tests.pods.operator import Job, mpijob

WHERE = 'echo "$(hostname)" $(python3 -c "import os; print(os.sched_getaffinity(0))")'
FILES = {
    "/etc/ssh/ssh_config.d/own.conf": "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\n",
}
# A guard against a hang: a mpirun whose options contradict each other ends at once.
GUARD = 120


def started(cluster: Cluster, image: Image, *, cpus: str = "") -> Job:
    """Pods in which both can be tried: a launcher that does nothing, and workers."""
    job = mpijob(
        cluster,
        image.with_files(FILES),
        slots=2,
        launcher_command=["sleep", "3600"],
        worker={"cpus": cpus},
        launcher={"env": {"MPIBOOT_LOG_LEVEL": "error", "OMPI_ALLOW_RUN_AS_ROOT": "1"}},
    ).start()
    job.launcher.shell("mpiboot wait")
    return job


def bound(job: Job, words: str, *before: str) -> list[str]:
    """The host and the CPUs of each rank of a line; nothing where mpirun refuses it."""
    own = ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "PRTE_MCA_prte_default_hostfile=/etc/mpi/hostfile")
    line = ("env", *own, *before, "mpirun", *shlex.split(words), "sh", "-c", WHERE)
    done = job.launcher.exec(*line, timeout=GUARD)
    assert (done.returncode == 0) == bool(done.stdout), f"{line}\n{done.stdout}{done.stderr}"
    return sorted(done.stdout.splitlines())


def test_ranks_are_not_bound_where_pods_share_cpus(cluster: Cluster, image: Image) -> None:
    """What a line says of CPUs stands: `same_lines`."""
    job = started(cluster, image)
    cpus = job.workers[0].shell("python3 -c 'import os; print(os.sched_getaffinity(0))'")
    found = bound(job, "-n 2", "mpiboot", "launcher")
    assert [words.split(maxsplit=1)[1] for words in found] == [cpus] * 2
    assert "other pods of the node may use" in job.launcher.shell("mpiboot plan -- mpirun true")


@ONE_IMAGE
def test_ranks_are_bound_where_each_pod_has_a_cpuset(cluster: Cluster, image: Image) -> None:
    job = started(cluster, image, cpus="0")
    plain = bound(job, "-n 2 --map-by node --bind-to core")
    assert [words.split()[1] for words in plain] == ["{0}", "{0}"]
    assert bound(job, "-N 1", "mpiboot", "launcher") == plain
    assert re.search(r"cpus.usable +1\n", job.workers[0].shell("mpiboot facts"))
    message = job.launcher.shell("mpiboot plan -- mpirun -n 2 true")
    # Two slots, and a core for one rank alone.
    assert "pi-worker-0.pi.default.svc, pi-worker-1.pi.default.svc has fewer cores" in message
