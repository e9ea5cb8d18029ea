"""`mpiboot validate job` and `pairs` in pods.

all_reduce_perf is a stand-in, as there are no GPUs here: a script that prints what nccl-tests 2.17
prints, and writes NCCL's lines where NCCL would. mpirun, the launcher and the pods are real.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.manifests.examples import read
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import OLD_IMAGE, PATIENCE, mpiboot, with_facts
from tests.pods.manifest import play_init_container, play_mpijob
from tests.pods.operator import Job, mpijob
from tests.pods.test_doctor import STAY
from tests.validate.test_nccl_tests import FOOT, HEAD, ROW
from tests.waiting import until

PERF = "/opt/nccl-tests/build/all_reduce_perf"
LARGE = ROW.replace("   134217728", "  1073741824")
NCCL = (
    r"%s:912:930 [0] NCCL INFO NET/Socket : Using [0]eth0:10.244.0.7<0>\n"
    r"%s:912:930 [0] NCCL INFO Using network Socket\n"
)
STAND_IN = f"""#!/bin/sh
if [ -n "$NCCL_DEBUG_FILE" ]; then printf '{NCCL}' a a >"$NCCL_DEBUG_FILE"; fi
sleep 0.3  # a program that is no MPI program and ends at once now and then hangs 5.0's mpirun
if [ "${{OMPI_COMM_WORLD_RANK:-${{PMI_RANK:-0}}}}" != 0 ]; then
  [ "$STAND_IN" ] && exec sleep 1000
  exit 0
