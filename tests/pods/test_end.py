"""How jobs end: the exit code and the sentence for what really happened, with a real MPI."""

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
    DAEMONS,
    FOREVER,
    NEW,
    OLD,
    OLD_IMAGE,
    ONE_IMAGE,
    OWN_SSH,
    PATIENCE,
    PROMISED,
    RING,
    agent_variable,
    agents,
    alive,
    crossed,
    end_line,
    ended,
    kill,
    launched,
    launches,
    left,
    python,
    rank_processes,
    running,
    slow_to_launch,
    with_own_ssh,
)
from tests.pods.operator import Job, mpijob
from tests.pods.volumes import Files
from tests.waiting import until

ENDS = [
    (["mpirun", RING, "--exit", "3"], 3, "exited with code 3"),
    (["mpirun", RING, "--kill"], 137, "pi-worker-1.pi.default.svc: rank 1 was ended by SIGKILL"),
    (["mpirun", RING], 0, "the program succeeded"),
]
# A rank that reads from one that is suddenly gone aborts, and 5.0 may hear of that first.
PEER = 14
SUDDEN = {"--no-finalize", "--kill", "--segv"}
MORE = [
    (["mpirun", RING, "--exit", "3", "--no-finalize"], 3, "code "),
    (["mpirun", RING, "--exit", "255"], 255, "exited with code 255"),
    (["mpirun", RING, "--exit", "255", "--no-finalize"], 255, "code "),
    (["mpirun", RING, "--segv"], 139, "pi-worker-1.pi.default.svc: rank 1 was ended by SIGSEGV"),
    (["mpirun", RING, "--abort", "7"], 7, "code 7"),
    (["mpirun", RING], 0, "the program succeeded"),
]


@pytest.mark.parametrize(
    "rows", [ENDS, pytest.param(MORE, marks=pytest.mark.full)], ids=["some", "more"]
)
def test_what_the_program_ends_with_is_what_the_job_ends_with(
    cluster: Cluster, image: Image, rows: list[tuple[list[str], int, str]]
) -> None:
    """One launch after another on the same workers, each with an end of its own."""
    ends = launches(cluster, image, [line for line, _, _ in rows])
    for (line, code, sentence), (got, message) in zip(rows, ends, strict=True):
        assert "ACTIVATE" not in message
        assert "\0" not in message
        line_of_end = end_line(message).partition(f"exit {got}: ")[2]
        if got == PEER and SUDDEN.intersection(line):
            assert "code 14" in line_of_end or "returned 14" in line_of_end
            continue
        # 4.1 returns 1 for the ranks that end with 0 and without MPI_Finalize.
        assert got in ({code, 1} if "--no-finalize" in line else {code})
        assert (f"{sentence}{got}" if sentence.endswith("code ") else sentence) in line_of_end


# What mpirun returns for mistakes of its own user: 4.1, 5.0 and the sentence.
MPIRUNS: list[tuple[list[str], int | None, int | None, str]] = [
    (["mpirun", "-wdir", "/nowhere", RING], 135, 181, "some host lacks the working directory"),
    (
        ["mpirun", "--timeout", "3", *FOREVER[1:]],
        110,
        241,
        "did not end within mpirun's own time limit",
    ),
    (["mpirun", "--mca", "btl", "self,none9", RING], 1, 14, "MPI itself failed in MPI_Init"),
    (["mpirun", "--mca", "btl", "self,vader", RING], 17, 17, "MPI itself failed in MPI_Allreduce"),
    (
        ["mpirun", "sh", "-c", "sleep 1; exit $((OMPI_COMM_WORLD_RANK * 5))"],
        5,
        5,
        "exited with code 5",
    ),
    (["mpirun", RING, "--no-finalize"], 1, 1, "code 1"),
    # What the program has no part in.
    (["mpirun", "--map-by", "nonsense", RING], None, None, "[mpirun] job ended: "),
    (["mpirun", "-np", "9", RING], None, None, "no rank is known to have failed"),
    (["mpirun", "--mca", "pml", "nope", RING], None, None, "failed in MPI_Init before the program"),
]


