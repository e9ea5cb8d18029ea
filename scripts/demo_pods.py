"""The demo's pods: an MPIJob on the rig, its launcher's log as it comes."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.follow_pods import following, say  # noqa: E402
from tests.pods import images  # noqa: E402
from tests.pods.cluster import Cluster  # noqa: E402
from tests.pods.operator import KeyPair, mpijob  # noqa: E402
from tests.pods.volumes import Files, Tmpfs  # noqa: E402

if TYPE_CHECKING:
    from tests.pods.images import Image

WORKERS, SLOTS = 4, 2
# The rig's launchers log more; here is what everybody gets who sets nothing.
LOG = {"MPIBOOT_LOG_LEVEL": "info"}
PAUSE = 0.7
PATIENCE = 120  # seconds: a guard against a hang, many times what it takes


def main() -> int:
    """Run the demo; its status is that of the job which can run."""
    name = sys.argv[1]
    say(f"building the image {name} from container/ (minutes the first time, then cached)")
    image = images.image(name)
    code = works(image)
    fails(image)
    differs(image)
    say("next: `scripts/play examples/mpi-operator/openmpi.yaml`: a manifest, as pods")
    say(
        "next: docs/first-job.md: ten minutes to an MPIJob in a cluster; `scripts/demo openmpi-4.1`"
    )
    say("next: `mpiboot doctor` in any pod of a job: what is wrong, and how to fix it")
    return code


def fails(image: Image) -> None:
    """Show what a job says that can't start."""
    with Cluster() as cluster:
        job = mpijob(
            cluster,
            image,
            workers=2,
            env={**LOG, "MPIBOOT_DNS_WAIT": "5"},
            launcher_args=["mpirun", "/opt/programs/ring"],
        )
        say("a job that can't start: one of two workers never comes (names have 5 s here)")
        job.workers[0].start().publish()
        while job.workers[0].running and "listens" not in job.workers[0].stderr():
            time.sleep(0.05)
        job.launcher.start()
        code = job.wait(PATIENCE)
        for line in job.launcher.termination_log().splitlines():
            print(f"  termination message | {line}")
        say(f"the launcher's container ended with exit code {code}, which docs/reference explains")


def differs(image: Image) -> None:
    """Show how doctor names a worker that has another key."""
    other = {"volumes": (Files("/root/.ssh", KeyPair.make().files(), 0o600),)}
    with Cluster() as cluster:
        job = mpijob(
            cluster,
            image,
            workers=2,
            env=LOG,
            launcher_command=["sleep", "1000"],
            each_worker={1: other},
        ).start()
        for worker in job.workers:
            while worker.running and "listens" not in worker.stderr():
                time.sleep(0.05)
        say("what `mpiboot doctor` finds in a launcher, one of whose workers has another key:")
        for line in job.launcher.exec("mpiboot", "doctor").stdout.splitlines():
            if line and not line.startswith("ok "):
                print(f"  {line}")


def works(image: Image) -> int:
    """Show a job that runs, though its workers come one by one."""
    with Cluster() as cluster:
        job = mpijob(
            cluster,
            image,
            workers=WORKERS,
            slots=SLOTS,
            env=LOG,
            data_link="net1",
            launcher_args=["mpirun", "/opt/programs/ring"],
            worker={"volumes": [Tmpfs("/dev/shm", size=256 << 20)]},
        )
        say(f"a launcher and {WORKERS} workers start; no worker's name is in DNS yet")
        began = time.monotonic()
        job.start(publish=False)
        with following(job.launcher):
            for worker in job.workers:
                time.sleep(PAUSE)
                say(f"{worker.spec.name} appears in DNS after {time.monotonic() - began:.1f} s")
                worker.publish()
            published = time.monotonic()
            code = job.wait(PATIENCE)
        say(
            f"the launcher's container ended with exit code {code}, "
            f"{time.monotonic() - published:.1f} s after the last name appeared"
        )
        say("daemons and MPI stayed on eth0, the pods' control link; net1 is left to the data:")
        for worker in job.workers:
            eth0, net1 = worker.network.sent("eth0"), worker.network.sent("net1")
            print(f"  {worker.spec.name}: eth0 sent {eth0} bytes, net1 sent {net1} bytes")
        say("what a worker said:")
        print("".join(f"  {line}\n" for line in job.workers[0].stderr().splitlines()), end="")
    return code


if __name__ == "__main__":
    sys.exit(main())
