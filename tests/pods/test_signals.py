"""Signals to launchers and workers in each phase of a job; ranks may save; silent hosts."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.pods import jobs
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import NEW, OLD, RING
from tests.pods.manifest import Fields
from tests.pods.operator import Job, mpijob
from tests.pods.volumes import HostPath
from tests.waiting import until

FULL = pytest.mark.full
# The program's own: an MPI forwards them to its ranks.
PROGRAMS = [signal.SIGUSR1, signal.SIGUSR2]


def ended_by(job: Job, number: int) -> None:
    """The launcher reports the signal, blames no host, and leaves nothing on a worker."""
    assert job.wait() == 128 + number
    assert signal.Signals(number).name in jobs.end_line(job.log)
    assert job.message.startswith("signal: ")
    assert "pi-worker" not in job.message.splitlines()[0]
    until(lambda: not jobs.left(job.workers), jobs.PROMISED)


@jobs.NO_MPI
def test_signals_while_hosts_are_waited_for(cluster: Cluster, image: Image) -> None:
    """The program's own do not end the wait."""
    job = mpijob(cluster, image, workers=1).start(publish=False)
    job.launcher.logs("NXDOMAIN")
    for number in PROGRAMS:
        job.launcher.signal(number)
    job.launcher.logs("no program runs yet", len(PROGRAMS))
    job.launcher.signal(signal.SIGTERM)
    assert job.wait() == 143
    assert "SIGTERM" in job.message


@jobs.crossed("number", [signal.SIGINT, signal.SIGTERM], ["INT", "TERM"])
def test_a_signal_while_daemons_are_launched(cluster: Cluster, image: Image, number: int) -> None:
    """Open MPI 5 by itself ignores SIGTERM then; the program's own are for nobody yet."""
    job = jobs.slow_to_launch(cluster, image)
    job.launcher.signal(signal.SIGUSR1)
    job.launcher.logs("SIGUSR1 is not forwarded: no rank runs yet")
    job.launcher.signal(number)
    ended_by(job, number)


@jobs.crossed("number", [signal.SIGTERM, signal.SIGHUP], ["TERM", "HUP"])
def test_a_signal_while_the_job_runs(cluster: Cluster, image: Image, number: int) -> None:
    """The same twice in a row ends ranks that ignore it."""
    deaf = ("--ignore-term",) * (number == signal.SIGTERM)
    job = jobs.running(cluster, image, *jobs.FOREVER, *deaf)
    job.launcher.signal(number)
    if deaf:
        job.launcher.logs("got SIGTERM")
        job.launcher.signal(number)
    ended_by(job, number)
    assert all(worker.running for worker in job.workers)


@jobs.OLD_IMAGE
def test_a_user_signal_reaches_the_ranks(cluster: Cluster, image: Image) -> None:
    """It is the program's: its default action ends the ranks."""
    job = jobs.running(cluster, image)
    # In MPI_Init a rank's end by a signal may make mpirun 5.0 go on without it: another fault.
    until(lambda: job.output.count("rank ") == 2)
    job.launcher.signal(signal.SIGUSR1)
    assert job.wait() == 128 + signal.SIGUSR1
    assert "SIGUSR1" in jobs.end_line(job.log)


# An address without a pod answers nothing; connections that were there end as their pods do.
NO_NEW_LOGINS = """table inet gone { chain out { type filter hook output priority 0;
    tcp dport 22 tcp flags syn / syn,ack drop; }; }"""


@jobs.NO_MPI
def test_pods_that_are_gone_are_not_waited_for(cluster: Cluster, image: Image) -> None:
    """As after a suspend: logins that would signal the ranks get no answer."""
    job = jobs.running(cluster, image, workers=3, env={"MPIBOOT_GRACE": "600"})
    job.launcher.network.run("nft", "-f", "-", stdin=NO_NEW_LOGINS)
    for pod in (*job.workers, job.launcher):
        pod.signal(signal.SIGTERM)
    assert job.wait() == 143
    assert "in time" not in job.log