@ONE_IMAGE
def test_a_job_ends_with_what_mpirun_ends_with(cluster: Cluster, image: Image) -> None:
    ends = launches(cluster, image, [line for line, *_ in MPIRUNS])
    for (line, old, new, sentence), (code, message) in zip(MPIRUNS, ends, strict=True):
        if code == PEER and SUDDEN.intersection(line):
            continue
        returned = new if "5.0" in image.name else old
        assert returned in (code, None)
        assert f"exit {code}: " in end_line(message)
        assert sentence in end_line(message)
        assert returned is not None or "mpiboot had set OMPI_" in message


LACKING = {
    "path": ("/opt/only/here", "the program /opt/only/here does not exist"),
    "name": ("here", "the program here is not on PATH"),
    "blank": ("'/opt/only/not here'", "the program /opt/only/not here does not exist"),
}


@pytest.mark.parametrize(
    ("image", "row"),
    [
        pytest.param(image, row, marks=() if (image, row) == (NEW, "path") else pytest.mark.full)
        for row in LACKING
        for image in (images.NAMES if row in ("path", "name") else [NEW])
    ],
    indirect=["image"],
)
def test_a_program_that_one_worker_lacks(cluster: Cluster, image: Image, row: str) -> None:
    """4.1 itself returns 132 for a path and 134 for a name, 5.0 183 and 66."""
    program, message = LACKING[row]

    files = dict.fromkeys(("here", "not here"), "#!/bin/sh\nexit 0\n")
    there: dict[str, Any] = {"volumes": [Files("/opt/only", files, 0o755)]}
    if row == "name":
        there["env"] = {"PATH": f"/opt/only:{image.env['PATH']}"}
    job = ended(
        cluster,
        image,
        code=127,
        launcher_command=["sh", "-c", f"cd /opt/only; exec mpiboot mpirun {program}"],
        each_worker={0: there},
        launcher=there,
    )
    line_of_end = job.launcher.termination_log()
    assert line_of_end.startswith(f"program-missing: pi-worker-1.pi.default.svc: {message}")
    assert "exit 127: pi-worker-1" in end_line(job.launcher.stderr())
    where = "/opt/only, where ranks are to start, is not on pi-worker-1.pi.default.svc, or"
    assert where in line_of_end
    assert where in job.launcher.stderr()


def lost(job: Job, host: int = 1) -> None:
    """Assert that the job ended as that worker was lost, in its message and its log."""
    assert job.wait(PATIENCE) == 69
    message = job.launcher.termination_log()
    assert message.startswith("host-lost: ")
    assert f"pi-worker-{host}" in message.splitlines()[0]
    assert f"pi-worker-{1 - host}" not in message.splitlines()[0]
    assert "exit 69" in end_line(job.launcher.stderr())
    assert "\0" not in job.launcher.stderr()
    until(lambda: not left(job.workers), PROMISED)


@OWN_SSH
def test_a_killed_daemon_takes_its_rank_along(cluster: Cluster, image: Image, own_ssh: str) -> None:
    """Open MPI 5 by itself returns 0 and leaves the rank running."""
    chosen, details = with_own_ssh(own_ssh, image)
    job = running(cluster, chosen, **details)
    kill(alive(job.workers[1], *DAEMONS))
    lost(job)


@OLD_IMAGE
def test_an_agent_that_is_killed(cluster: Cluster, image: Image) -> None:
    job = running(cluster, image)
    kill(agents(job.launcher, "pi-worker-1"))
    # mpirun kills its other agents then; 5.0 reports which host it has lost.
    lost(job)
    assert "its launch agent was killed by SIGKILL" in job.launcher.termination_log()


@OWN_SSH
def test_a_link_that_is_cut_for_good(cluster: Cluster, image: Image, own_ssh: str) -> None:
    """Nobody gets a FIN; the keep-alives of both sides find out."""
    chosen, details = with_own_ssh(own_ssh, image)
    job = running(cluster, chosen, env={"MPIBOOT_SSH_KEEPALIVE": "3"}, **details)
    job.workers[1].link_down(silent=True)
    until(lambda: not left(job.workers), 3 + PROMISED)
    lost(job)


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


