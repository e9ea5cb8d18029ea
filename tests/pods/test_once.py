"""A launcher's command that is no mpirun: it runs once, here, and what it calls waits for hosts."""

from __future__ import annotations

import json
import re
import signal
from typing import Any

import pytest

from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import PATIENCE, PROMISED, RING, alive, ended, ranks
from tests.pods.marks import crossed
from tests.pods.operator import mpijob
from tests.pods.test_users import RANDOM, RESTRICTED
from tests.pods.volumes import EmptyDir
from tests.waiting import until

NAME = images.NAMES[-1]
BOTH = [(0, 2, "pi-worker-0"), (1, 2, "pi-worker-1")]
EACH = "for host in pi-worker-0 pi-worker-1; do ssh $host hostname </dev/null || exit 9; done"
RUN = f"mpirun -np 2 {RING}"


def test_a_launch_in_a_script_and_its_end(cluster: Cluster, rig: None) -> None:
    """The hosts are late for it; ways to call it are lines of `same_lines`."""
    line = ["bash", "-euo", "pipefail", "-c", f"{RUN} | tee /tmp/log"]
    job = mpijob(cluster, images.image(images.NAMES[0]), launcher_args=line)
    job.start(publish=False)
    until(lambda: "DNS for pi-worker-0, pi-worker-1" in job.launcher.stderr())
    job.publish()
    assert job.wait(PATIENCE) == 0, job.launcher.stderr()
    assert ranks(job.launcher.stdout()) == BOTH
    for words in ("called no mpirun", "its mpirun was not", "kept behind mpiboot's"):
        assert words not in job.launcher.stderr()
    assert [worker.wait(PATIENCE) for worker in job.workers] == [0, 0]


def test_a_program_without_mpirun_runs_once(cluster: Cluster, rig: None) -> None:
    folder = EmptyDir("/record")
    job = mpijob(
        cluster,
        images.image(images.NAMES[0]),
        slots=8,
        launcher_args=[RING],
        launcher={"env": {"MPIBOOT_JOB_RECORD": "/record/job.json"}, "volumes": (folder,)},
    )
    job.launcher.start()
    assert job.launcher.wait(PATIENCE) == 0
    assert ranks(job.launcher.stdout()) == [(0, 1, "pi-launcher")]
    hint = f"`mpirun {RING}` runs it on the 2 hosts of /etc/mpi/hostfile"
    message = job.launcher.stderr()
    assert f"{RING} runs once, in this pod; {hint}" in message
    assert re.search(f"ended with 0\n.*-> it called no mpirun .*{re.escape(hint)}\n$", message)
    assert hint in job.launcher.termination_log()
    assert folder.host
    assert hint in json.loads((folder.host / "job.json").read_text())["reason"]


def test_a_launch_beside_a_sleep(cluster: Cluster, image: Image) -> None:
    """As where people then enter the launcher's pod; a signal ends it."""
    job = mpijob(cluster, image, launcher_args=["sh", "-c", "sleep 1d"]).start()
    until(job.launcher.stderr)
    done = job.launcher.exec("mpiboot", "mpirun", RING)
    assert (done.returncode, ranks(done.stdout)) == (0, BOTH), done.stderr
    assert not [item for worker in job.workers for item in alive(worker, "sleep")]
    job.launcher.signal(signal.SIGTERM)
    assert job.launcher.wait(PATIENCE) == 143


AGAIN = "mpirun -n 1 sh -c '[ -e /tmp/seen ] || { touch /tmp/seen; exit 3; }'"
PIPE = "sh ended with 0, but its mpirun ended with 3 (a pipe without `set -o pipefail`?)"


@pytest.mark.parametrize(
    ("script", "said"), [(f"{AGAIN} | cat", PIPE), (f"{AGAIN}; {AGAIN}", "sh ended with 0")]
)
def test_a_launch_that_failed_unseen(cluster: Cluster, rig: None, script: str, said: str) -> None:
    """Unless the same line went well later."""
    folder = EmptyDir("/record")
    job = ended(
        cluster,
        images.image(images.NAMES[0]),
        *("sh", "-c", script),
        launcher={"env": {"MPIBOOT_JOB_RECORD": "/record/job.json"}, "volumes": (folder,)},
    )
    assert job.launcher.stderr().splitlines()[-1].endswith(said)
    assert folder.host
    record = json.loads((folder.host / "job.json").read_text())
    assert (record["exit"], record["reason"], record["ranks"]) == (0, said, 1)
    message = job.launcher.termination_log()
    assert message.partition("\n")[0] == (f"launch: {said}" if said == PIPE else "")


# The commonest line: the job's host key is checked all the same.
LOGS_IN = """
import subprocess
for host in ("pi-worker-0", "pi-worker-1.pi.default.svc"):
    words = ("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null")
    subprocess.run(["ssh", *words, host, "hostname; cat"], input=b"said\\n", check=True)
"""
# As in Horovod's elastic mode: the operator's script lists the hosts, and is left as it is.
DISCOVERS = """
hosts = subprocess.run(["/etc/mpi/discover_hosts.sh"], capture_output=True, text=True, check=True)
for host in hosts.stdout.split():
    subprocess.run(["ssh", host, "echo found $(hostname)"], stdin=subprocess.DEVNULL, check=True)
"""
FOUND = ["found pi-worker-0", "found pi-worker-1"]
SAID = ["pi-worker-0", "said", "pi-worker-1", "said"]


