"""`mpiboot doctor` on a launcher: faults of several hosts at once, each reported for its host."""

from __future__ import annotations

import json
from typing import Any

from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.operator import Job, mpijob
from tests.pods.test_input import mpiboot
from tests.pods.volumes import Files

# A guard against a hang only.
PATIENCE = 120
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


def test_several_faults_are_reported_for_the_right_hosts(cluster: Cluster, one: Image) -> None:
    job = mpijob(
        cluster,
        one,
        workers=3,
        launcher_command=STAY,
        data_link="net1",
        each_worker={
            1: {"rlimits": {"RLIMIT_NOFILE": (4096, 4096)}},
            2: {
                "env": {"PATH": PATH},
                "volumes": [Files("/other", {"mpirun": OTHER_MPI}, 0o555)],
            },
        },
    ).start()
    with_facts(job)
    job.launcher.network.run("nft", "-f", "-", stdin=NOTHING_IN % job.workers[0].address)
    code, text = mpiboot(job, "doctor", "--json")
    assert code == 1
    # What a busy machine was too slow to look at is unknown, and no fault.
    assert [item for item in trouble(text) if item[0] != "unknown"] == [
        ("fail", "worker-pairs", "r"),
        ("warn", "hosts-differ", "1"),
        ("warn", "mpi-versions", "2"),
    ], text


# The brackets keep the search from finding itself.
RUNS = "cat /proc/[0-9]*/cmdline 2> /dev/null | tr '\\0' '\\n' | grep -c 'import prob[e]'"


def measuring(job: Job) -> int:
    """On how many workers the program that measures runs."""
    counts = [worker.exec("sh", "-c", RUNS).stdout.strip() for worker in job.workers]
    return sum(count != "0" for count in counts)
