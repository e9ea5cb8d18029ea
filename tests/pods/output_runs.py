"""Jobs one after the other whose output is read from a pipe without delay, and counted."""

from __future__ import annotations

from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import MOMENT, PATIENCE
from tests.pods.operator import mpijob
from tests.pods.pod import Pod

SLOTS = 2
BYTES = 300_000  # of each rank, without a newline: 5.0's mpirun writes them at its end


def launcher(cluster: Cluster, image: Image, *, local: bool = False) -> Pod:
    """A pod in which jobs can be started, with two workers; ``local`` puts the first ranks here."""
    env = {"MPIBOOT_WORKER_EXIT": "never"}
    job = mpijob(
        cluster,
        image,
        slots=SLOTS,
        as_worker=local,
        launcher_command=("sleep", "infinity"),
        worker={"env": env},
    )
    return job.start().launcher


def run(pod: Pod, mpirun: str, ranks: int) -> tuple[int, int]:
    """The exit status of a job, and how many bytes of its output are missing."""
    rank = f"{MOMENT}head -c {BYTES} /dev/zero | tr '\\0' x"
    mpirun = f"timeout --kill-after=60 {PATIENCE} {mpirun}"  # a hang is no loss
    script = f'{{ {mpirun} -np {ranks} sh -c "{rank}"; echo "$?" >/tmp/status; }} | wc -c'
    done = pod.exec("sh", "-c", f"{script}; cat /tmp/status", timeout=2 * PATIENCE)
    count, status = map(int, done.stdout.split())
    if status:
        print(done.stderr[-4000:])  # noqa: T201
    return status, ranks * BYTES - count
