"""The demo's pods: an MPIJob on the rig, its launcher's log as it comes."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.pods import images  # noqa: E402
from tests.pods.cluster import Cluster  # noqa: E402
from tests.pods.operator import mpijob  # noqa: E402

if TYPE_CHECKING:
    from tests.pods.pod import Pod

WORKERS, SLOTS = 4, 2
PAUSE = 0.7


def say(text: str) -> None:
    """Speak for the demo itself, apart from what the pods say."""
    print(f"\033[1m# {text}\033[0m" if sys.stdout.isatty() else f"# {text}", flush=True)


def follow(pod: Pod, ended: threading.Event) -> None:
    """Print what the launcher's container writes, as `kubectl logs -f` does."""
    shown = {"stderr": 0, "stdout": 0}
    while True:
        last = ended.is_set()
        for stream, read in (("stderr", pod.stderr), ("stdout", pod.stdout)):
            text = read()
            new, shown[stream] = text[shown[stream] :], len(text)
            if new:
                print("\n".join(f"  launcher | {line}" for line in new.splitlines()), flush=True)
        if last:
            return
        ended.wait(0.05)


def main() -> int:
    """Run the demo; its status is the launcher's."""
    name = sys.argv[1]
    say(f"building the image {name} from container/ (minutes the first time, then cached)")
    image = images.image(name)
    with Cluster() as cluster:
        job = mpijob(
            cluster,
            image,
            workers=WORKERS,
            slots=SLOTS,
            data_link="net1",
            launcher_args=["/opt/programs/ring"],
        )
        say(f"a launcher and {WORKERS} workers start; no worker's name is in DNS yet")
        began = time.monotonic()
        job.start(publish=False)
        ended = threading.Event()
        tail = threading.Thread(target=follow, args=(job.launcher, ended))
        tail.start()
        for worker in job.workers:
            time.sleep(PAUSE)
            say(f"{worker.spec.name} appears in DNS after {time.monotonic() - began:.1f} s")
            worker.publish()
        published = time.monotonic()
        code = job.wait(120)
        ended.set()
        tail.join()
        say(
            f"the launcher's container ended with exit code {code}, "
            f"{time.monotonic() - published:.1f} s after the last name appeared"
        )
        for worker in job.workers:
            eth0, net1 = worker.counters("eth0"), worker.counters("net1")
            print(f"  {worker.spec.name}: eth0 sent {eth0.tx} bytes, net1 sent {net1.tx} bytes")
        say("what a worker said:")
        print("".join(f"  {line}\n" for line in job.workers[0].stderr().splitlines()), end="")
    return code


if __name__ == "__main__":
    sys.exit(main())