@pytest.mark.full
@pytest.mark.parametrize(("script", "start", "words"), BAD_AGENTS.values(), ids=BAD_AGENTS)
def test_an_agent_of_the_users_own_that_starts_no_daemon(
    cluster: Cluster, image: Image, script: str, start: str, words: tuple[str, ...]
) -> None:
    agent = Files("/opt/agent", {"agent": f"#!/bin/sh\n{script}\n"}, 0o755)
    env = {agent_variable(image): "/opt/agent/agent", "MPIBOOT_LAUNCH_TIMEOUT": "3"}
    launcher = {"volumes": [agent], "env": env}
    job = ended(cluster, image, *FOREVER, code=69, launcher=launcher)
    message = job.launcher.termination_log()
    assert message.startswith(start)
    assert [word for word in words if word not in message] == []
    until(lambda: not left(job.workers), PROMISED)


@OLD_IMAGE
@pytest.mark.full
def test_a_rank_is_left_nowhere_when_another_one_fails(cluster: Cluster, image: Image) -> None:
    job = running(cluster, image)
    kill(rank_processes(job.workers[0]))
    # prterun 5.0.7 on a busy node may report the end of that rank and then hang.
    hangs = "and mpirun goes on without it"
    until(lambda: not job.launcher.running or hangs in job.launcher.stderr(), PATIENCE)
    if job.launcher.running:
        job.launcher.signal(signal.SIGTERM)
    assert job.wait(PATIENCE) in (137, 143, PEER)
    until(lambda: not left(job.workers), PROMISED)


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


@pytest.mark.full
def test_a_launcher_that_is_killed_while_hosts_are_waited_for(cluster: Cluster, rig: None) -> None:
    line = ["mpirun", RING]
    job = mpijob(cluster, images.image(NEW), launcher_args=line).start(publish=False)
    job.workers[0].publish()
    until(lambda: "NXDOMAIN" in job.launcher.stderr())
    job.launcher.kill()
    assert job.wait(PATIENCE) == 137
    job.launcher.start()
    job.publish()
    assert job.wait(PATIENCE) == 0


@pytest.mark.full
def test_a_launcher_killed_while_daemons_are_launched(cluster: Cluster, image: Image) -> None:
    """One worker has its daemon, the other one's agent hangs."""
    job = slow_to_launch(cluster, image, 'case "$*" in *worker-1*) exec sleep 1000;; esac')
    until(lambda: left(job.workers[:1]))
    job.launcher.kill()
    assert job.wait(PATIENCE) == 137
    until(lambda: not left(job.workers), PROMISED)
    assert all(worker.running for worker in job.workers)


@crossed("server", ["openssh", "embedded"])
def test_a_killed_launcher_leaves_nothing(cluster: Cluster, image: Image, server: str) -> None:
    job = running(cluster, image, worker={"env": {"MPIBOOT_SSHD": server}})
    job.launcher.kill()
    assert job.wait(PATIENCE) == 137
    until(lambda: not left(job.workers), PROMISED)
    assert all(worker.running for worker in job.workers)


@pytest.mark.full
def test_a_script_goes_on_after_a_launcher_that_was_killed(cluster: Cluster, image: Image) -> None:
    """Its next launch begins while the first one's processes are still being ended."""
    script = 'mpiboot "$@" --sleep 1000 --ignore-term; mpiboot "$@"; echo next=$? >&2; sleep 1000'
    words = ["sh", "-c", script, "sh", "mpirun", RING]
    job = mpijob(cluster, image, launcher_command=words).start()
    launched(job)
    before = {item.host_pid for item in left(job.workers)}
    kill(python(job.launcher))
    until(lambda: "next=" in job.launcher.stderr())
    assert "next=0\n" in job.launcher.stderr()
    until(lambda: not before & {item.host_pid for item in left(job.workers)}, PROMISED)
    until(lambda: "the launcher was killed" in job.launcher.stderr())


