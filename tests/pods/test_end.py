"""How jobs end: the exit code and the sentence for what really happened, with a real MPI."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import (
    DAEMONS,
    FOREVER,
    OWN_SSH,
    PATIENCE,
    PROMISED,
    RING,
    agent_variable,
    agents,
    alive,
    end_line,
    ended,
    kill,
    launches,
    left,
    rank_processes,
    running,
    with_own_ssh,
)
from tests.pods.marks import NEW, OLD_IMAGE, ONE_IMAGE
from tests.pods.operator import Job
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
