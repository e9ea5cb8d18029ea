"""Ranks get the grace period to save before they end: signals to launchers, workers and both."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import (
    NEW,
    NO_MPI,
    OLD,
    OLD_IMAGE,
    ONE_IMAGE,
    OWN_SSH,
    PATIENCE,
    PROMISED,
    RING,
    alive,
    crossed,
    end_line,
    held,
    kill,
    left,
    let_go,
    python,
    running,
    slow_to_launch,
    with_own_ssh,
)
from tests.pods.operator import Job, mpijob
from tests.pods.pod import Pod, Process
from tests.pods.volumes import HostPath
from tests.waiting import until

TERM = f"signal {signal.SIGTERM.value}, once"
# Longer than either MPI lets a rank live once it is signalled itself, or has seen one die.
SAVE = ("--save", "5")
LONG = {"MPIBOOT_GRACE": "60"}


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """What ranks save outlives their pods."""
    tmp_path.chmod(0o777)
    return tmp_path


def saving(cluster: Cluster, image: Image, kept: Path, *program: str, **env: str) -> Job:
    """Four ranks on two workers, each past MPI_Init."""
    argv = ("mpirun", RING, "--sleep", "1000", *program)
    volumes = [HostPath("/ckpt", kept, writable=True)]
    job = running(
        cluster,
        image,
        *argv,
        slots=2,
        env={**LONG, **env},
        worker={"env": {**LONG, **env}, "volumes": volumes},
    )
    until(lambda: job.launcher.stdout().count("rank ") == 4)
    return job


def saved(kept: Path) -> dict[int, str]:
    """What each rank has saved."""
    return {
        int(path.name.partition("-")[2]): path.read_text().strip() for path in kept.glob("saved-*")
    }


def told_to_end(job: Job) -> None:
    job.launcher.signal(signal.SIGTERM)
    assert job.wait(PATIENCE) == 143
    assert "SIGTERM" in end_line(job.launcher.stderr())
    until(lambda: not left(job.workers), PROMISED)


def test_every_rank_saves_and_finishes(cluster: Cluster, image: Image, kept: Path) -> None:
    """MPI_Finalize needs mpirun, which is stopped, and continued for that."""
    job = saving(cluster, image, kept, *SAVE)
    told_to_end(job)
    assert saved(kept) == dict.fromkeys(range(4), TERM)
    message = job.launcher.stderr()
    assert "sent SIGTERM to 4 ranks; waiting up to 1m" in message
    assert "did not end in time" not in message


@pytest.mark.parametrize(
    ("image", "rank", "server"),
    [
        (OLD, 1, "embedded"),
        (NEW, 3, "auto"),
    ],
    indirect=["image"],
)
def test_a_drained_worker_lets_each_rank_of_the_job_save(
    cluster: Cluster, image: Image, kept: Path, rank: int, server: str
) -> None:
    """Its own ranks and those of other workers; all but one die at once."""
    program = (*SAVE, "--rank", str(rank), "--no-finalize")
    job = saving(cluster, image, kept, *program, MPIBOOT_SSHD=server)
    job.workers[0].signal(signal.SIGTERM)
    assert job.wait(PATIENCE) == 69
    assert saved(kept) == {rank: TERM}
    assert job.workers[0].wait(PATIENCE) == 0
    message = job.launcher.termination_log()
    assert "pi-worker-0" in message.splitlines()[0]
    assert "its pod is being terminated" in message
    until(lambda: not left(job.workers), PROMISED)


@ONE_IMAGE
def test_a_suspended_job_saves_once(cluster: Cluster, image: Image, kept: Path) -> None:
    job = saving(cluster, image, kept, *SAVE)
    for pod in job.workers:
        pod.signal(signal.SIGTERM)
    time.sleep(0.5)  # up to a second may lie between
    told_to_end(job)
    message = job.launcher.termination_log()
    assert message.startswith("signal: ")
    assert "pi-worker" not in message.splitlines()[0]
    assert [worker.wait(PATIENCE) for worker in job.workers] == [0, 0]
    assert saved(kept) == dict.fromkeys(range(4), TERM)


@pytest.mark.full
@pytest.mark.parametrize("start", ["a script", "ranks beside mpirun"])
def test_ranks_of_a_script_and_those_beside_mpirun_save_too(
    cluster: Cluster, image: Image, kept: Path, start: str
) -> None:
    line = f"mpirun {RING} --sleep 1000 {' '.join(SAVE)}"
    beside = start == "ranks beside mpirun"
    script = ["sh", "-c", f"{line}; exit $?"]
    pods = {"env": LONG, "volumes": [HostPath("/ckpt", kept, writable=True)]}
    job = running(
        cluster,
        image,
        *(line.split() if beside else script),
        as_worker=beside,
        launcher=pods,
        worker=pods,
    )
    count = 2 + beside
    until(lambda: job.launcher.stdout().count("rank ") == count)
    told_to_end(job)
    assert saved(kept) == dict.fromkeys(range(count), TERM)


@OLD_IMAGE
@pytest.mark.full
def test_a_program_that_saves_on_another_signal(cluster: Cluster, image: Image, kept: Path) -> None:
    job = saving(cluster, image, kept, *SAVE, "--no-finalize", MPIBOOT_STOP_SIGNAL="USR1")
    told_to_end(job)
    assert saved(kept) == dict.fromkeys(range(4), TERM.replace("15", str(signal.SIGUSR1.value)))


@ONE_IMAGE
def test_a_rank_that_ignores_the_signal(cluster: Cluster, image: Image, kept: Path) -> None:
    job = saving(cluster, image, kept, "--ignore-term", MPIBOOT_GRACE="12")
    told_to_end(job)
    assert "4 ranks did not end in time: mpirun ends what is left" in job.launcher.stderr()


@pytest.mark.full
def test_a_grace_longer_than_the_pods(cluster: Cluster, image: Image, kept: Path) -> None:
    """The kubelet's SIGKILL comes first: nobody can wait for that, and nothing is left."""
    job = saving(cluster, image, kept, "--save", "60", "--no-finalize")
    assert job.launcher.stop(grace=10) == 137
    until(lambda: not left(job.workers), PROMISED)
    assert "waiting up to 1m" in job.launcher.stderr()
    assert all(worker.running for worker in job.workers)