@OLD_IMAGE
def test_a_killed_parent_in_a_script_takes_mpirun_along(cluster: Cluster, image: Image) -> None:
    """It is not PID 1 there, so no end of the container does it."""
    script = 'mpiboot launcher -- "$@"; echo next=$? >&2; exec sleep 1000'
    job = mpijob(cluster, image, launcher_command=["sh", "-c", script, "sh", *FOREVER]).start()
    launched(job)
    kill(python(job.launcher))
    until(lambda: "next=137" in job.launcher.stderr())
    until(lambda: not left(job.workers), PROMISED)
    until(lambda: "the launcher was killed" in job.launcher.stderr())
    names = [" ".join(item.args) for item in job.launcher.processes() if item.state != "Z"]
    assert not [name for name in names if "mpirun" in name or "libexec/agent" in name]


@pytest.mark.full
@pytest.mark.parametrize(
    ("image", "server"), [(NEW, "openssh"), (OLD, "embedded")], indirect=["image"]
)
def test_a_launchers_vanished_node_leaves_nothing(
    cluster: Cluster, image: Image, server: str
) -> None:
    """No FIN ever comes: the worker's keep-alive detects it."""
    job = running(
        cluster,
        image,
        worker={"env": {"MPIBOOT_SSHD": server}},
        env={"MPIBOOT_SSH_KEEPALIVE": "3"},
    )
    job.launcher.link_down(silent=True)
    job.launcher.kill()
    until(lambda: not left(job.workers), 3 + PROMISED)


def carried_by_one_process(job: Job) -> None:
    """Each agent is a shell that waits, with no process below it."""
    words = [word for item in job.launcher.processes() for word in item.args]
    assert sum(word.endswith("libexec/agent") for word in words) == len(job.workers)
    assert not [word for word in words if word.rpartition("/")[2] == "ssh"]


@pytest.mark.full
def test_a_signal_while_daemons_are_launched(cluster: Cluster, image: Image) -> None:
    """Each session runs something that never becomes a daemon."""
    slow = Files("/opt/slow", {"daemon": "#!/bin/sh\nexec sleep 1000\n"}, 0o755)
    new = "5.0" in image.name
    name = "PRTE_MCA_prte_launch_agent" if new else "OMPI_MCA_orte_launch_agent"
    job = mpijob(
        cluster, image, launcher={"env": {name: "/opt/slow/daemon"}}, worker={"volumes": [slow]}
    ).start()
    until(lambda: all(alive(worker, "sleep") for worker in job.workers))
    job.launcher.signal(signal.SIGTERM)
    assert job.wait(PATIENCE) == 143
    assert job.launcher.termination_log().startswith("signal: ")
    until(lambda: not [item for worker in job.workers for item in alive(worker, "sleep")], PROMISED)


@ONE_IMAGE
def test_output_in_a_file_needs_no_process_of_an_agents_own(cluster: Cluster, image: Image) -> None:
    """As in a script; each agent is a shell that waits, with no process below it."""
    script = f"(echo first; mpiboot mpirun {RING} --sleep 1000) > /tmp/log 2> /tmp/errors"
    job = mpijob(cluster, image, launcher_command=["sh", "-c", script]).start()
    until(lambda: job.launcher.shell("cat /tmp/log || :").count("rank ") == 2)
    carried_by_one_process(job)
    assert job.launcher.shell("cat /tmp/log").startswith("first\n")


@pytest.mark.full
@pytest.mark.parametrize("supervise", ["on", "off"])
def test_ranks_add_a_host_as_with_plain_mpirun(cluster: Cluster, rig: None, supervise: str) -> None:
    """Which ends with 1, as 4.1 has no slot there."""
    job = mpijob(
        cluster,
        images.image("openmpi-4.1"),
        hostfile="pi-worker-0.pi.default.svc slots=1\n",
        launcher_args=["mpirun", "/opt/programs/uneven", "add", "pi-worker-1.pi.default.svc"],
        launcher={"env": {"MPIBOOT_SUPERVISE": supervise}},
    ).start()
    job.workers[1].publish()
    assert job.wait(PATIENCE) == 1
    assert "MPI_Comm_spawn" in job.launcher.stderr()
    assert "255" not in job.launcher.stderr()
