"""How jobs end, with a real MPI: exit code, cause and host, why, and what is left (nothing)."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.pods import images, jobs
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import NEW, OLD, RING
from tests.pods.manifest import Fields
from tests.pods.operator import Job, mpijob
from tests.pods.pod import Process
from tests.pods.volumes import Files
from tests.waiting import until

FULL = pytest.mark.full
SECOND = "pi-worker-1.pi.default.svc"
# What mpirun returns: 4.1, 5.0, None where mpirun refuses in its own way, and the sentence.
ENDS: list[tuple[str, int | None, int | None, str]] = [
    ("mpirun RING --exit 3", 3, 3, "exited with code 3"),
    ("mpirun RING --kill", 137, 137, f"{SECOND}: rank 1 was ended by SIGKILL"),
    ("mpirun RING", 0, 0, "the program succeeded"),
    ("mpirun RING --exit 255", 255, 255, "exited with code 255"),
    ("mpirun RING --exit 3 --no-finalize", 3, 3, "code 3"),
    ("mpirun RING --segv", 139, 139, f"{SECOND}: rank 1 was ended by SIGSEGV"),
    ("mpirun RING --abort 7", 7, 7, "code 7"),
    # Mistakes of its own user.
    ("mpirun -wdir /nowhere RING", 135, 181, "could not start the program on some host"),
    ("mpirun --timeout 3 RING --sleep 1000", 110, 241, "no rank is known to have failed"),
    ("mpirun --mca btl self,none9 RING", 1, 14, "MPI itself failed in MPI_Init"),
    ("mpirun --mca btl self,vader RING", 17, 17, "MPI itself failed in MPI_Allreduce"),
    ("mpirun sh -c 'sleep 1; exit $((OMPI_COMM_WORLD_RANK * 5))'", 5, 5, "exited with code 5"),
    # What the program has no part in.
    ("mpirun --map-by nonsense RING", None, None, "[mpirun] job ended: "),
    ("mpirun -np 9 RING", None, None, "no rank is known to have failed"),
    ("mpirun --mca pml nope RING", None, None, "failed in MPI_Init"),
]
# A rank that reads from one that is suddenly gone aborts, and 5.0 may hear of that first.
PEER = 14
SUDDEN = "--no-finalize|--kill|--segv"


def test_a_job_ends_as_its_program_or_mpirun_does(cluster: Cluster, image: Image) -> None:
    """One launch after another on the same workers, each with an end of its own."""
    ends = jobs.launches(cluster, image, [line for line, *_ in ENDS])
    for (line, old, new, sentence), (code, message) in zip(ENDS, ends, strict=True):
        assert "ACTIVATE" not in message
        assert f"exit {code}: " in jobs.end_line(message)
        # 4.1 returns 1 for the ranks that end with 0 and without MPI_Finalize.
        if re.search(SUDDEN, line) and (code == PEER or ("--no-f" in line and code == 1)):
            continue
        returned = new if "5.0" in image.name else old
        assert returned in (code, None), message[-3000:]
        assert sentence in jobs.end_line(message)
        assert message.count("noticed that process rank 1") <= 1


LACKING = {
    "mpirun /opt/only/here": "the program /opt/only/here does not exist",
    "mpirun here": "the program here is not on PATH",
    "mpirun '/opt/only/not here'": "the program /opt/only/not here does not exist",
}


def test_a_program_that_one_worker_lacks(cluster: Cluster, image: Image) -> None:
    """4.1 itself returns 132 for a path and 134 for a name, 5.0 183 and 66."""
    files = dict.fromkeys(("here", "not here"), "#!/bin/sh\nexit 0\n")
    there: dict[str, Any] = {
        "volumes": [Files("/opt/only", files, 0o755)],
        "env": {"PATH": f"/opt/only:{image.env['PATH']}"},
        "working_dir": "/opt/only",
    }
    ends = jobs.launches(cluster, image, [*LACKING], each_worker={0: there}, launcher=there)
    for message, (code, log) in zip(LACKING.values(), ends, strict=True):
        assert code == 127
        assert f"exit 127: {SECOND}: {message}" in jobs.end_line(log)
        assert f"/opt/only is not on {SECOND}, or" in log


def lost(job: Job) -> list[str]:
    """Assert that the job ended as the second worker was lost; the evidence in its message."""
    assert job.wait() == 69
    assert "exit 69" in jobs.end_line(job.log)
    first, hint, closer, *evidence = job.message.splitlines()
    assert first.startswith(f"host-lost: {SECOND}: ")
    assert "pi-worker-0" not in first
    assert hint.startswith("-> ")
    assert closer.startswith("-> look closer: kubectl ")
    assert " -n default pi-worker-1" in closer
    until(lambda: not jobs.left(job.workers), jobs.PROMISED)
    return evidence


@jobs.own_ssh("intel-mpi")
def test_a_killed_daemon_takes_its_rank_along(cluster: Cluster, image: Image, own: Fields) -> None:
    """Open MPI 5 by itself returns 0 and leaves the rank running."""
    job = jobs.running(cluster, image, worker=own)
    jobs.kill(jobs.alive(job.workers[1], *jobs.DAEMONS))
    lost(job)


@jobs.each(OLD, NEW, "mpich-4.0")
def test_an_agent_that_is_killed(cluster: Cluster, image: Image) -> None:
    """Mpirun kills its other agents then; 5.0 reports which host it has lost."""
    job = jobs.running(cluster, image)
    jobs.kill(jobs.agents(job.launcher, "pi-worker-1"))
    lost(job)
    assert "its launch agent was killed by SIGKILL" in job.message


@jobs.own_ssh("mpich-4.0", "intel-mpi")
def test_a_link_that_is_cut_for_good(cluster: Cluster, image: Image, own: Fields) -> None:
    """Nobody gets a FIN; the keep-alives of both sides find out."""
    job = jobs.running(cluster, image, env={"MPIBOOT_SSH_KEEPALIVE": "3"}, worker=own)
    job.workers[1].link_down(silent=True)
    until(lambda: not jobs.left(job.workers), 3 + jobs.PROMISED)
    lost(job)


@jobs.own_ssh("mpich-5.0")
def test_a_pod_that_is_gone(cluster: Cluster, image: Image, own: Fields) -> None:
    """Or whose container is not restarted."""
    job = jobs.running(cluster, image, worker=own)
    if own:
        job.workers[1].kill()
        lost(job)
        return
    job.workers[1].delete()
    outside = "kubectl describe pod -n default pi-worker-1; kubectl logs -n "
    gone = f"{SECOND}: its name no longer resolves: its container ended, or its pod is gone"
    assert lost(job) == [gone]
    assert outside in job.message
    assert gone in jobs.end_line(job.log)


MEMORY = 300 << 20
EATER = """#!/bin/sh
case $(hostname) in *worker-1) exec python3 -c 'x = bytearray(1 << 30)';; *) sleep 1000;; esac
"""


@jobs.own_ssh()
def test_a_rank_that_is_out_of_memory(cluster: Cluster, image: Image, own: Fields) -> None:
    eater = {"volumes": [Files("/opt/it", {"eat": EATER}, 0o755)]}
    worker = {**eater, "memory": MEMORY, **own}
    line = ["mpirun", "/opt/it/eat"]
    job = mpijob(cluster, image, launcher_args=line, worker=worker, launcher=eater).start()
    code, message = job.wait(), job.message.splitlines()
    killed = "out of memory: the kernel killed a process of this pod since"
    if code == 143:  # mpirun heard of the other one first
        assert "was ended by SIGTERM, from elsewhere or by mpirun" in message[0]
    else:
        assert code == 137
        assert message[0] == f"program: {SECOND}: rank 1 was ended by SIGKILL"
    assert message[1].startswith(f"{SECOND}: {killed}")
    assert "out of memory" in jobs.end_line(job.log)


@jobs.crossed("rank", [0, 1])
def test_a_killed_rank_beside_the_launcher(cluster: Cluster, image: Image, rank: int) -> None:
    """4.1's ranks there don't inherit the descriptor of mpirun's messages: theirs go to stderr."""
    args = ["mpirun", RING, "--rank", str(rank), "--segv"]
    job = mpijob(cluster, image, workers=1, as_worker=True, launcher_args=args).start()
    code = job.wait()
    if code == PEER:
        return
    assert code == 139
    assert f": rank {rank} was ended by " in job.log
    assert job.pods[rank].hostname in job.log.rpartition("job ended: ")[2]
    assert "egmentation fault" in job.log