@pytest.mark.full
def test_what_ranks_have_forked_ends_with_them(cluster: Cluster, image: Image, kept: Path) -> None:
    """Each in a session of its own and deaf to SIGTERM, as a program's helpers may be."""
    helper = '(trap \'\' TERM; exec setsid sleep 1000) & exec "$0" "$@"'
    job = running(
        cluster,
        image,
        *("mpirun", "sh", "-c", helper, RING, "--sleep", "1000", *SAVE),
        worker={"volumes": [HostPath("/ckpt", kept, writable=True)]},
        env={"MPIBOOT_GRACE": "12"},
    )
    until(lambda: job.launcher.stdout().count("rank ") == 2)
    told_to_end(job)
    assert set(saved(kept)) == {0, 1}
    until(lambda: not [item for worker in job.workers for item in alive(worker, "sleep")])


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


DROP = "add chain inet loss {0} {{ type filter hook {0} priority 0; policy drop; }}"


def succeeds(job: Job) -> None:
    """The job is let go, and ends well."""
    let_go(job)
    assert job.wait(PATIENCE) == 0
    assert "the program succeeded" in end_line(job.launcher.stderr())
    assert "lost" not in job.launcher.stderr()


def ssh_servers(pod: Pod) -> list[Process]:
    """OpenSSH's processes, or the embedded server's."""
    found = [item for item in pod.processes() if "sshd" in " ".join(item.args[:3])]
    return found or alive(pod, "python3")


def lose_packets(job: Job) -> None:
    """Every packet of the second worker is lost, in and out."""
    job.workers[1].network.run("nft", "add table inet loss")
    for hook in ("input", "output"):
        job.workers[1].network.run("nft", DROP.format(hook))


@pytest.mark.full
@OWN_SSH
def test_a_network_that_loses_all_for_90_s(cluster: Cluster, image: Image, own_ssh: str) -> None:
    """Kubernetes takes the records of a node away meanwhile that is NotReady."""
    chosen, details = with_own_ssh(own_ssh, image)
    job = held(cluster, chosen, **details)
    lose_packets(job)
    job.workers[1].unpublish()
    time.sleep(90)
    job.workers[1].network.run("nft", "delete table inet loss")
    succeeds(job)


@OWN_SSH
@pytest.mark.full
def test_an_sshd_that_is_stopped_for_a_minute(cluster: Cluster, image: Image, own_ssh: str) -> None:
    """As on a node under pressure."""
    chosen, details = with_own_ssh(own_ssh, image)
    job = held(cluster, chosen, **details)
    # Its own clock stands still, too: no keep-alive of its own ends the session.
    servers = ssh_servers(job.workers[1])
    kill(servers, signal.SIGSTOP)
    time.sleep(60)
    kill(servers, signal.SIGCONT)
    succeeds(job)


@ONE_IMAGE
def test_a_launcher_that_stands_still_while_names_vanish(cluster: Cluster, image: Image) -> None:
    job = held(cluster, image, env={"MPIBOOT_SSH_KEEPALIVE": "20"})
    for pod in job.pods:
        pod.unpublish()
    kill(python(job.launcher), signal.SIGSTOP)
    time.sleep(8)
    kill(python(job.launcher), signal.SIGCONT)
    succeeds(job)