def test_its_ssh_waits_for_the_host_that_it_names(cluster: Cluster, rig: None) -> None:
    """Short names, which no nameserver knows, and no configuration of ssh's in the image."""
    program = ["python3", "-uc", f"print('begun'){LOGS_IN}{DISCOVERS}"]
    job = mpijob(cluster, images.image(NAME), launcher_args=program)
    job.start(publish=False)
    job.workers[0].publish()
    # The first one is logged in to while the second one has no name yet.
    until(lambda: job.launcher.stdout().split() == ["begun", *SAID[:2]])
    job.workers[1].publish()
    assert job.wait(PATIENCE) == 0, job.launcher.stderr()
    assert job.launcher.stdout().splitlines() == ["begun", *SAID, *FOUND]
    assert "called no mpirun" not in job.launcher.stderr()
    assert [worker.wait(PATIENCE) for worker in job.workers] == [0, 0]


@crossed("server", ["openssh", "embedded"])
def test_its_scp_and_sftp_reach_a_host_by_its_ssh(
    cluster: Cluster, image: Image, server: str
) -> None:
    script = "echo said >/tmp/f; scp -q /tmp/f pi-worker-0:g || exit 9; "
    script += "echo get g /tmp/h | sftp -qb - pi-worker-0 && cat /tmp/h"
    line = ["sh", "-c", script]
    job = mpijob(
        cluster, image, launcher_args=line, worker={"env": {"MPIBOOT_SSHD": server}}
    ).start(publish=False)
    until(lambda: "runs once" in job.launcher.stderr())
    job.publish()
    assert job.wait(PATIENCE) == 0, job.launcher.stderr()
    assert job.launcher.stdout().splitlines()[-1] == "said"


def test_why_a_host_is_not_ready_is_what_its_ssh_says(cluster: Cluster, rig: None) -> None:
    """The host that is there is reached before and after; another host than the job's at once."""
    script = "ssh nobody.invalid; for n in 0 1 0; do ssh pi-worker-$n hostname; echo $?; done"
    job = mpijob(
        cluster,
        images.image(NAME),
        launcher_args=["sh", "-c", script],
        launcher={"env": {"MPIBOOT_TIMEOUT": "5"}},
    ).start(publish=False)
    job.workers[0].publish()
    assert job.launcher.wait(PATIENCE) == 0
    assert job.launcher.stdout().split() == ["pi-worker-0", "0", "255", "pi-worker-0", "0"]
    message = job.launcher.stderr()
    assert "nobody.invalid: " in message
    assert "\nnames-unresolved: 1 of 2 hosts do not resolve after " in message


def test_a_host_that_joins_later_is_reached_as_the_others_are(cluster: Cluster, rig: None) -> None:
    """As in Horovod's elastic mode; the hostfile that was mounted has one host."""
    key = "/etc/job/.ssh"
    job = mpijob(
        cluster,
        images.image(NAME),
        user=1000,
        ssh_mount=key,
        env={"MPIBOOT_SSH_KEY": key},
        hostfile="pi-worker-0.pi.default.svc slots=1\n",
        launcher_args=["sh", "-c", EACH.replace("; do", " pi-worker-1.pi.default.svc; do")],
    ).start(publish=False)
    for worker in reversed(job.workers):
        worker.publish(when_port=2222)
    assert job.wait(PATIENCE) == 0, job.launcher.stderr()
    assert job.launcher.stdout().split() == ["pi-worker-0", "pi-worker-1", "pi-worker-1"]


# A daemon as `ray start` leaves one, an MPI job, and a rank as DeepSpeed starts one.
DAEMON = f"""
ssh pi-worker-0 '[ -e /tmp/on ] || {{ touch /tmp/on; setsid nohup sleep 1000 >/dev/null 2>&1 & }}'
{RUN} && ssh pi-worker-0 'sleep 1001 & wait'
"""


@crossed("server", ["openssh", "embedded"])
def test_a_daemon_outlives_the_launch(cluster: Cluster, image: Image, server: str) -> None:
    job = mpijob(
        cluster, image, launcher_args=["sh", "-c", DAEMON], worker={"env": {"MPIBOOT_SSHD": server}}
    ).start()

    def sleeping(seconds: str) -> list[int]:
        return [item.pid for item in alive(job.workers[0], "sleep") if item.args[1] == seconds]

    until(lambda: sleeping("1001"))
    daemon = sleeping("1000")
    assert len(daemon) == 1
    job.launcher.kill()
    assert job.wait(PATIENCE) == 137
    until(lambda: not sleeping("1001"), PROMISED)
    job.launcher.start()
    until(lambda: sleeping("1001"))
    assert len(ranks(job.launcher.stdout())) == 4
    assert sleeping("1000") == daemon


@pytest.mark.full
@pytest.mark.parametrize(
    ("user", "mount", "details"),
    [
        (1000, "/home/mpiuser/.ssh", {}),
        (RANDOM, "/etc/job/.ssh", {**RESTRICTED, "group": 0}),
    ],
)
def test_as_another_user_than_root(
    cluster: Cluster, rig: None, user: int, mount: str, details: dict[str, Any]
) -> None:
    """OpenSSH refuses a user without a passwd entry: the gate's connections are the command's."""
    job = ended(
        cluster,
        images.image(NAME),
        *("sh", "-c", EACH),
        user=user,
        ssh_mount=mount,
        env={"MPIBOOT_SSH_KEY": mount},
        launcher=details,
        worker=details,
    )
    assert job.launcher.stdout().splitlines() == ["pi-worker-0", "pi-worker-1"]
    own = "its ssh uses mpiboot's connections" in job.launcher.stderr()
    assert own == (user == RANDOM)
