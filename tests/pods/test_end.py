"""How jobs end, with a real MPI: exit code, cause and host, why, and what is left (nothing)."""

from __future__ import annotations

import json
import re
import signal
from typing import Any

import pytest

from tests.pods import images, jobs
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import NEW, OLD, PATIENCE, RING
from tests.pods.operator import Job, mpijob
from tests.pods.volumes import Files
from tests.waiting import until

FULL = pytest.mark.full
SECOND = "pi-worker-1.pi.default.svc"
ENDS = [
    ("mpirun RING --exit 3", 3, "exited with code 3"),
    ("mpirun RING --kill", 137, f"{SECOND}: rank 1 was ended by SIGKILL"),
    ("mpirun RING", 0, "the program succeeded"),
]
MORE = [
    ("mpirun RING --exit 3 --no-finalize", 3, "code "),
    ("mpirun RING --exit 255", 255, "exited with code 255"),
    ("mpirun RING --exit 255 --no-finalize", 255, "code "),
    ("mpirun RING --segv", 139, f"{SECOND}: rank 1 was ended by SIGSEGV"),
    ("mpirun RING --abort 7", 7, "code 7"),
]
# A rank that reads from one that is suddenly gone aborts, and 5.0 may hear of that first.
PEER = 14
SUDDEN = "--no-finalize|--kill|--segv"


@pytest.mark.parametrize("rows", [ENDS, pytest.param(MORE, marks=FULL)], ids=["some", "more"])
def test_what_the_program_ends_with_is_what_the_job_ends_with(
    cluster: Cluster, image: Image, rows: list[tuple[str, int, str]]
) -> None:
    """One launch after another on the same workers, each with an end of its own."""
    ends = jobs.launches(cluster, image, [line for line, _, _ in rows])
    for (line, code, sentence), (got, message) in zip(rows, ends, strict=True):
        assert "ACTIVATE" not in message
        assert "\0" not in message
        line_of_end = jobs.end_line(message).partition(f"exit {got}: ")[2]
        if got == PEER and re.search(SUDDEN, line):
            assert "code 14" in line_of_end or "returned 14" in line_of_end
            continue
        # 4.1 returns 1 for the ranks that end with 0 and without MPI_Finalize.
        assert got in ({code, 1} if "--no-finalize" in line else {code})
        assert (f"{sentence}{got}" if sentence.endswith("code ") else sentence) in line_of_end


# What mpirun returns for mistakes of its own user: 4.1, 5.0 and the sentence.
MPIRUNS: list[tuple[str, int | None, int | None, str]] = [
    ("mpirun -wdir /nowhere RING", 135, 181, "some host lacks the working directory"),
    ("mpirun --timeout 3 RING --sleep 1000", 110, 241, "did not end within mpirun's own time li"),
    ("mpirun --mca btl self,none9 RING", 1, 14, "MPI itself failed in MPI_Init"),
    ("mpirun --mca btl self,vader RING", 17, 17, "MPI itself failed in MPI_Allreduce"),
    ("mpirun sh -c 'sleep 1; exit $((OMPI_COMM_WORLD_RANK * 5))'", 5, 5, "exited with code 5"),
    ("mpirun RING --no-finalize", 1, 1, "code 1"),
    # What the program has no part in.
    ("mpirun --map-by nonsense RING", None, None, "[mpirun] job ended: "),
    ("mpirun -np 9 RING", None, None, "no rank is known to have failed"),
    ("mpirun --mca pml nope RING", None, None, "failed in MPI_Init before the program"),
]


@jobs.ONE_IMAGE
def test_a_job_ends_with_what_mpirun_ends_with(cluster: Cluster, image: Image) -> None:
    ends = jobs.launches(cluster, image, [line for line, *_ in MPIRUNS])
    for (line, old, new, sentence), (code, message) in zip(MPIRUNS, ends, strict=True):
        if code == PEER and re.search(SUDDEN, line):
            continue
        returned = new if "5.0" in image.name else old
        assert returned in (code, None)
        assert f"exit {code}: " in jobs.end_line(message)
        assert sentence in jobs.end_line(message)
        assert returned is not None or "mpiboot had set OMPI_" in message


# Ends one rank by a signal, and its peers don't mind. Not at once: where a rank that is no MPI
# program ends within milliseconds on its own host, Open MPI 5.0 may wait for ever.
DIES = """#!/bin/sh
sleep 1
case $(hostname) in *worker-1) kill -s $1 $$;; esac
sleep 1000
"""


def program(name: str, text: str, **fields: Any) -> dict[str, Any]:
    """Fields of a pod that has a program at /opt/it."""
    return {"volumes": [Files("/opt/it", {name: text}, 0o755)], **fields}


