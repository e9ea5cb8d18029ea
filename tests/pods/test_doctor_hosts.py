"""`mpiboot doctor` on a launcher: faults of several hosts at once, each told of the right one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.pods import images
from tests.pods.operator import mpijob
from tests.pods.test_input import asks
from tests.pods.volumes import Files

if TYPE_CHECKING:
    from tests.pods.cluster import Cluster
    from tests.pods.images import Image
    from tests.pods.operator import Job

STAY = ["sleep", "1000"]
# What a NetworkPolicy does that lets SSH out of the launcher's pod, and nothing into it.
NOTHING_IN = """
table inet nothing_in {
    chain input {
        type filter hook input priority 0;
        ct state established,related accept
        ip saddr { %s } drop
    }
}
"""
PATH = "/other:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
OTHER_MPI = '#!/bin/sh\necho "mpirun (Open MPI) 4.0.3"\n'


@pytest.fixture
def one(rig: None) -> Image:
    """One image, where it does not matter which MPI it has."""
    return images.image("openmpi-4.1")


def with_facts(job: Job, *without: int) -> Job:
    """The job, once every worker but these has its facts."""
    for number, worker in enumerate(job.workers):
        if number not in without:
            worker.shell("until [ -e /run/mpiboot/*/worker/facts.json ]; do sleep 0.1; done")
    return job


def trouble(text: str) -> list[tuple[str, str, str]]:
    """What is not well: level, check and the last digit of each host that it is about."""
    found: list[dict[str, Any]] = json.loads(text)["findings"]
    return sorted(
        (
            item["level"],
            item["check"],
            ",".join(name.partition(".")[0][-1] for name in item["hosts"] or [item["host"] or "?"]),
        )
        for item in found
        if item["level"] != "ok"
    )


def test_several_faults_in_one_job_are_told_of_the_right_hosts(
    cluster: Cluster, one: Image
) -> None:
    job = mpijob(
        cluster,
        one,
        workers=3,
        launcher_command=STAY,
        each_worker={
            1: {"rlimits": {"RLIMIT_NOFILE": (4096, 4096)}},
            2: {
                "env": {"PATH": PATH, "NCCL_DEBUG": "INFO"},
                "volumes": [Files("/other", {"mpirun": OTHER_MPI}, 0o555)],
            },
        },
    ).start()
    with_facts(job)
    job.launcher.network.run("nft", "-f", "-", stdin=NOTHING_IN % job.workers[0].address)
    code, text = asks(job, "doctor", "--json")
    assert code == 1
    assert trouble(text) == [
        ("fail", "launcher-unreached", "0"),
        ("fail", "mpi-versions", "2"),
        ("warn", "debug-output", "2"),
        ("warn", "hosts-differ", "1"),
        ("warn", "hosts-differ", "2"),
    ], text