fi
cat <<'END'
{HEAD}{ROW}END
[ ! "$STAND_IN" ] || exec sleep 1000
cat <<'END'
{LARGE}{FOOT}END
"""


def validated(cluster: Cluster, image: Image, *words: str, kind: str = "", **details: Any) -> Job:
    """A job of two workers that `validate job` measures by the stand-in."""
    whole = image.with_files({PERF: STAND_IN}, 0o755)
    args = ["validate", "job", "--tool", "nccl-tests", *words]
    given = {"launcher_args": args, "worker": {"env": {"STAND_IN": kind}}}
    return mpijob(cluster, whole, **{**given, **details}).start()


@OLD_IMAGE
def test_a_job_is_measured_and_judged(cluster: Cluster, image: Image) -> None:
    job = validated(cluster, image, data_link="net1")
    assert job.wait() == 0, job.log
    out = job.output
    assert out.startswith(HEAD + ROW)
    assert "\nall_reduce_perf on 2 hosts, 2 ranks\n" in out
    assert "\n- NCCL's network: Socket\n" in out
    assert out.splitlines()[-1].startswith("verdict: fit: 95.28 GB/s average bus bandwidth")
    assert job.message == ""
    assert "LC_CTYPE" not in job.log  # Python's own, and no variable of the pod
    # The workers were told, and end with the job.
    for worker in job.workers:
        assert worker.wait() == 0
    # NCCL's lines and what ranks tell are not shown as they came.
    assert "NCCL INFO" not in out + job.log
    assert "mpiboot-validate|" not in out + job.log


@OLD_IMAGE
def test_a_tool_that_hangs_is_ended_and_judged(cluster: Cluster, image: Image) -> None:
    words = ("--time", "3", "--min-busbw", "99", "--json")
    job = validated(cluster, image, *words, kind="hang", data_link="net1")
    assert job.wait() == 1, job.log
    found = json.loads(job.output)
    assert [item["size"] for item in found["samples"]] == [134217728]
    assert found["verdict"]["check"] == "bandwidth"
    slow = "95.28 GB/s average bus bandwidth at 128 MiB; 99 GB/s are"
    assert found["verdict"]["message"].startswith(slow)
    assert [line for line in found["notes"] if line.startswith("time was up (3s) after 128 MiB")]
    assert set(found["programs"].values()) == {"all_reduce_perf"}
    assert job.message.startswith("bandwidth: 95.28 GB/s")
    # As at any end the ports were read, and the workers told.
    assert len(found["transport"]["hosts"]) == 2
    for worker in job.workers:
        assert worker.wait() == 0


# A link that carries far less than the others, which carry less than a busy machine's cores.
SHAPED = "qdisc add dev net1 root tbf rate 5mbit burst 64kb latency 50ms"
OTHERS = SHAPED.replace("5mbit", "50mbit")
# What comes from some addresses is limited, as between two nodes. This kernel has few qdiscs.
BETWEEN_NODES = """
table inet between_nodes {
    chain input {
        type filter hook input priority -300;
        ip saddr { %s } limit rate over 2 mbytes/second burst 128 kbytes drop
    }
}
"""
SLOW_PATH = """
table inet slow_path {
    chain input {
        type filter hook input priority -400;
        ip saddr %s limit rate over 100 kbytes/second burst 64 kbytes drop
    }
}
"""


# The brackets keep the search from finding itself.
RUNS = "cat /proc/[0-9]*/cmdline 2> /dev/null | tr '\\0' '\\n' | grep -c 'import prob[e]'"


def staying(cluster: Cluster, image: Image) -> Job:
    """A job whose launcher waits for commands, and whose four workers have a data network."""
    job = mpijob(cluster, image, workers=4, launcher_command=STAY, data_link="net1")
    return with_facts(job.start())


def pairs_of(job: Job, *options: str) -> tuple[int, dict[str, Any]]:
    code, text = mpiboot(job, "validate", "pairs", "--json", *options)
    return code, json.loads(text)


def of(record: dict[str, Any], check: str) -> set[str]:
    found = [item for item in record["findings"] if item["check"] == check]
    return {item["host"].partition(".")[0] for item in found}


def test_the_host_whose_link_is_shaped_is_named(cluster: Cluster, one: Image) -> None:
    job = staying(cluster, one)
    # All are limited: else these cores set the rates, and not the links.
    for at, worker in enumerate(job.workers):
        worker.network.run("tc", *(SHAPED if at == 1 else OTHERS).split())
    code, record = pairs_of(job, "--time", "30")
    assert code == 1, record
    assert of(record, "slow-host") == {"pi-worker-1"}
    assert record["tool"] == "tcp"
    assert record["rails"] == ["net1"]
    assert len(record["flows"]) == 12
    finding = next(item for item in record["findings"] if item["check"] == "slow-host")
    assert finding["host"].startswith("pi-worker-1")
    assert finding["message"].startswith("sends ")
    assert " Gb/s over net1, typically " in finding["message"]
    assert job.message == ""
    until(
        lambda: all(worker.exec("sh", "-c", RUNS).stdout == "0\n" for worker in job.workers),
        PATIENCE,
        "the end of what measures",
    )


@pytest.mark.parametrize("slow", ["pair", pytest.param("sender", marks=pytest.mark.full)])
def test_two_nodes_of_two_pods(cluster: Cluster, one: Image, slow: str) -> None:
    """Pods of one node are fast among themselves, beside which their other paths look slow."""
    job = staying(cluster, one)
    address = [worker.network.addresses("net1")[0] for worker in job.workers]
    for at, worker in enumerate(job.workers):
        others = address[2:] if at < 2 else address[:2]
        worker.network.run("nft", "-f", "-", stdin=BETWEEN_NODES % ", ".join(others))
    if slow == "sender":
        job.workers[1].network.run("tc", *SHAPED.split())
    else:
        job.workers[3].network.run("nft", "-f", "-", stdin=SLOW_PATH % address[0])
    code, record = pairs_of(job, "--time", "60")
    assert code == 1, record
    assert of(record, "slow-host") == ({"pi-worker-1"} if slow == "sender" else set()), record
    pairs = [item["message"] for item in record["findings"] if item["check"] == "slow-pair"]
    assert len(pairs) == int(slow == "pair"), record
    assert all(message.startswith("pi-worker-0.pi.default.svc to pi-worker-3") for message in pairs)


@pytest.mark.full
def test_the_init_container_measures_before_the_training_job(cluster: Cluster, one: Image) -> None:
    """By a user without any capability."""
    (manifest,) = read("validate/before-training.yaml")
    pod = manifest["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]
    inits = {"initContainers": pod.pop("initContainers")}
    job = play_mpijob(cluster, one, manifest)
    init = play_init_container(job, cluster, {**pod, **inits}).start()
    for worker in job.workers:
        worker.start().publish()
    assert init.wait() == 0, init.stderr()
    assert "1 of 1 pair of 2 hosts measured" in init.stdout()
