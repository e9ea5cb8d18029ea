"""`mpiboot validate pairs` in pods: who is slow or loses packets is named, and nothing stays."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.manifests.examples import FOLDER, read
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import PATIENCE
from tests.pods.manifest import play_init_container, play_mpijob
from tests.pods.operator import Job, mpijob
from tests.pods.play import prepare
from tests.pods.test_doctor_hosts import STAY, measuring, with_facts
from tests.pods.test_input import mpiboot
from tests.waiting import until

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

# As soon as something is measured; a shell's background has SIGINT ignored.
INTERRUPTED = """
mpiboot validate pairs --time 600 --verbose 2> /tmp/said & p=$!
until grep -q ' flows* measured$' /tmp/said; do sleep 0.1; done
kill -INT $p
wait $p
"""

TRAINS = "mpirun -n 4 echo trained"


def staying(cluster: Cluster, image: Image) -> Job:
    """A job whose launcher waits for commands, and whose four workers have a data network."""
    job = mpijob(cluster, image, workers=4, launcher_command=STAY, data_link="net1")
    return with_facts(job.start())


def shape(job: Job, slow: int | None) -> None:
    """Limit all data links: else these cores set the rates, and not the links."""
    for at, worker in enumerate(job.workers):
        worker.network.run("tc", *(SHAPED if at == slow else OTHERS).split())


def validated(job: Job, *options: str) -> tuple[int, dict[str, Any]]:
    code, text = mpiboot(job, "validate", "pairs", "--json", *options)
    return code, json.loads(text)


def of(record: dict[str, Any], check: str) -> set[str]:
    """The hosts that are named for it."""
    found = [item for item in record["findings"] if item["check"] == check]
    return {item["host"].partition(".")[0] for item in found}


def test_the_host_whose_link_is_shaped_is_named(cluster: Cluster, one: Image) -> None:
    job = staying(cluster, one)
    shape(job, slow=1)
    code, record = validated(job, "--time", "30")
    assert code == 1, record
    assert of(record, "slow-host") == {"pi-worker-1"}
    assert record["tool"] == "tcp"
    assert record["rails"] == ["net1"]
    assert len(record["flows"]) == 12
    finding = next(item for item in record["findings"] if item["check"] == "slow-host")
    assert finding["host"].startswith("pi-worker-1")
    assert finding["message"].startswith("sends ")
    assert " Gb/s by net1, the others " in finding["message"]
    assert job.launcher.termination_log() == ""
    until(lambda: not measuring(job), PATIENCE, "the end of what measures")


@pytest.mark.full
@pytest.mark.parametrize(
    ("shaped", "program"),
    [(True, TRAINS.split()), (False, ["sh", "-c", f"{TRAINS}; {TRAINS}"])],
    ids=["slow", "script"],
)
def test_a_launcher_measures_once_before_its_job(
    cluster: Cluster,
    one: Image,
    shaped: bool,  # noqa: FBT001 - a row
    program: list[str],
) -> None:
    job = mpijob(
        cluster,
        one,
        workers=4,
        launcher_args=program,
        launcher={"env": {"MPIBOOT_VALIDATE": "quick"}},
        data_link="net1",
    )
    for worker in job.workers:
        worker.start()
    shape(job, slow=1 if shaped else None)
    job.launcher.start()
    job.publish()
    assert job.wait(PATIENCE) == int(shaped), job.launcher.stderr()
    runs = 0 if shaped else " ".join(program).count(TRAINS)
    assert job.launcher.stdout() == "trained\n" * 4 * runs
    assert job.launcher.stderr().count("6 of 6 pairs of 4 hosts measured") == 1
    if shaped:
        assert job.launcher.termination_log().startswith("slow-host: pi-worker-1")


@pytest.mark.parametrize("slow", ["nobody", "sender", "pair"])
def test_two_nodes_of_two_pods(
    cluster: Cluster,
    one: Image,
    slow: str,
) -> None:
    """Pods of one node are fast among themselves, beside which their other paths look slow."""
    job = staying(cluster, one)
    address = [worker.network.addresses("net1")[0] for worker in job.workers]
    for at, worker in enumerate(job.workers):
        others = address[2:] if at < 2 else address[:2]
        worker.network.run("nft", "-f", "-", stdin=BETWEEN_NODES % ", ".join(others))
    if slow == "sender":
        job.workers[1].network.run("tc", *SHAPED.split())
    elif slow == "pair":
        job.workers[3].network.run("nft", "-f", "-", stdin=SLOW_PATH % address[0])
    code, record = validated(job, "--time", "60")
    assert code == int(slow != "nobody"), record
    assert of(record, "slow-host") == ({"pi-worker-1"} if slow == "sender" else set()), record
    pairs = [item["message"] for item in record["findings"] if item["check"] == "slow-pair"]
    assert len(pairs) == int(slow == "pair"), record
    assert all(message.startswith("pi-worker-0.pi.default.svc to pi-worker-3") for message in pairs)


@pytest.mark.full
def test_a_signal_ends_it_with_what_was_measured(cluster: Cluster, one: Image) -> None:
    job = staying(cluster, one)
    done = job.launcher.exec("sh", "-c", INTERRUPTED)
    assert done.returncode == 130
    assert "interrupted before its end" in done.stdout
    assert ": median " in done.stdout
    assert "Traceback" not in done.stderr
    said = job.launcher.shell("tail -n 1 /tmp/said")
    assert said == "mpiboot: SIGINT before the end of the measurement"
    until(lambda: not measuring(job), PATIENCE, "the end of what measures")


@pytest.mark.full
def test_the_init_container_measures_before_the_training_job(
    cluster: Cluster,
    one: Image,
) -> None:
    """By a user without any capability; its line stands in `command:` here, the rig's form."""
    (manifest,) = read("validate/before-training.yaml")
    pod = manifest["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]
    (container,) = pod.pop("initContainers")
    job = play_mpijob(cluster, one, manifest)
    only = {name: container[name] for name in ("name", "image")}
    only["volumeMounts"] = [item for item in container["volumeMounts"] if item["name"] != "tmp"]
    init = play_init_container(job, cluster, {**only, "command": ["mpiboot", *container["args"]]})
    init.start()
    for worker in job.workers:
        worker.start().publish()
    assert init.wait(PATIENCE) == 0, init.stderr()
    assert "1 of 1 pair of 2 hosts measured" in init.stdout()


@pytest.mark.full
def test_the_example_measures_all_workers(cluster: Cluster, one: Image) -> None:
    job = prepare(FOLDER / "validate/pairs.yaml").played(cluster, one)
    job.start(PATIENCE)
    assert job.launcher.wait(PATIENCE) == 0, job.launcher.stderr()
    assert "1 of 1 pair of 2 hosts measured by mpiboot's own TCP stream" in job.launcher.stdout()
