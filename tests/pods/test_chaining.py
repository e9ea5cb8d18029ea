"""mpiboot behind an image's own ENTRYPOINT, and in front of it: what that sets reaches the ranks.

The images are stand-ins (`chained`).
"""

from __future__ import annotations

import json
import re
import signal
from typing import Any

import pytest

from tests.pages import ROOT, named
from tests.pods.chained import AMAZONS_OWN, NVIDIA, ONEAPI, PROGRAM, STAND_INS, Chained
from tests.pods.cluster import Cluster
from tests.pods.jobs import PATIENCE, RING, ended, ranks, running, spans
from tests.pods.operator import Job
from tests.waiting import until

OLD = {1: {"env": {"NODE_DRIVER": "old"}}}


def shows(kind: Chained, job: Job) -> None:
    """Each rank has what the ENTRYPOINT of its own host has set, and the program has run."""
    lines = [line for line in job.launcher.stdout().splitlines() if line.startswith("has ")]
    wanted = [f"has pi-worker-0 {kind.recent}", f"has pi-worker-1 {kind.old}"]
    assert sorted(lines) == wanted, job.launcher.stderr()[-3000:]
    spans(job)


def chained(cluster: Cluster, kind: Chained, *words: str, **details: Any) -> Job:
    """A job in which the second worker's node has the older driver."""
    return ended(cluster, kind.image(), *words, **{"each_worker": OLD, **details})


def test_the_page_has_the_entrypoint_of_each() -> None:
    page = (ROOT / "docs/how-to/chaining.md").read_text()
    rows = re.findall(r"^\| (.*?) \| .* \| `(\[.*\])` \|$", page, re.MULTILINE)
    shown = {name.partition(" (")[0].partition(", ")[0]: json.loads(row) for name, row in rows}
    kinds = {name: list(kind.entrypoint) for name, kind in STAND_INS.items()}
    assert shown == kinds
    assert named("chained") == f"ENTRYPOINT {json.dumps(NVIDIA.entrypoint)}\n"


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind is NVIDIA else pytest.mark.full, id=name)
        for name, kind in {**STAND_INS, "AWS as it is": AMAZONS_OWN}.items()
    ],
)
def test_behind_an_entrypoint(cluster: Cluster, rig: None, kind: Chained) -> None:
    job = chained(cluster, kind, "mpirun", PROGRAM)
    shows(kind, job)
    for worker in job.workers:
        assert worker.wait(PATIENCE) == 0  # the job's end is theirs
    for pod in job.pods:
        assert ("[entrypoint]" in pod.stderr()) is (kind is AMAZONS_OWN)


@pytest.mark.full
def test_in_front_of_an_entrypoint_every_rank_goes_through_it(cluster: Cluster, rig: None) -> None:
    """As `command: [mpiboot]` does it, which replaces the image's ENTRYPOINT."""
    job = chained(
        cluster,
        NVIDIA,
        "mpirun",
        NVIDIA.entrypoint[0],
        PROGRAM,
        launcher={"command": ["mpiboot"]},
        worker={"command": ["mpiboot"]},
    )
    shows(NVIDIA, job)
    assert job.launcher.stdout().count("== PyTorch ==") == 2
    assert [worker.stdout() for worker in job.workers] == ["", ""]


@pytest.mark.full
@pytest.mark.parametrize("behind", [True, False])
def test_a_workers_profile_script(cluster: Cluster, rig: None, *, behind: bool) -> None:
    """Where the ENTRYPOINT has read it already, it says so and nothing of it is lost."""
    worker = {} if behind else {"command": ["mpiboot"]}
    profile = {"MPIBOOT_ENV_PROFILE": "/opt/intel/oneapi/setvars.sh"}
    job = chained(cluster, ONEAPI, "mpirun", PROGRAM, worker=worker, env=profile)
    shows(ONEAPI, job)
    assert ("already been run" in job.workers[0].stderr()) is behind


@pytest.mark.full
def test_an_entrypoint_that_stays_and_keeps_sigterm(cluster: Cluster, rig: None) -> None:
    job = running(cluster, AMAZONS_OWN.image())
    job.launcher.signal(signal.SIGTERM)
    script = "bash -m /usr/local/bin/start_with_right_hostname.sh"
    message = f"PID 1 here is {script}: it has no handler for SIGTERM"
    assert message in " ".join(job.launcher.stderr().split())
    assert "got SIGTERM" not in job.launcher.stderr()
    job.launcher.shell("kill $(cat /proc/1/task/1/children)")
    assert job.wait(PATIENCE) == 143


@pytest.mark.full
def test_an_mpirun_behind_a_script_gets_the_signals(cluster: Cluster, rig: None) -> None:
    """The script dies of one; the real mpirun has it, too, and ends with all that it started."""
    job = running(cluster, AMAZONS_OWN.image(), launcher={"command": ["mpiboot"]})
    until(lambda: len(ranks(job.launcher.stdout())) == 2)
    job.launcher.signal(signal.SIGTERM)
    assert job.wait(PATIENCE) == 143
    until(lambda: not any(item.args[0] == RING for pod in job.workers for item in pod.processes()))
