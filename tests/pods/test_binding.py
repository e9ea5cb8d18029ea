"""Which CPUs a rank may use: what plain mpirun gives it in the same pods, but for one default."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.marks import NEW, ONE_IMAGE
from tests.pods.operator import Job, mpijob

HOSTS = [f"pi-worker-{index}.pi.default.svc" for index in (0, 1)]
WHERE = 'echo "$(hostname)" $(python3 -c "import os; print(os.sched_getaffinity(0))")'
FILES = {
    "/etc/ssh/ssh_config.d/own.conf": "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\n",
    "/opt/rankfile": f"rank 0={HOSTS[1]} slot=0\nrank 1={HOSTS[0]} slot=0\n",
}
# A guard against a hang: a mpirun whose options contradict each other ends at once.
GUARD = 120


def started(cluster: Cluster, image: Image, *, cpus: str = "") -> Job:
    """Pods in which both can be tried: a launcher that does nothing, and workers."""
    job = mpijob(
        cluster,
        image.with_files(FILES),
        workers=2,
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


# 5.0.7 takes hardly any rankfile: its hosts, it says, were not allocated.
RANKFILE = "--rankfile /opt/rankfile"
MORE = (
    "-n 2 --cpu-set 0",
    "-n 2 --cpu-list 0",
    "-n 2 --map-by slot:PE=1",
    "-n 2 --cpus-per-proc 1",
    "-n 2 --rank-by node",
    "-n 2 --map-by node",
)


@pytest.mark.parametrize(
    "lines",
    [(RANKFILE, "--map-by ppr:1:node:PE=1"), pytest.param(MORE, marks=pytest.mark.full)],
    ids=["some", "more"],
)
def test_what_a_line_says_of_cpus_stands_and_else_ranks_are_not_bound(
    cluster: Cluster, image: Image, lines: tuple[str, ...]
) -> None:
    """The pods share the node's CPUs."""
    job = started(cluster, image)
    for words in lines:
        plain = bound(job, words)
        assert plain or image.name == NEW
        assert bound(job, words, "mpiboot", "launcher") == plain
    cpus = job.workers[0].shell("python3 -c 'import os; print(os.sched_getaffinity(0))'")
    found = bound(job, "-n 2", "mpiboot", "launcher")
    assert [words.split(maxsplit=1)[1] for words in found] == [cpus] * 2
    assert "other pods of the node may use" in job.launcher.shell("mpiboot plan -- mpirun true")


@ONE_IMAGE
def test_ranks_are_bound_by_mpirun_where_each_pod_has_a_cpuset_of_its_own(
    cluster: Cluster, image: Image
) -> None:
    job = started(cluster, image, cpus="0")
    plain = bound(job, "-n 2 --map-by node --bind-to core")
    assert [words.split()[1] for words in plain] == ["{0}", "{0}"]
    assert bound(job, "-N 1", "mpiboot", "launcher") == plain
    assert re.search(r"cpus.usable +1\n", job.workers[0].shell("mpiboot facts"))
    message = job.launcher.shell("mpiboot plan -- mpirun -n 2 true")
    # Two slots, and a core for one rank alone.
    assert "pi-worker-0.pi.default.svc, pi-worker-1.pi.default.svc has fewer cores" in message