def test_each_end_in_words_and_as_fields(cluster: Cluster, image: Image) -> None:
    """Rank, host and signal are named, mpirun's own words stay, and nothing else is added."""
    names = ("KILL", "SEGV", "PIPE")
    lines = [f"mpirun /opt/it/dies {name}" for name in names]
    lines += ["mpirun RING --exit 4", "mpirun RING"]
    dies, env = program("dies", DIES), {"MPIBOOT_LOG_FORMAT": "json"}
    ends = jobs.launches(cluster, image, lines, env=env, worker=dies, launcher=dies)
    events = []
    for _, message in ends:
        found = [line for line in message.splitlines() if '"event": "ended"' in line]
        events.append(json.loads(found[-1]))
        assert "out of memory" not in message
        assert "ACTIVAT" not in message
    for name, (code, message), event in zip(names, ends, events, strict=False):
        number = signal.Signals[f"SIG{name}"]
        if code == 143:  # seen on busy machines: mpirun tells of the other rank
            assert "by mpirun after another rank's end" in event["cause"]
            continue
        assert code == event["exit"] == 128 + number
        assert (event["rank"], event["signal"], event["host"]) == (1, number.name, SECOND)
        assert event["cause"] == f"rank 1 was ended by {number.name}"
        assert f"exit {code}: {SECOND}: rank 1 was ended by {number.name}" in event["message"]
        assert message.count("noticed that process rank 1") == 1
    failed, good = events[-2:]
    assert [(event["hosts"], event["ranks"]) for event in (failed, good)] == [(2, 2)] * 2
    assert (failed["exit"], failed["rank"], failed["signal"]) == (4, 1, "")
    assert failed["cause"] == "rank 1 exited with code 4 (first failure)"
    assert failed["seconds"] > 0
    assert (good["exit"], good["rank"], good["reference"]) == (0, None, "")
    assert (good["host"], good["signal"]) == ("", "")
    assert good["message"].endswith("2 hosts, 2 ranks, exit 0: the program succeeded")


LACKING = {
    "path": ("/opt/only/here", "the program /opt/only/here does not exist"),
    "name": ("here", "the program here is not on PATH"),
    "blank": ("'/opt/only/not here'", "the program /opt/only/not here does not exist"),
}


@jobs.crossed("row", list(LACKING))
def test_a_program_that_one_worker_lacks(cluster: Cluster, image: Image, row: str) -> None:
    """4.1 itself returns 132 for a path and 134 for a name, 5.0 183 and 66."""
    words, message = LACKING[row]
    files = dict.fromkeys(("here", "not here"), "#!/bin/sh\nexit 0\n")
    there: dict[str, Any] = {"volumes": [Files("/opt/only", files, 0o755)]}
    if row == "name":
        there["env"] = {"PATH": f"/opt/only:{image.env['PATH']}"}
    script = ["sh", "-c", f"cd /opt/only; exec mpiboot mpirun {words}"]
    details = {"launcher_command": script, "each_worker": {0: there}, "launcher": there}
    job = jobs.ended(cluster, image, code=127, **details)
    assert job.message.startswith(f"program-missing: {SECOND}: {message}")
    assert "exit 127: pi-worker-1" in jobs.end_line(job.log)
    where = f"/opt/only, where ranks are to start, is not on {SECOND}, or"
    assert where in job.message
    assert where in job.log


# --- hosts that are lost ---


def lost(job: Job) -> list[str]:
    """Assert that the job ended as the second worker was lost; the evidence in its message."""
    assert job.wait() == 69
    assert "exit 69" in jobs.end_line(job.log)
    assert "\0" not in job.log
    first, hint, closer, *evidence = job.message.splitlines()
    assert first.startswith(f"host-lost: {SECOND}: ")
    assert "pi-worker-0" not in first
    assert hint.startswith("-> ")
    assert closer.startswith("-> look closer: kubectl ")
    assert " -n default pi-worker-1" in closer
    until(lambda: not jobs.left(job.workers), jobs.PROMISED)
    return evidence


@jobs.own_ssh("intel-mpi")
def test_a_killed_daemon_takes_its_rank_along(cluster: Cluster, image: Image, own: str) -> None:
    """Open MPI 5 by itself returns 0 and leaves the rank running."""
    chosen, details = jobs.with_own_ssh(own, image)
    job = jobs.running(cluster, chosen, **details)
    jobs.kill(jobs.alive(job.workers[1], *jobs.DAEMONS))
    lost(job)


