"""Plays a file of manifests on this machine: the job's pods as containers, the launcher's log."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from mpiboot.core.wording import counted  # noqa: E402
from scripts.follow_pods import following, say  # noqa: E402
from tests.manifests.check import ManifestError  # noqa: E402
from tests.pods import images  # noqa: E402
from tests.pods.cluster import Cluster  # noqa: E402
from tests.pods.manifest import NotPlayedError  # noqa: E402
from tests.pods.play import Prepared, prepare  # noqa: E402
from tests.pods.pod import PodError  # noqa: E402

IMAGES = sorted(
    path.name.partition(".Contain")[0] for path in ROOT.glob("container/*-*.Container*")
)
_TOOLS = ("runc", "ip", "nsenter", "unshare")
_DAY = 86400  # seconds: a job may take long, and Ctrl-C ends it
_REFUSED = 2


def main() -> int:
    """Play the file; the exit code is the job's, 2 where it can't be played."""
    parser = argparse.ArgumentParser(prog="scripts/play", description=__doc__)
    parser.add_argument("file", type=Path, help="a manifest, such as examples/volcano/job.yaml")
    parser.add_argument("--image", choices=IMAGES, help="of container/; default: the MPI's")
    given = parser.parse_args()
    try:
        job = prepare(given.file)
        need_machine()
        return play(job, given.image or job.image)
    except (ManifestError, NotPlayedError, PodError) as error:
        print(
            "".join(f"play: {line}\n" for line in str(error).splitlines()), end="", file=sys.stderr
        )
        return _REFUSED
    except KeyboardInterrupt:
        return 130


def need_machine() -> None:
    """Refuse where no pod can be made."""
    if os.geteuid() != 0:
        raise NotPlayedError("pods are made as root: run it as root, or by sudo")
    if absent := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        raise NotPlayedError(f"pods need {', '.join(absent)}, which is not on PATH")


def play(job: Prepared, name: str) -> int:
    """Build the image, make the pods, and follow the launcher to its end."""
    say(f"building image {name} from container/ (minutes the first time, then cached)")
    image = images.image(name)
    with Cluster() as cluster:
        pods = job.played(cluster, image)
        say(f"{job.name}: a launcher and {counted(len(pods.workers), 'worker')}, each a container")
        say(f"its image is replaced by {name} of container/")
        if not job.lacks_nothing(image):
            say(f"{job.program} is not in that image: a program that prints its rank stands in")
        if job.told:
            say(f"left out, for want of a cluster: {', '.join(job.told)}")
        with following(pods.launcher):
            pods.start(_DAY)
            code = pods.launcher.wait(_DAY)
        say(f"the launcher's container ended with exit code {code}")
    return code


if __name__ == "__main__":
    sys.exit(main())