@jobs.own_ssh()
def test_what_an_earlier_launcher_left(cluster: Cluster, image: Image, own: Fields) -> None:
    """Its node is gone without a word: the new one waits until the workers have found out."""
    job = jobs.running(cluster, image, env={"MPIBOOT_SSH_KEEPALIVE": "6"}, worker=own)
    again = cluster.pod(replace(job.launcher.spec, name="pi-launcher-again")).start()
    before = {item.host_pid for item in jobs.left(job.workers)}
    assert before
    again.logs("in use by launcher pi-launcher (")
    job.launcher.link_down(silent=True)
    job.launcher.delete()
    again.logs("daemons started")
    assert not before & {item.host_pid for item in jobs.left(job.workers)}
    again.signal(signal.SIGTERM)
    assert again.wait() == 143
    until(lambda: not jobs.left(job.workers), jobs.PROMISED)


HYDRAS = [pytest.param(name, marks=FULL) for name in ("mpich-4.0", "intel-mpi")]
TERM = f"signal {signal.SIGTERM.value}, once"
# Longer than either MPI lets a rank live once it is signalled itself, or has seen one die.
SAVE = ("--save", "5")


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """What ranks save outlives their pods."""
    tmp_path.chmod(0o777)
    return tmp_path


def saving(
    cluster: Cluster, image: Image, kept: Path, *line: str, count: int = 4, **more: Any
) -> Job:
    """A job past MPI_Init: four ranks on two workers, or so many; variables are for all pods."""
    env = {"MPIBOOT_GRACE": "60", **{name: more.pop(name) for name in [*more] if name.isupper()}}
    pods = {"env": env, "volumes": [HostPath("/ckpt", kept, writable=True)]}
    line = (
        line if line[:1] in (("mpirun",), ("sh",)) else ("mpirun", RING, "--sleep", "1000", *line)
    )
    details = {"slots": count // 2, "launcher": pods, "worker": pods, **more}
    job = jobs.running(cluster, image, *line, **details)
    until(lambda: job.output.count("rank ") == count)
    return job


def saved(kept: Path) -> dict[int, str]:
    paths = kept.glob("saved-*")
    return {int(path.name.partition("-")[2]): path.read_text().strip() for path in paths}


def told_to_end(job: Job) -> None:
    job.launcher.signal(signal.SIGTERM)
    ended_by(job, signal.SIGTERM)


@pytest.mark.parametrize("image", [OLD, NEW, *HYDRAS], indirect=True)
def test_every_rank_saves_and_finishes(cluster: Cluster, image: Image, kept: Path) -> None:
    """MPI_Finalize needs mpirun, which is stopped, and continued for that."""
    job = saving(cluster, image, kept, *SAVE)
    told_to_end(job)
    assert saved(kept) == dict.fromkeys(range(4), TERM)
    assert "sent SIGTERM to 4 ranks; waiting up to 1m" in job.log
    assert "did not end in time" not in job.log


@pytest.mark.parametrize(
    ("image", "rank", "server"),
    [
        *((OLD, 1, "embedded"), (NEW, 3, "auto")),
        *(pytest.param(name, None, "auto", marks=FULL) for name in ("mpich-5.0", "intel-mpi")),
    ],
    indirect=["image"],
)
def test_a_drained_worker_lets_each_rank_of_the_job_save(
    cluster: Cluster, image: Image, kept: Path, rank: int | None, server: str
) -> None:
    """Its own ranks and those of other workers; with Open MPI all but one die at once."""
    alone = () if rank is None else ("--rank", str(rank), "--no-finalize")
    job = saving(cluster, image, kept, *SAVE, *alone, MPIBOOT_SSHD=server)
    job.workers[0].signal(signal.SIGTERM)
    assert job.wait() == 69
    assert saved(kept) == dict.fromkeys(range(4) if rank is None else [rank], TERM)
    assert job.workers[0].wait() == 0
    assert "pi-worker-0" in job.message.splitlines()[0]
    assert "its pod is being terminated" in job.message
    until(lambda: not jobs.left(job.workers), jobs.PROMISED)


@jobs.ONE_IMAGE
def test_a_suspended_job_saves_once(cluster: Cluster, image: Image, kept: Path) -> None:
    job = saving(cluster, image, kept, *SAVE, MPIBOOT_STOP_SIGNAL="USR1")
    for pod in job.workers:
        pod.signal(signal.SIGTERM)
    time.sleep(0.5)  # up to a second may lie between
    told_to_end(job)
    assert [worker.wait() for worker in job.workers] == [0, 0]
    assert saved(kept) == dict.fromkeys(range(4), f"signal {signal.SIGUSR1.value}, once")


@FULL
@pytest.mark.parametrize(("image", "beside"), [(OLD, True), (NEW, False)], indirect=["image"])
def test_other_ranks_save_too(cluster: Cluster, image: Image, kept: Path, *, beside: bool) -> None:
    """Those beside mpirun, and those of a script."""
    line = f"mpirun {RING} --sleep 1000 {' '.join(SAVE)}"
    words = line.split() if beside else ["sh", "-c", f"{line}; exit $?"]
    count = 2 + beside
    job = saving(cluster, image, kept, *words, count=count, slots=1, as_worker=beside)
    told_to_end(job)
    assert saved(kept) == dict.fromkeys(range(count), TERM)


@jobs.ONE_IMAGE
def test_a_rank_that_ignores_the_signal(cluster: Cluster, image: Image, kept: Path) -> None:
    job = saving(cluster, image, kept, "--ignore-term", MPIBOOT_GRACE="12")
    told_to_end(job)
    assert "4 ranks did not end in time: mpirun ends what is left" in job.log


@FULL
def test_what_ranks_have_forked_ends_with_them(cluster: Cluster, image: Image, kept: Path) -> None:
    """Each in a session of its own and deaf to SIGTERM, as a program's helpers may be."""
    helper = '(trap \'\' TERM; exec setsid sleep 1000) & exec "$0" "$@"'
    line = ("mpirun", "sh", "-c", helper, RING, "--sleep", "1000", *SAVE)
    job = saving(cluster, image, kept, *line, count=2, MPIBOOT_GRACE="12")
    told_to_end(job)
    assert set(saved(kept)) == {0, 1}
    until(lambda: not [item for worker in job.workers for item in jobs.alive(worker, "sleep")])


DROP = "add chain inet loss {0} {{ type filter hook {0} priority 0; policy drop; }}"


def succeeds(job: Job) -> None:
    jobs.let_go(job)
    assert job.wait() == 0
    assert "the program succeeded" in jobs.end_line(job.log)
    assert "lost" not in job.log


@FULL
@jobs.own_ssh()
def test_a_network_that_loses_all_for_90_s(cluster: Cluster, image: Image, own: Fields) -> None:
    """Kubernetes takes the records of a node away meanwhile that is NotReady."""
    job = jobs.held(cluster, image, worker=own)
    network = job.workers[1].network
    for rule in ("add table inet loss", DROP.format("input"), DROP.format("output")):
        network.run("nft", rule)
    job.workers[1].unpublish()
    time.sleep(90)
    network.run("nft", "delete table inet loss")
    succeeds(job)


@jobs.ONE_IMAGE
def test_a_launcher_that_stands_still_while_names_vanish(cluster: Cluster, image: Image) -> None:
    job = jobs.held(cluster, image, env={"MPIBOOT_SSH_KEEPALIVE": "20"})
    for pod in job.pods:
        pod.unpublish()
    jobs.kill(jobs.python(job.launcher), signal.SIGSTOP)
    time.sleep(8)
    jobs.kill(jobs.python(job.launcher), signal.SIGCONT)
    succeeds(job)