@jobs.each(OLD, NEW, "mpich-4.0", "mpich-5.0")
def test_an_agent_that_is_killed(cluster: Cluster, image: Image) -> None:
    job = jobs.running(cluster, image)
    jobs.kill(jobs.agents(job.launcher, "pi-worker-1"))
    # mpirun kills its other agents then; 5.0 reports which host it has lost.
    lost(job)
    assert "its launch agent was killed by SIGKILL" in job.message


@jobs.own_ssh("mpich-4.0", "intel-mpi")
def test_a_link_that_is_cut_for_good(cluster: Cluster, image: Image, own: str) -> None:
    """Nobody gets a FIN; the keep-alives of both sides find out."""
    chosen, details = jobs.with_own_ssh(own, image)
    job = jobs.running(cluster, chosen, env={"MPIBOOT_SSH_KEEPALIVE": "3"}, **details)
    job.workers[1].link_down(silent=True)
    until(lambda: not jobs.left(job.workers), 3 + jobs.PROMISED)
    lost(job)


@jobs.own_ssh("mpich-5.0")
def test_a_pod_that_is_gone(cluster: Cluster, image: Image, own: str) -> None:
    """Or whose container is not restarted."""
    chosen, details = jobs.with_own_ssh(own, image)
    job = jobs.running(cluster, chosen, **details)
    if own == "server":
        job.workers[1].kill()
        lost(job)
        return
    job.workers[1].delete()
    outside = "kubectl describe pod -n default pi-worker-1; kubectl logs -n "
    gone = f"{SECOND}: its name no longer resolves: its container ended, or its pod is gone"
    assert lost(job) == [gone]
    assert outside in job.message
    assert gone in jobs.end_line(job.log)


SSH = 'exec ssh -o StrictHostKeyChecking=no -o BatchMode=yes "$@"'
BAD_AGENTS = {
    "hangs": ("exec sleep 1000", "launch-timeout: ", ("pi-worker-0", "pi-worker-1")),
    # As an ssh that can't log in: Open MPI itself returns its 255.
    "fails for one host": (
        f'case "$*" in *worker-1*) exit 255;; esac; {SSH}',
        "workers-unreachable: pi-worker-1",
        (),
    ),
    # It ends well and has started nothing.
    "lies": ("exit 0", "launch-timeout: ", ("ended with 0",)),
}


@FULL
@pytest.mark.parametrize(("script", "start", "words"), BAD_AGENTS.values(), ids=BAD_AGENTS)
def test_an_agent_of_the_users_own_that_starts_no_daemon(
    cluster: Cluster, image: Image, script: str, start: str, words: tuple[str, ...]
) -> None:
    agent = Files("/opt/agent", {"agent": f"#!/bin/sh\n{script}\n"}, 0o755)
    env = {jobs.agent_variable(image): "/opt/agent/agent", "MPIBOOT_LAUNCH_TIMEOUT": "3"}
    job = jobs.ended(
        cluster, image, *jobs.FOREVER, code=69, launcher={"volumes": [agent], "env": env}
    )
    assert job.message.startswith(start)
    assert [word for word in words if word not in job.message] == []
    until(lambda: not jobs.left(job.workers), jobs.PROMISED)


@jobs.OLD_IMAGE
@FULL
def test_a_rank_is_left_nowhere_when_another_one_fails(cluster: Cluster, image: Image) -> None:
    job = jobs.running(cluster, image)
    jobs.kill(jobs.rank_processes(job.workers[0]))
    # prterun 5.0.7 on a busy node may report the end of that rank and then hang.
    hangs = "and mpirun goes on without it"
    until(lambda: not job.launcher.running or hangs in job.log, PATIENCE)
    if job.launcher.running:
        job.launcher.signal(signal.SIGTERM)
    assert job.wait() in (137, 143, PEER)
    until(lambda: not jobs.left(job.workers), jobs.PROMISED)


# --- why ---

MEMORY = 300 << 20
EATER = """#!/bin/sh
case $(hostname) in *HOST) exec python3 -c 'x = bytearray(1 << 30)';; *) sleep 1000;; esac
"""


@jobs.own_ssh()
def test_a_rank_that_is_out_of_memory(cluster: Cluster, image: Image, own: str) -> None:
    chosen, details = jobs.with_own_ssh(own, image)
    eater = program("eat", EATER.replace("HOST", "worker-1"))
    worker = {**eater, "memory": MEMORY, **details.get("worker", {})}
    line = ["mpirun", "/opt/it/eat"]
    job = mpijob(cluster, chosen, launcher_args=line, worker=worker, launcher=eater).start()
    code, message = job.wait(), job.message.splitlines()
    killed = "out of memory: the kernel killed a process of this pod (limit 300 MiB"
    if code == 143:  # mpirun heard of the other one first
        assert "was ended by SIGTERM, from elsewhere or by mpirun" in message[0]
    else:
        assert code == 137
        assert message[0] == f"program: {SECOND}: rank 1 was ended by SIGKILL"
    assert message[1].startswith(f"{SECOND}: {killed}")
    assert "out of memory" in jobs.end_line(job.log)