def test_a_host_name_that_is_too_long_for_open_mpi_4(cluster: Cluster) -> None:
    name = "a-job-with-a-name-of-words-that-anyone-chose-at-length"
    job = jobs.ended(cluster, images.image(OLD), *jobs.FOREVER, code=134, name=name)
    message = f"{name}-launcher, {name}-worker-"
    assert f"warning: [host-names] {message}" in job.log
    assert "exit 134: mpirun itself was killed by SIGABRT" in jobs.end_line(job.log)
    assert message in job.message


@FULL
def test_a_program_of_another_mpi_is_told(cluster: Cluster) -> None:
    """Each rank is rank 0 of 1, and all end with 0."""
    programs = images.image("mpich-5.0").programs
    assert programs
    image = images.image(NEW).with_wheel("/other", "mpich==4.0.3")
    image = image.with_files({"/other/ring": (programs / "ring").read_bytes()}, 0o755)
    line = ["mpirun", "-x", "LD_LIBRARY_PATH=/other/lib", "/other/ring", "--sleep", "40"]
    job = jobs.ended(cluster, image, *line)
    message = "the ranks have loaded libmpi.so.12 (MPICH or Intel MPI), but this mpirun is that of"
    assert job.log.count(f"warning: [mpi-versions] {message}") == 1


