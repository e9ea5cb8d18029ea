"""A launcher's command that is no mpirun: it runs once, here, and what it calls waits for hosts."""

from __future__ import annotations

import re
import signal
from typing import Any

import pytest

from tests.pods import images, jobs, same
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import NEW, OLD, RING, ranks
from tests.pods.operator import mpijob
from tests.pods.test_users import RANDOM, RESTRICTED
from tests.waiting import until

FULL = pytest.mark.full
BOTH_RANKS = [(0, 2, "pi-worker-0"), (1, 2, "pi-worker-1")]
EACH = "for host in pi-worker-0 pi-worker-1; do ssh $host hostname </dev/null || exit 9; done"
RUN = f"mpirun -np 2 {RING}"


def test_a_program_without_mpirun_runs_once(cluster: Cluster) -> None:
    job = jobs.ended(cluster, images.image(OLD), RING, slots=8)
    assert ranks(job.output) == [(0, 1, "pi-launcher")]
    hint = f"`mpirun {RING} ...` runs it on the job's hosts"
    assert f"{RING} runs once, in this pod; {hint}" in job.log
    assert re.search(f"ended with 0\n.*-> it called no mpirun .*{re.escape(hint)}\n$", job.log)
    assert job.message == ""


def test_a_launch_that_failed_unseen(cluster: Cluster) -> None:
    script = "mpirun -n 1 sh -c 'sleep 0.3; exit 3' | cat"
    job = jobs.ended(cluster, images.image(OLD), "sh", "-c", script)
    said = "sh ended with 0, but its mpirun ended with 3 (a pipe without `set -o pipefail`?)"
    assert job.log.splitlines()[-1].endswith(said)
    assert job.message.startswith(f"launch: {said}")


@jobs.OLD_IMAGE
def test_a_launch_beside_a_sleep(cluster: Cluster, image: Image) -> None:
    """As where people then enter the launcher's pod; a signal ends it."""
    job = mpijob(cluster, image, launcher_args=["sh", "-c", "sleep 1d"]).start()
    until(job.launcher.stderr)
    done = job.launcher.exec("mpiboot", "mpirun", RING)
    assert (done.returncode, ranks(done.stdout)) == (0, BOTH_RANKS), done.stderr
    job.launcher.signal(signal.SIGTERM)
    assert job.wait() == 143


# The commonest line: the job's host key is checked all the same. Then as in Horovod's elastic mode:
# the operator's script lists the hosts, and is left as it is.
LOGS_IN = """
import subprocess
print("begun")
for host in ("pi-worker-0", "pi-worker-1.pi.default.svc"):
    words = ("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null")
    subprocess.run(["ssh", *words, host, "hostname; cat"], input=b"said\\n", check=True)
hosts = subprocess.run(["/etc/mpi/discover_hosts.sh"], capture_output=True, text=True, check=True)
for host in hosts.stdout.split():
    subprocess.run(["ssh", host, "echo found $(hostname)"], stdin=subprocess.DEVNULL, check=True)
"""
SAID = ["pi-worker-0", "said", "pi-worker-1", "said"]


def test_its_ssh_waits_for_the_host_that_it_names(cluster: Cluster) -> None:
    """Short names, which no nameserver knows, and no configuration of ssh's in the image."""
    job = mpijob(cluster, images.image(NEW), launcher_args=["python3", "-uc", LOGS_IN])
    job.start(publish=False)
    job.workers[0].publish()
    # The first one is logged in to while the second one has no name yet.
    until(lambda: job.output.split() == ["begun", *SAID[:2]])
    job.workers[1].publish()
    assert job.wait() == 0, job.log
    found = ["found pi-worker-0", "found pi-worker-1"]
    assert job.output.splitlines() == ["begun", *SAID, *found]
    assert "called no mpirun" not in job.log
    assert [worker.wait() for worker in job.workers] == [0, 0]


@jobs.NO_MPI
@pytest.mark.parametrize("server", ["openssh", "embedded"])
def test_its_scp_and_sftp_reach_a_host(cluster: Cluster, image: Image, server: str) -> None:
    script = "echo said >/tmp/f; scp -q /tmp/f pi-worker-0:g || exit 9; "
    script += "echo get g /tmp/h | sftp -qb - pi-worker-0 && cat /tmp/h"
    worker = {"env": {"MPIBOOT_SSHD": server}}
    job = mpijob(cluster, image, launcher_args=["sh", "-c", script], worker=worker)
    job.start(publish=False)
    job.launcher.logs("runs once")
    job.publish()
    assert job.wait() == 0, job.log
    assert job.output.splitlines()[-1] == "said"


def test_why_a_host_is_not_ready_is_what_its_ssh_says(cluster: Cluster) -> None:
    """The host that is there is reached before and after; another host than the job's at once."""
    script = "ssh nobody.invalid; for n in 0 1 0; do ssh pi-worker-$n hostname; echo $?; done"
    line, launcher = ["sh", "-c", script], {"env": {"MPIBOOT_TIMEOUT": "5"}}
    job = mpijob(cluster, images.image(NEW), launcher_args=line, launcher=launcher)
    job.start(publish=False)
    job.workers[0].publish()
    assert job.wait() == 0
    assert job.output.split() == ["pi-worker-0", "0", "255", "pi-worker-0", "0"]
    assert "nobody.invalid: " in job.log
    assert "\nnames-unresolved: 1 of 2 hosts do not resolve after " in job.log


