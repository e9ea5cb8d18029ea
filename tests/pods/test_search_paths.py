"""Workers of another image: programs and libraries are found as their own image has them."""

from __future__ import annotations

from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import ended
from tests.pods.marks import MOMENT, crossed

USUAL = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
THEIRS = {"PATH": f"/opt/conda/bin:{USUAL}", "LD_LIBRARY_PATH": "/opt/conda/lib"}
# A name that only the folder of the workers' own image has.
FILES = {"/opt/conda/bin/where": f"#!/bin/sh\n{MOMENT}echo theirs $LD_LIBRARY_PATH\n"}


@crossed("words", [(), ("-x", "LD_LIBRARY_PATH")], ["own", "-x"])
def test_workers_of_another_image_find_their_own_programs(
    cluster: Cluster, image: Image, words: tuple[str, ...]
) -> None:
    job = ended(
        cluster,
        image,
        "mpirun",
        *words,
        "where",
        launcher={"env": {"LD_LIBRARY_PATH": "/opt/launcher/lib"}},
        worker={"env": THEIRS, "image": image.with_files(FILES, mode=0o755)},
    )
    paths = [line.split()[1] for line in job.launcher.stdout().splitlines()]
    found = "/opt/launcher/lib" if words else "/opt/conda/lib"
    assert [found in path for path in paths] == [True] * 2
    assert "has another one of its own" in job.launcher.stderr()