@jobs.ONE_IMAGE
def test_workers_stay_after_a_failure_or_by_a_setting(cluster: Cluster, image: Image) -> None:
    """So do those without an operator: a StatefulSet would restart them forever."""
    others = {1: {"env": {"MPIBOOT_WORKER_EXIT": "never"}}, 2: {"env": {"K_MPI_JOB_ROLE": ""}}}
    job = jobs.ended(cluster, image, workers=3, each_worker=others)
    assert job.workers[0].wait() == 0
    assert [worker.running for worker in job.workers[1:]] == [True, True]
    ways = {1: {"env": {"MPIBOOT_WORKER_EXIT": "after-job", "MPIBOOT_LAUNCHER_AWAY": "1"}}}
    line = ("mpirun", RING, "--exit", "3")
    failed = jobs.ended(cluster, image, *line, code=3, each_worker=ways, name="failed")
    assert failed.workers[1].wait() == 0
    assert failed.workers[0].running
    assert not jobs.rank_processes(failed.workers[0])


def killed(job: Job, *processes: Process) -> None:
    if processes:
        jobs.kill(processes)
    else:
        job.launcher.kill()
    assert job.wait() == 137
    until(lambda: not jobs.left(job.workers), jobs.PROMISED)
    assert all(worker.running for worker in job.workers)


@FULL
def test_a_launcher_killed_while_daemons_are_launched(cluster: Cluster, image: Image) -> None:
    """One worker has its daemon, the other one's agent hangs."""
    job = jobs.slow_to_launch(cluster, image, 'case "$*" in *worker-1*) exec sleep 1000;; esac')
    until(lambda: jobs.left(job.workers[:1]))
    killed(job)


@jobs.crossed("server", ["openssh", "embedded", "tini"])
def test_a_killed_launcher_leaves_nothing(cluster: Cluster, image: Image, server: str) -> None:
    """Under tini it is not the first process."""
    if server == "tini":
        job = jobs.running(cluster, jobs.under_tini(image))
        killed(job, *jobs.python(job.launcher))
    else:
        killed(jobs.running(cluster, image, worker={"env": {"MPIBOOT_SSHD": server}}))


@FULL
@pytest.mark.parametrize(
    ("image", "server"), [(OLD, "embedded"), (NEW, "openssh")], indirect=["image"]
)
def test_a_launchers_lost_node_leaves_nothing(cluster: Cluster, image: Image, server: str) -> None:
    """No FIN ever comes: the worker's keep-alive detects it."""
    env = {"MPIBOOT_SSH_KEEPALIVE": "3"}
    job = jobs.running(cluster, image, worker={"env": {"MPIBOOT_SSHD": server}}, env=env)
    job.launcher.link_down(silent=True)
    killed(job)


@jobs.OLD_IMAGE
def test_a_killed_parent_in_a_script_takes_mpirun_along(cluster: Cluster, image: Image) -> None:
    """It is not PID 1 there, so no end of the container does it; the next launch begins at once."""
    script = 'mpiboot "$@" --sleep 1000 --ignore-term; echo next=$? >&2; mpiboot "$@"; '
    words = ["sh", "-c", f"{script} echo then=$? >&2; sleep 1000", "sh", "mpirun", RING]
    job = mpijob(cluster, image, launcher_command=words).start()
    jobs.launched(job)
    before = {item.host_pid for item in (*job.launcher.processes(), *jobs.left(job.workers))}
    before -= {item.host_pid for item in job.launcher.processes() if item.pid == 1}
    jobs.kill(jobs.python(job.launcher))
    job.launcher.logs("then=0\n")
    assert "next=137\n" in job.log
    job.launcher.logs("the launcher was killed")

    def now() -> set[int]:
        alive = [item for pod in job.pods for item in pod.processes() if item.state != "Z"]
        return {item.host_pid for item in alive}

    until(lambda: not before & now(), jobs.PROMISED)
