"""Why a job failed, in its termination message; and when workers end after a good end."""

from __future__ import annotations

import json
import re
import signal
from typing import Any

import pytest

from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import (
    FOREVER,
    OWN_SSH,
    PATIENCE,
    PROMISED,
    RING,
    end_line,
    ended,
    launches,
    left,
    rank_processes,
    running,
    with_own_ssh,
)
from tests.pods.marks import ONE_IMAGE, crossed
from tests.pods.operator import Job, mpijob
from tests.pods.volumes import Files
from tests.waiting import until

MEMORY = 300 << 20
EATER = """#!/bin/sh
case $(hostname) in *worker-1) exec python3 -c 'x = bytearray(1 << 30)';; *) sleep 1000;; esac
"""
# Ends one rank by a signal, and its peers don't mind. Not at once: where a rank that is no MPI
# program ends within milliseconds on its own host, Open MPI 5.0 may wait for ever.
DIES = """#!/bin/sh
sleep 1
case $(hostname) in *$2) kill -s $1 $$;; esac
sleep 1000
"""
SECOND = "pi-worker-1.pi.default.svc"


def script(name: str, text: str, **fields: Any) -> dict[str, Any]:
    """Fields of a pod that has a program at /opt/it."""
    return {"volumes": [Files("/opt/it", {name: text}, 0o755)], **fields}


DYING = script("dies", DIES)


def fields(text: str) -> dict[str, Any]:
    """The fields of the `ended` event."""
    lines = [line for line in text.splitlines() if '"event": "ended"' in line]
    event: dict[str, Any] = json.loads(lines[-1])
    return event


@OWN_SSH
def test_a_rank_that_is_out_of_memory(cluster: Cluster, image: Image, own_ssh: str) -> None:
    chosen, details = with_own_ssh(own_ssh, image)
    worker = script("eat", EATER, memory=MEMORY, **details.get("worker", {}))
    eater = script("eat", EATER)
    job = mpijob(
        cluster, chosen, launcher_args=["mpirun", "/opt/it/eat"], worker=worker, launcher=eater
    ).start()
    code = job.wait(PATIENCE)
    message = job.launcher.termination_log().splitlines()
    killed = "out of memory: the kernel killed a process of this pod (limit 300 MiB"
    if code == 143:  # mpirun heard of the other one first
        assert "was ended by SIGTERM, from elsewhere or by mpirun" in message[0]
    else:
        assert code == 137
        assert message[0] == f"program: {SECOND}: rank 1 was ended by SIGKILL"
    assert message[1].startswith(f"{SECOND}: {killed}")
    assert "out of memory" in end_line(job.launcher.stderr())


@pytest.mark.full
def test_a_rank_beside_mpirun_that_is_out_of_memory(cluster: Cluster, image: Image) -> None:
    eat = script("eat", EATER.replace("worker-1", "launcher"))
    details = {"as_worker": True, "worker": eat, "launcher": {**eat, "memory": MEMORY}}
    job = ended(cluster, image, "mpirun", "/opt/it/eat", code=137, workers=1, **details)
    message = job.launcher.termination_log()
    assert (
        "pi-launcher: out of memory: the kernel killed a process of this pod (limit 300" in message
    )
    assert "out of memory" in end_line(job.launcher.stderr())