@FULL
def test_a_rank_beside_mpirun_that_is_out_of_memory(cluster: Cluster, image: Image) -> None:
    eat = program("eat", EATER.replace("HOST", "launcher"))
    details = {"as_worker": True, "worker": eat, "launcher": {**eat, "memory": MEMORY}}
    job = jobs.ended(cluster, image, "mpirun", "/opt/it/eat", code=137, workers=1, **details)
    killed = "pi-launcher: out of memory: the kernel killed a process of this pod (limit 300"
    assert killed in job.message
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


@FULL
@jobs.each("openmpi-5.0", "mpich-4.0")
def test_a_time_limit_of_mpirun_is_named(cluster: Cluster, image: Image) -> None:
    env = {"MPIEXEC_TIMEOUT": "6"}
    job = mpijob(cluster, image, launcher_args=list(jobs.FOREVER), launcher={"env": env}).start()
    assert job.wait() in (241, 255)
    assert "limit (MPIEXEC_TIMEOUT=6, set in the launcher's environment)\n" in job.message


# With that directory as mpirun's own, and on the line: whether ranks run, at home.
AT_HOME = {
    **dict.fromkeys(images.NAMES, (True, False)),
    "mpich-4.0": (False, False),
    "intel-mpi": (True, True),
}


@FULL
@pytest.mark.parametrize("image", AT_HOME, indirect=True)
def test_the_directory_that_only_the_launcher_has(cluster: Cluster, image: Image) -> None:
    script = "mkdir /only; cd /only; mpiboot mpirun pwd; echo next=$? >&2; "
    script += "mpiboot mpirun -wdir /only pwd; echo next=$? >&2"
    worker = {"env": {"MPIBOOT_WORKER_EXIT": "never"}}
    job = jobs.ended(cluster, image, launcher_command=["sh", "-c", script], worker=worker)
    both = "pi-worker-0.pi.default.svc, pi-worker-1.pi.defa"
    where = f"warning: [working-directory] /only, where ranks are to start, is not on {both}"
    warnings = job.log.split(where)[1:]
    at_home = tuple(": they start in the home directory there" in text for text in warnings)
    codes = re.findall(r"^next=(\d+)", job.log, flags=re.MULTILINE)
    assert at_home == tuple(code == "0" for code in codes) == AT_HOME[image.name]
    assert job.output.count("/root\n") == 2 * at_home.count(True)


def test_a_host_name_that_is_too_long_for_open_mpi_4(cluster: Cluster) -> None:
    name = "a-job-with-a-name-of-words-that-anyone-chose-at-length"
    job = jobs.ended(cluster, images.image(OLD), *jobs.FOREVER, code=134, name=name)
    message = f"{name}-launcher, {name}-worker-"
    assert f"warning: [host-names] {message}" in job.log
    assert "[host-names] job ended: " in jobs.end_line(job.log)
    assert f"exit 134: mpirun itself was killed by SIGABRT: {message}" in jobs.end_line(job.log)
    assert "mpiboot had set" not in job.message


@FULL
@pytest.mark.parametrize(
    ("seconds", "told"), [("0", "/other/ring is linked with"), ("40", "the ranks have loaded")]
)
def test_a_program_of_another_mpi_is_told(cluster: Cluster, seconds: str, told: str) -> None:
    """Each rank is rank 0 of 1, and all end with 0: a shorter one is looked at when it has."""
    programs = images.image("mpich-5.0").programs
    assert programs
    image = images.image(NEW).with_wheel("/other", "mpich==4.0.3")
    image = image.with_files({"/other/ring": (programs / "ring").read_bytes()}, 0o755)
    line = ["mpirun", "-x", "LD_LIBRARY_PATH=/other/lib", "/other/ring", "--sleep", seconds]
    job = jobs.ended(cluster, image, *line)
    message = f"{told} libmpi.so.12 (MPICH or Intel MPI), but this mpirun is that of Open MPI: "
    assert job.log.count(f"warning: [mpi-versions] {message}") == 1


