"""`mpiboot doctor` on a launcher: faults of several hosts at once, each reported for its host."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.operator import Job, mpijob
from tests.pods.test_input import mpiboot
from tests.pods.volumes import Files
from tests.waiting import until

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


def test_several_faults_in_one_job_are_told_of_the_right_hosts(
    cluster: Cluster, one: Image
) -> None:
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
        ("fail", "launcher-unreached", "0"),
        ("warn", "hosts-differ", "1"),
        ("warn", "mpi-versions", "2"),
    ], text


# The brackets keep the search from finding itself.
RUNS = "cat /proc/[0-9]*/cmdline 2> /dev/null | tr '\\0' '\\n' | grep -c 'import prob[e]'"


def measuring(job: Job) -> int:
    """On how many workers the program that measures runs."""
    counts = [worker.exec("sh", "-c", RUNS).stdout.strip() for worker in job.workers]
    return sum(count != "0" for count in counts)


@pytest.mark.full
def test_a_worker_without_mpiboot_is_asked_by_plain_programs(cluster: Cluster, one: Image) -> None:
    serve = "mkdir -p /run/sshd; exec /usr/sbin/sshd -D -e -h /root/.ssh/id_rsa"
    job = mpijob(
        cluster,
        one,
        workers=3,
        launcher_command=STAY,
        each_worker={2: {"command": ["sh", "-ec", serve], "args": []}},
    ).start()
    with_facts(job, 2)
    until(lambda: "listening" in job.workers[2].stderr(), PATIENCE, "sshd")
    code, text = mpiboot(job, "doctor", "--json")
    found = trouble(text)
    assert code == 0, text
    assert ("unknown", "worker-checks", "2") in found
    assert ("warn", "hosts-differ", "2") in found
    assert {hosts for _, _, hosts in found} == {"2"}
    findings = json.loads(text)["findings"]
    reached = [item for item in findings if item["check"] == "launcher-unreached"]
    assert {name.partition(".")[0] for item in reached for name in item["hosts"]} == {
        f"pi-worker-{number}" for number in range(3)
    }