def test_each_end_in_words_and_as_fields(cluster: Cluster, image: Image) -> None:
    """Rank, host and signal are named, mpirun's own words stay, and nothing else is added."""
    names = ("KILL", "SEGV", "PIPE")
    lines = [["mpirun", "/opt/it/dies", name, "worker-1"] for name in names]
    lines += [["mpirun", RING, "--exit", "4"], ["mpirun", RING]]
    env = {"MPIBOOT_LOG_FORMAT": "json"}
    ends = launches(cluster, image, lines, env=env, worker=DYING, launcher=DYING)
    for name, (code, message) in zip(names, ends, strict=False):
        number, event = signal.Signals[f"SIG{name}"], fields(message)
        if code == 143:  # seen on busy machines: mpirun tells of the other rank
            assert "by mpirun after another rank's end" in event["cause"]
            continue
        assert code == event["exit"] == 128 + number
        assert (event["rank"], event["signal"], event["host"]) == (1, number.name, SECOND)
        assert event["cause"] == f"rank 1 was ended by {number.name}"
        assert f"exit {code}: {SECOND}: rank 1 was ended by {number.name}" in event["message"]
        assert message.count("noticed that process rank 1") == 1
        assert "ACTIVAT" not in message
    failed, good = (fields(message) for _, message in ends[-2:])
    assert all("out of memory" not in message for _, message in ends)
    assert [(event["hosts"], event["ranks"]) for event in (failed, good)] == [(2, 2)] * 2
    assert (failed["exit"], failed["rank"], failed["signal"]) == (4, 1, "")
    assert failed["cause"] == "rank 1 exited with code 4 (first failure)"
    assert failed["seconds"] > 0
    assert (good["exit"], good["rank"], good["reference"]) == (0, None, "")
    assert (good["host"], good["signal"]) == ("", "")
    assert good["message"].endswith("2 hosts, 2 ranks, exit 0: the program succeeded")


def evidence(job: Job) -> list[str]:
    """The evidence about a lost host, below the termination message's first line and hints."""
    assert job.wait(PATIENCE) == 69
    assert "exit 69" in end_line(job.launcher.stderr())
    until(lambda: not left(job.workers), PROMISED)
    first, hint, look, *lines = job.launcher.termination_log().splitlines()
    assert first.startswith(f"host-lost: {SECOND}: ")
    assert "pi-worker-0" not in first
    assert hint.startswith("-> ")
    outside = "-> look closer: kubectl describe pod -n default pi-worker-1; kubectl logs -n "
    assert look.startswith(outside)
    return lines


@OWN_SSH
def test_a_pod_that_is_gone(cluster: Cluster, image: Image, own_ssh: str) -> None:
    """Or whose container is not restarted."""
    chosen, details = with_own_ssh(own_ssh, image)
    job = running(cluster, chosen, **details)
    if own_ssh == "server":
        job.workers[1].kill()
        evidence(job)
        return
    job.workers[1].delete()
    (gone,) = evidence(job)
    assert gone == (
        f"{SECOND}: its name does not resolve any more: its container ended, or its pod is gone"
    )
    assert gone in end_line(job.launcher.stderr())


@ONE_IMAGE
def test_a_failed_launcher_is_kept_for_a_look_inside(cluster: Cluster, image: Image) -> None:
    job = mpijob(
        cluster,
        image,
        workers=1,
        launcher_args=["mpirun", RING, "--exit", "3"],
        env={"MPIBOOT_HOLD_ON_FAILURE": "1000"},
    ).start()
    until(lambda: "keeping the pod for 16m40s" in job.launcher.stderr())
    assert job.launcher.running
    assert "3" in job.launcher.termination_log()
    job.launcher.signal(signal.SIGTERM)
    assert job.wait(PATIENCE) == 3


@ONE_IMAGE
def test_workers_stay_after_a_failure_or_by_a_setting(cluster: Cluster, image: Image) -> None:
    """So do those without an operator: a StatefulSet would restart them forever."""
    others = {1: {"env": {"MPIBOOT_WORKER_EXIT": "never"}}, 2: {"env": {"K_MPI_JOB_ROLE": ""}}}
    job = ended(cluster, image, workers=3, each_worker=others)
    assert job.workers[0].wait(PATIENCE) == 0
    assert [worker.running for worker in job.workers[1:]] == [True, True]
    ways = {1: {"env": {"MPIBOOT_WORKER_EXIT": "after-job", "MPIBOOT_LAUNCHER_AWAY": "1"}}}
    line = ("mpirun", RING, "--exit", "3")
    failed = ended(cluster, image, *line, code=3, each_worker=ways, name="failed")
    assert failed.workers[1].wait(PATIENCE) == 0
    assert failed.workers[0].running
    assert not rank_processes(failed.workers[0])