def test_a_host_that_joins_later_is_reached_as_the_others_are(cluster: Cluster) -> None:
    """As in Horovod's elastic mode; the hostfile that was mounted has one host."""
    names = "pi-worker-0 pi-worker-1 pi-worker-1.pi.default.svc"
    # Until all listed hosts are ready, another host is none of the job's.
    joined = f"for host in {names}; do until ssh $host hostname </dev/null; do sleep 1; done; done"
    key = "/etc/job/.ssh"
    job = mpijob(
        cluster,
        images.image(NEW),
        user=1000,
        ssh_mount=key,
        env={"MPIBOOT_SSH_KEY": key},
        hostfile="pi-worker-0.pi.default.svc slots=1\n",
        launcher_args=["sh", "-c", joined],
    ).start(publish=False)
    for worker in reversed(job.workers):
        worker.logs("listens on")
        worker.publish()
    assert job.wait() == 0, job.log
    assert job.output.split() == ["pi-worker-0", "pi-worker-1", "pi-worker-1"]


@FULL
def test_as_a_user_without_a_passwd_entry(cluster: Cluster) -> None:
    """OpenSSH refuses such a user: the gate's connections are the command's."""
    mount, details = "/etc/job/.ssh", {**RESTRICTED, "group": 0}
    more: dict[str, Any] = {"env": {"MPIBOOT_SSH_KEY": mount}, "launcher": details}
    more |= {"user": RANDOM, "ssh_mount": mount, "worker": details}
    job = jobs.ended(cluster, images.image(NEW), "sh", "-c", EACH, **more)
    assert job.output.splitlines() == ["pi-worker-0", "pi-worker-1"]
    assert "ssh uses mpiboot's connections" in job.log


# A daemon as `ray start` leaves one, an MPI job, and a rank as DeepSpeed starts one.
DAEMON = f"""
ssh pi-worker-0 '[ -e /tmp/on ] || {{ touch /tmp/on; setsid nohup sleep 1000 >/dev/null 2>&1 & }}'
mpiboot launcher -- sh -c "{RUN}" && ssh pi-worker-0 'sleep 1001 & wait'
"""


@jobs.crossed("server", ["openssh", "embedded"])
def test_a_daemon_outlives_the_launch(cluster: Cluster, image: Image, server: str) -> None:
    worker = {"env": {"MPIBOOT_SSHD": server}}
    job = mpijob(cluster, image, launcher_args=["sh", "-c", DAEMON], worker=worker).start()

    def sleeping(seconds: str) -> list[int]:
        sleeps = jobs.alive(job.workers[0], "sleep")
        return [item.pid for item in sleeps if item.args[1] == seconds]

    until(lambda: sleeping("1001"))
    daemon = sleeping("1000")
    assert len(daemon) == 1
    job.launcher.kill()
    assert job.wait() == 137
    until(lambda: not sleeping("1001"), jobs.PROMISED)
    job.launcher.start()
    until(lambda: sleeping("1001"))
    assert len(ranks(job.output)) == 4
    assert sleeping("1000") == daemon


# What a login shell, and a file that a script reads, put in front of PATH.
ANEW = "export PATH=ROOT/bin:$PATH\n"
# Each MPI's folder, and whole words, as a shell without the pod's environment needs them.
MPIS = {
    NEW: (
        "/usr",
        "--prtemca prte_keep_fqdn_hostnames 1 --allow-run-as-root -hostfile /etc/mpi/hostfile -N 1",
    ),
    "intel-mpi": ("/opt/mpi", "-f /etc/mpi/hostfile -n 2 -ppn 1"),
}
# A shell, its script, and whether the mpirun that is found there is not mpiboot's.
SCRIPTS = (
    (("sh", "-c"), "env -i HOME=$HOME PATH=$PATH mpirun LINE", False),
    (("bash", "-ec"), "to=$(dirname $(which mpirun))/..; ls $to/lib; $to/bin/mpirun LINE", False),
    (("bash", "-c"), ". /opt/init.sh; mpirun LINE", True),
    (("dash", "-l", "-c"), "mpirun LINE", True),
)


@jobs.each(*MPIS)
def test_a_script_waits_for_a_name_that_is_late(cluster: Cluster, image: Image) -> None:
    """What a script does where no name is late is the same as with plain mpirun: `same_lines`."""
    root, words = MPIS[image.name]
    anew = ANEW.replace("ROOT", root)
    made = image.with_files({"/opt/init.sh": anew, "/etc/profile.d/mpi.sh": anew})
    job = same.pods(cluster, made).job
    for shell, script, passed_by in SCRIPTS:
        job.workers[1].unpublish()
        job.workers[1].publish(after=4)
        text = script.replace("LINE", f"{words} {RING}")
        done = job.launcher.exec("mpiboot", *shell, text, env={"MPIBOOT_LOG_LEVEL": "info"})
        assert (done.returncode, ranks(done.stdout)) == (0, BOTH_RANKS), f"{script}\n{done.stderr}"
        assert ("its mpirun was not mpiboot's" in done.stderr) == passed_by, done.stderr


# Both begin together; the second ends while the first still runs, and then the first is ended.
AT_ONCE = f"""
mpirun -n 2 {RING} --sleep 1000 > /tmp/first & first=$!
mpirun -n 2 {RING} > /tmp/second & second=$!
wait $second
echo "second $?"
while kill -0 $first && [ "$(grep -c rank /tmp/first)" != 2 ]; do sleep 0.2; done
kill -TERM $first
wait $first
echo "first $?"
cat /tmp/second
"""


@jobs.OLD_IMAGE
def test_two_mpiruns_at_once_in_one_script(cluster: Cluster, image: Image) -> None:
    job = jobs.ended(cluster, image, "sh", "-c", AT_ONCE)
    assert job.output.splitlines()[:2] == ["second 0", "first 143"]
    assert ranks(job.output) == BOTH_RANKS
    assert "lost" not in job.log
