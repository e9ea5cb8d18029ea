"""Signals to a launcher, in each phase of a job: no process is left behind."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import (
    OWN_SSH,
    PATIENCE,
    PROMISED,
    RING,
    end_line,
    left,
    running,
    slow_to_launch,
    with_own_ssh,
)
from tests.pods.marks import NEW, NO_MPI, OLD_IMAGE, ONE_IMAGE, crossed
from tests.pods.operator import Job, mpijob
from tests.waiting import until

# The program's own: an MPI forwards them to its ranks.
PROGRAMS = [signal.SIGUSR1, signal.SIGUSR2]


def ended_by(job: Job, number: int) -> None:
    """The launcher reports the signal, blames no host, and leaves nothing on a worker."""
    assert job.wait(PATIENCE) == 128 + number
    name = signal.Signals(number).name
    assert name in end_line(job.launcher.stderr())
    message = job.launcher.termination_log()
    assert message.startswith("signal: ")
    assert "pi-worker" not in message.splitlines()[0]
    until(lambda: not left(job.workers), PROMISED)


@NO_MPI
def test_signals_while_hosts_are_waited_for(cluster: Cluster, image: Image) -> None:
    """The program's own do not end the wait."""
    job = mpijob(cluster, image, workers=1).start(publish=False)
    until(lambda: "NXDOMAIN" in job.launcher.stderr())
    for number in PROGRAMS:
        job.launcher.signal(number)
    until(lambda: job.launcher.stderr().count("the program has not started") == len(PROGRAMS))
    job.launcher.signal(signal.SIGTERM)
    assert job.wait(PATIENCE) == 143
    assert "SIGTERM" in job.launcher.termination_log()


@crossed("number", [signal.SIGINT, signal.SIGTERM], ["INT", "TERM"])
def test_a_signal_while_daemons_are_launched(cluster: Cluster, image: Image, number: int) -> None:
    """Open MPI 5 by itself ignores SIGTERM then."""
    job = slow_to_launch(cluster, image)
    job.launcher.signal(number)
    ended_by(job, number)


@pytest.mark.full
def test_a_programs_signal_while_daemons_are_launched(cluster: Cluster, image: Image) -> None:
    """It ends nothing: the launch goes on, and the job after it."""
    wait = "until [ -e /tmp/go ]; do sleep 0.1; done"
    job = slow_to_launch(cluster, image, wait, "mpirun", RING)
    for number in PROGRAMS:
        job.launcher.signal(number)
    refused = "not forwarded: no rank runs yet"
    until(lambda: job.launcher.stderr().count(refused) == len(PROGRAMS))
    job.launcher.shell("touch /tmp/go")
    assert job.wait(PATIENCE) == 0


@crossed("number", [signal.SIGTERM, signal.SIGHUP], ["TERM", "HUP"])
def test_a_signal_while_the_job_runs(cluster: Cluster, image: Image, number: int) -> None:
    job = running(cluster, image)
    job.launcher.signal(number)
    ended_by(job, number)
    assert all(worker.running for worker in job.workers)


@ONE_IMAGE
def test_the_same_signal_twice_in_a_row(cluster: Cluster, image: Image) -> None:
    job = running(cluster, image, "mpirun", RING, "--sleep", "1000", "--ignore-term")
    job.launcher.signal(signal.SIGTERM)
    until(lambda: "got SIGTERM" in job.launcher.stderr())
    job.launcher.signal(signal.SIGTERM)
    ended_by(job, signal.SIGTERM)


@ONE_IMAGE
def test_ctrl_c_in_the_terminal_of_kubectl_exec(cluster: Cluster, image: Image) -> None:
    """The terminal sends it to mpirun too, which must not get it twice."""
    job = mpijob(cluster, image, launcher_command=["sleep", "1000"]).start()
    terminal = job.launcher.exec_in_terminal(
        "mpiboot", "launcher", "--", "mpirun", RING, "--sleep", "1000"
    )
    # One that comes before its daemons have joined mpirun 5.0.7 may not survive.
    until(lambda: terminal.screen().count(" of 2 on pi-worker-") == 2)
    terminal.type("\x03")
    assert terminal.wait(PATIENCE) == 130
    assert "exit 130: ended by SIGINT" in end_line(terminal.screen())
    assert "hit ctrl-c again" not in terminal.screen()
    until(lambda: not left(job.pods), PROMISED)


@OLD_IMAGE
def test_a_user_signal_reaches_the_ranks(cluster: Cluster, image: Image) -> None:
    """It is the program's: its default action ends the ranks."""
    job = running(cluster, image)
    # In MPI_Init a rank's end by a signal may make mpirun 5.0 go on without it: another fault.
    until(lambda: job.launcher.stdout().count("rank ") == 2)
    job.launcher.signal(signal.SIGUSR1)
    assert job.wait(PATIENCE) == 128 + signal.SIGUSR1
    assert "SIGUSR1" in end_line(job.launcher.stderr())


# An address without a pod answers nothing; connections that were there end as their pods do.
NO_NEW_LOGINS = """table inet gone { chain out { type filter hook output priority 0;
    tcp dport 22 tcp flags syn / syn,ack drop; }; }"""


@pytest.mark.parametrize(
    ("image", "cpu_limit", "stopped"),
    [
        (NEW, 0.0, "all"),
        pytest.param(NEW, 0.2, "workers", marks=pytest.mark.full),
    ],
    indirect=["image"],
)
def test_pods_that_are_gone_are_not_waited_for(
    cluster: Cluster, image: Image, cpu_limit: float, stopped: str
) -> None:
    """As after a suspend: logins that would signal the ranks get no answer."""
    job = running(
        cluster, image, workers=3, env={"MPIBOOT_GRACE": "600"}, launcher={"cpu_limit": cpu_limit}
    )
    job.launcher.network.run("nft", "-f", "-", stdin=NO_NEW_LOGINS)
    for pod in job.workers:
        pod.signal(signal.SIGTERM)
    if stopped == "all":
        job.launcher.signal(signal.SIGTERM)
    assert job.wait(PATIENCE) == (143 if stopped == "all" else 69)
    assert "in time" not in job.launcher.stderr()


@OWN_SSH
def test_what_an_earlier_launcher_left(cluster: Cluster, image: Image, own_ssh: str) -> None:
    """Its node is gone without a word: the new one waits until the workers have found out."""
    chosen, details = with_own_ssh(own_ssh, image)
    job = running(cluster, chosen, env={"MPIBOOT_SSH_KEEPALIVE": "6"}, **details)
    again = cluster.pod(replace(job.launcher.spec, name="pi-launcher-again")).start()
    before = {item.host_pid for item in left(job.workers)}
    assert before
    until(lambda: "in use by launcher pi-launcher (" in again.stderr())
    job.launcher.link_down(silent=True)
    job.launcher.delete()
    until(lambda: "daemons started" in again.stderr())
    assert not before & {item.host_pid for item in left(job.workers)}
    again.signal(signal.SIGTERM)
    assert again.wait(PATIENCE) == 143
    until(lambda: not left(job.workers), PROMISED)