@crossed("rank", [0, 1])
def test_a_killed_rank_beside_the_launcher(cluster: Cluster, image: Image, rank: int) -> None:
    """4.1's ranks there don't inherit the descriptor of mpirun's messages: theirs go to stderr."""
    args = ["mpirun", RING, "--rank", str(rank), "--segv"]
    job = mpijob(cluster, image, workers=1, as_worker=True, launcher_args=args).start()
    code = job.wait(PATIENCE)
    message = job.launcher.stderr()
    if code == 14:  # 5.0, where a peer saw its connection close before that rank's end was told
        return
    assert code == 139
    assert f": rank {rank} was ended by " in message
    assert job.pods[rank].hostname in message.rpartition("job ended: ")[2]
    assert "egmentation fault" in message


@pytest.mark.full
@pytest.mark.parametrize("name", ["openmpi-5.0", "mpich-4.0"])
def test_a_time_limit_of_mpirun_is_named(cluster: Cluster, rig: None, name: str) -> None:
    env = {"MPIEXEC_TIMEOUT": "6"}
    image = images.image(name)
    job = mpijob(cluster, image, launcher_args=list(FOREVER), launcher={"env": env}).start()
    assert job.wait(PATIENCE) in (241, 255)
    assert "limit (MPIEXEC_TIMEOUT=6, set in the launcher's environment)\n" in (
        job.launcher.termination_log()
    )


# With that directory as mpirun's own, and on the line: whether ranks run, at home.
AT_HOME = {
    **dict.fromkeys(images.NAMES, (True, False)),
    "mpich-4.0": (False, False),
    "intel-mpi": (True, True),
}


@pytest.mark.full
@pytest.mark.parametrize("name", AT_HOME)
def test_the_directory_that_only_the_launcher_has(cluster: Cluster, rig: None, name: str) -> None:
    lines = ("mpiboot mpirun pwd", "mpiboot mpirun -wdir /only pwd")
    script = "mkdir /only; cd /only; " + "; ".join(f"{line}; echo next=$? >&2" for line in lines)
    job = ended(
        cluster,
        images.image(name),
        launcher_command=["sh", "-c", script],
        worker={"env": {"MPIBOOT_WORKER_EXIT": "never"}},
    )
    where = (
        "/only, where ranks are to start, is not on pi-worker-0.pi.default.svc, pi-worker-1.pi.defa"
    )
    warnings = job.launcher.stderr().split(f"warning: [working-directory] {where}")
    at_home = [": they start in the home directory there" in text for text in warnings[1:]]
    assert tuple(at_home) == AT_HOME[name]
    codes = re.findall(r"^next=(\d+)", job.launcher.stderr(), flags=re.MULTILINE)
    assert tuple(code == "0" for code in codes) == AT_HOME[name]
    assert job.launcher.stdout().count("/root\n") == 2 * at_home.count(True)


def test_a_host_name_that_is_too_long_for_open_mpi_4(cluster: Cluster, rig: None) -> None:
    name = "a-job-with-a-name-of-words-that-anyone-chose-at-length"
    job = ended(cluster, images.image(images.NAMES[0]), *list(FOREVER), code=134, name=name)
    message = f"{name}-launcher, {name}-worker-"
    assert f"warning: [host-names] {message}" in job.launcher.stderr()
    end = end_line(job.launcher.stderr())
    assert "[host-names] job ended: " in end
    assert f"exit 134: mpirun itself was killed by SIGABRT: {message}" in end
    assert "mpiboot had set" not in job.launcher.termination_log()


@pytest.mark.full
@pytest.mark.parametrize(
    ("seconds", "told"), [("0", "/other/ring is linked with"), ("40", "the ranks have loaded")]
)
def test_a_program_of_another_mpi_is_told(
    cluster: Cluster, rig: None, seconds: str, told: str
) -> None:
    """Each rank is rank 0 of 1, and all end with 0: a shorter one is looked at when it has."""
    programs = images.image("mpich-5.0").programs
    assert programs
    image = images.image(images.NAMES[1]).with_wheel("/other", "mpich==4.0.3")
    image = image.with_program("/other/ring", (programs / "ring").read_bytes())
    line = ["mpirun", "-x", "LD_LIBRARY_PATH=/other/lib", "/other/ring", "--sleep", seconds]
    job = ended(cluster, image, *line)
    message = f"{told} libmpi.so.12 (MPICH or Intel MPI), but this mpirun is that of Open MPI: "
    assert job.launcher.stderr().count(f"warning: [mpi-versions] {message}") == 1
