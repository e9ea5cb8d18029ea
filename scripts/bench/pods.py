"""A job of ready workers on the rig, and launchers beside it that only tell when they would exec.

``mpirun`` is a stand-in: it answers ``--version`` as Open MPI 4.1 and else writes the time at
which it was started, so that what mpirun itself takes is not in the numbers. Needs root and runc.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.operator import Job, mpijob

GUARD = 120.0
_FOLDER = "/opt/bench"
_MPIRUN = """#!/bin/sh
if [ "$1" = --version ]; then echo "mpirun (Open MPI) 4.1.4"; exit; fi
exec date +exec=%s.%N
"""
# The first line of each launcher, so that what runc takes is not in the numbers either.
BEGIN = "date +begin=%s.%N; "
MPIBOOT = BEGIN + "exec mpiboot launcher -- mpirun true"
SSH = "ssh -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"


def script(loop: str, hosts: Sequence[str]) -> str:
    """Make a shell launcher: a loop over hosts, then mpirun."""
    return f"{BEGIN}hosts='{' '.join(hosts)}'; {loop}; exec mpirun true"


@dataclass
class Bench:
    """A cluster with ready workers."""

    cluster: Cluster
    job: Job
    random: random.Random
    launchers: int = 0

    @property
    def hosts(self) -> list[str]:
        """The hostfile's names."""
        return [line.split()[0] for line in self.job.hostfile.splitlines()]

    @contextmanager
    def launcher(self, command: str) -> Iterator[Launcher]:
        """Start a launcher of its own for one run."""
        self.launchers += 1
        spec = self.job.launcher.spec
        env = {**spec.env, "PATH": f"{_FOLDER}:{spec.image.env['PATH']}"}
        name = f"bench-launcher-{self.launchers}"
        argv = ("/bin/sh", "-c", command)
        pod = self.cluster.pod(replace(spec, name=name, command=argv, args=(), env=env))
        pod.start()
        yield Launcher(pod.stdout, pod.stderr)
        pod.wait(GUARD)  # it ends by itself; what fails is ended with the cluster
        pod.delete()


@dataclass
class Launcher:
    """What a launcher has written so far."""

    stdout: Callable[[], str]
    stderr: Callable[[], str]

    def time_of(self, what: str) -> float:
        """Wait until it tells a time."""
        end = time.monotonic() + GUARD
        while time.monotonic() < end:
            for line in self.stdout().splitlines():
                if line.startswith(f"{what}="):
                    return float(line.partition("=")[2])
            time.sleep(0.01)
        raise TimeoutError(f"no {what}: {self.stdout()}{self.stderr()[-2000:]}")


@contextmanager
def ready(workers: int) -> Iterator[Bench]:
    """Make a job whose workers all answer; all their names are published."""
    image = images.image("openmpi-4.1").with_files({f"{_FOLDER}/mpirun": _MPIRUN}, 0o755)
    with Cluster() as cluster:
        # One launcher after another: the workers stay.
        stay = {"env": {"MPIBOOT_WORKER_EXIT": "never"}}
        job = mpijob(cluster, image, workers=workers, worker=stay)
        for worker in job.workers:
            worker.start()
            worker.publish()
        bench = Bench(cluster, job, random.Random(1))
        with bench.launcher(MPIBOOT) as first:
            first.time_of("exec")
        yield bench