@FULL
@pytest.mark.parametrize("supervise", ["on", "off"])
def test_ranks_add_a_host_as_with_plain_mpirun(cluster: Cluster, supervise: str) -> None:
    """Which ends with 1, as 4.1 has no slot there."""
    job = mpijob(
        cluster,
        images.image(OLD),
        hostfile="pi-worker-0.pi.default.svc slots=1\n",
        launcher_args=["mpirun", "/opt/programs/uneven", "add", SECOND],
        launcher={"env": {"MPIBOOT_SUPERVISE": supervise}},
    ).start()
    job.workers[1].publish()
    assert job.wait() == 1
    assert "MPI_Comm_spawn" in job.log
    assert "255" not in job.log


# --- what stays after the end ---


@jobs.ONE_IMAGE
def test_a_failed_launcher_is_kept_for_a_look_inside(cluster: Cluster, image: Image) -> None:
    args, env = ["mpirun", RING, "--exit", "3"], {"MPIBOOT_HOLD_ON_FAILURE": "1000"}
    job = mpijob(cluster, image, workers=1, launcher_args=args, env=env).start()
    job.launcher.logs("keeping the pod for 16m40s")
    assert job.launcher.running
    assert "3" in job.message
    job.launcher.signal(signal.SIGTERM)
    assert job.wait() == 3


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


# --- launchers that are killed, in each phase of a job: no process is left in any pod ---


def killed(job: Job) -> None:
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


@jobs.crossed("server", ["openssh", "embedded"])
def test_a_killed_launcher_leaves_nothing(cluster: Cluster, image: Image, server: str) -> None:
    killed(jobs.running(cluster, image, worker={"env": {"MPIBOOT_SSHD": server}}))


@FULL
@jobs.crossed("server", ["embedded", "openssh"])
def test_a_launchers_vanished_node_leaves_nothing(
    cluster: Cluster, image: Image, server: str
) -> None:
    """No FIN ever comes: the worker's keep-alive detects it."""
    env = {"MPIBOOT_SSH_KEEPALIVE": "3"}
    job = jobs.running(cluster, image, worker={"env": {"MPIBOOT_SSHD": server}}, env=env)
    job.launcher.link_down(silent=True)
    killed(job)


@FULL
def test_a_script_goes_on_after_a_launcher_that_was_killed(cluster: Cluster, image: Image) -> None:
    """Its next launch begins while the first one's processes are still being ended."""
    script = 'mpiboot "$@" --sleep 1000 --ignore-term; mpiboot "$@"; echo next=$? >&2; sleep 1000'
    words = ["sh", "-c", script, "sh", "mpirun", RING]
    job = mpijob(cluster, image, launcher_command=words).start()
    jobs.launched(job)
    before = {item.host_pid for item in jobs.left(job.workers)}
    jobs.kill(jobs.python(job.launcher))
    job.launcher.logs("next=")
    assert "next=0\n" in job.log
    until(lambda: not before & {item.host_pid for item in jobs.left(job.workers)}, jobs.PROMISED)
    job.launcher.logs("the launcher was killed")


@jobs.OLD_IMAGE
def test_a_killed_parent_in_a_script_takes_mpirun_along(cluster: Cluster, image: Image) -> None:
    """It is not PID 1 there, so no end of the container does it."""
    script = 'mpiboot launcher -- "$@"; echo next=$? >&2; exec sleep 1000'
    job = mpijob(cluster, image, launcher_command=["sh", "-c", script, "sh", *jobs.FOREVER]).start()
    jobs.launched(job)
    jobs.kill(jobs.python(job.launcher))
    job.launcher.logs("next=137")
    until(lambda: not jobs.left(job.workers), jobs.PROMISED)
    job.launcher.logs("the launcher was killed")
    names = [" ".join(item.args) for item in job.launcher.processes() if item.state != "Z"]
    assert not [name for name in names if "mpirun" in name or "libexec/agent" in name]


@jobs.ONE_IMAGE
def test_each_agent_is_a_shell_that_waits(cluster: Cluster, image: Image) -> None:
    """With no process below it, also where output goes to a file, as in a script."""
    script = f"(echo first; mpiboot mpirun {RING} --sleep 1000) > /tmp/log 2> /tmp/errors"
    job = mpijob(cluster, image, launcher_command=["sh", "-c", script]).start()
    until(lambda: job.launcher.shell("cat /tmp/log || :").count("rank ") == 2)
    words = [word for item in job.launcher.processes() for word in item.args]
    assert sum(word.endswith("libexec/agent") for word in words) == len(job.workers)
    assert not [word for word in words if word.rpartition("/")[2] == "ssh"]
    assert job.launcher.shell("cat /tmp/log").startswith("first\n")
