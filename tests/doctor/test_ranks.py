"""A job's ranks: real processes, tables of what two samples mean, and who is accused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from mpiboot.core.model import Finding, Level
from mpiboot.doctor import observe, ranks
from mpiboot.doctor.ranks import HostRanks, Rank, RankProcess, RankState
from mpiboot.job import render
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MARK = f"test-{uuid.uuid4()}"
# Its parent sleeps uninterruptibly until the child that has its memory execs or ends.
VFORK = "import ctypes, time; ctypes.CDLL(None).vfork() or time.sleep(1000)"


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a process with a rank's environment; all are ended with the test."""
    begun: list[subprocess.Popen[bytes]] = []

    def begin(number: int, *words: str, **environ: str) -> subprocess.Popen[bytes]:
        given = {"PMI_RANK": str(number), "PMI_SIZE": "5", "MPIBOOT_LAUNCH_ID": MARK, **environ}
        process = subprocess.Popen(
            words, env={**os.environ, **given}, stdout=subprocess.PIPE, start_new_session=True
        )
        begun.append(process)
        return process

    yield begin
    for process in begun:
        os.killpg(process.pid, signal.SIGKILL)  # a shell's child too
        process.communicate()


def query(*, gdb: bool = False) -> dict[int, Rank]:
    """The ranks of this test, by number, as a launcher reads them."""
    found = observe.ranks("here", 1, gdb=gdb)
    report = "a banner\n" + render.as_json({"version": 2, "hosts": [found]})
    read = ranks.read(report, "w-0")
    assert read is not None
    assert {read.host, *(item.host for item in read.ranks)} == {"w-0"}
    return {item.number: item for item in read.ranks if item.job == MARK}


def state(process: subprocess.Popen[bytes]) -> str:
    with open(f"/proc/{process.pid}/stat", encoding="ascii") as file:  # noqa: PTH123
        return file.read().rpartition(") ")[2][0]


def test_real_processes(start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "data")
    held = os.open(tmp_path / "data", os.O_RDWR)
    busy = start(0, sys.executable, "-c", "while True: pass")
    halted = start(1, "sleep", "1000")
    halted.send_signal(signal.SIGSTOP)
    reads = start(2, "cat", str(tmp_path / "data"))
    start(3, "sh", "-c", "sleep 1000; :")
    stuck = start(4, sys.executable, "-c", VFORK)
    until(lambda: (state(halted), state(reads), state(stuck)) == ("T", "S", "D"))
    found = query()
    os.close(held)
    assert sorted(found) == [0, 1, 2, 3, 4]
    assert (found[0].pid, found[0].state) == (busy.pid, RankState.RUNNING)
    assert found[0].program.startswith("python")
    assert found[0].cpu is not None
    assert found[0].cpu > 0
    assert found[1].state is RankState.STOPPED
    assert found[2].state is RankState.SLEEPING
    # The wrapper's child is what the rank does.
    assert found[3].program == "sleep"
    assert (found[4].pid, found[4].state) == (stuck.pid, RankState.UNINTERRUPTIBLE)
    assert {item.size for item in found.values()} == {5}


def test_stacks_come_from_programs_that_are_there(
    start: Callable[..., subprocess.Popen[bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """py-spy of a Python rank, which it does not halt; gdb only where it is asked for."""
    for name in ("py-spy", "gdb"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "#0 {name} $*"\n')
        (tmp_path / name).chmod(0o755)
    start(0, sys.executable, "-c", "import time; time.sleep(1000)")
    other = start(1, "sleep", "1000")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = query()
    assert found[0].stack[0].startswith("#0 py-spy dump --nonblocking --pid ")
    assert found[1].stack == ()
    found = query(gdb=True)
    assert found[0].stack[0].startswith("#0 py-spy ")
    assert found[1].stack == (f"#0 gdb -nx -batch -p {other.pid} -ex bt",)


ENVIRON = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_RANK": "2",
    "PMIX_NAMESPACE": "7",
    "MPIBOOT_LAUNCH_ID": "mark",
}


def process(before: str = "sleeping", now: str = "sleeping", **given: Any) -> RankProcess:  # noqa: ANN401
    """A rank's process that was sampled twice."""
    known = {"pid": 10, "parent": 1, "environ": ENVIRON, "program": "python3.11", "mpi": True}
    return RankProcess(**{**known, "states": (before, now), "cpu": 0.01, "cpu_avg": 0.5, **given})


def test_every_field() -> None:
    assert ranks.rank_of(process(), "w-0") == Rank(
        number=2,
        host="w-0",
        pid=10,
        job="mark 7",
        size=4,
        local=2,
        program="python3.11",
        state=RankState.SLEEPING,
        cpu=0.01,
        cpu_avg=0.5,
    )


@pytest.mark.parametrize(
    ("before", "now", "cpu", "expected"),
    [
        ("sleeping", "sleeping", 0.01, RankState.SLEEPING),
        ("sleeping", "sleeping", None, RankState.SLEEPING),
        ("sleeping", "sleeping", 0.05, RankState.RUNNING),
        ("running", "sleeping", 0.01, RankState.RUNNING),
        ("sleeping", "running", 0.01, RankState.RUNNING),
        ("disk-sleep", "disk-sleep", 0.01, RankState.UNINTERRUPTIBLE),
        ("disk-sleep", "sleeping", 0.01, RankState.SLEEPING),  # a disk that answers
        ("sleeping", "disk-sleep", 0.01, RankState.SLEEPING),
        ("stopped", "stopped", 0.01, RankState.STOPPED),
        ("tracing-stop", "tracing-stop", 0.01, RankState.TRACED),
        ("zombie", "zombie", 0.01, RankState.ENDED),
        ("running", "disk-sleep", 0.01, RankState.RUNNING),
    ],
)
def test_states(before: str, now: str, cpu: float | None, expected: RankState) -> None:
    assert ranks.rank_of(process(before, now, cpu=cpu), "w-0").state is expected


def test_a_data_loader_is_no_rank_of_its_own() -> None:
    """It has the rank's number and MPI's library, as a child that was forked."""
    rank, forked = process(), process(pid=11, parent=10)
    assert ranks.one_process_a_rank([forked, rank]) == [rank]
    shell = process(pid=9, program="sh", mpi=False)
    assert ranks.one_process_a_rank([shell, rank, forked]) == [rank]
    alone = process(pid=12, parent=9, mpi=False)
    assert ranks.one_process_a_rank([shell, alone]) == [alone]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no such command",
        '{\n"findings": []}',
        '{\n"hosts": []}',
        '{\n"hosts": [{"host": 1}]}',
        '{\n"hosts": [{"host": "w-0", "ranks": [{"number": 0}]}]}',
    ],
)
def test_what_is_no_answer(text: str) -> None:
    """As of a worker whose mpiboot is older: its doctor knows no ranks for a launcher."""
    assert ranks.read(text, "w-0") is None


# -- who is accused, and who is shown first -------------------------------------------------------

RUNNING = Rank(0, "w-0", 100, "job", 4, 2, "train")
SLEEPS: dict[str, object] = {"state": RankState.SLEEPING}


def job(last: dict[str, object], **all_: object) -> list[Rank]:
    """Four ranks, two a host; the last one differs."""
    every = [
        replace(RUNNING, number=n, host=f"w-{n // 2}", pid=100 + n, **all_)  # type: ignore[arg-type]
        for n in range(4)
    ]
    return [*every[:3], replace(every[3], **last)]  # type: ignore[arg-type]


def judged(listed: list[Rank], **given: object) -> tuple[Finding, ...]:
    names = list(dict.fromkeys(item.host for item in listed))
    hosts = [HostRanks(name, tuple(item for item in listed if item.host == name)) for name in names]
    return ranks.judge(hosts, **{"all_hosts": True, **given})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "listed",
    [
        job({}),
        job({}, **SLEEPS),
        job(SLEEPS),  # a manager that polls while its workers compute
        job({"state": RankState.RUNNING}, **SLEEPS),
        job({"state": RankState.SLEEPING}),
        job({"program": "helper", "state": RankState.ENDED}),
        [],
    ],
    ids=["all run", "all wait", "a manager", "one computes", "one reads", "one ends", "none"],
)
def test_nobody_else_is_accused(listed: list[Rank]) -> None:
    assert judged(listed) == ()


@pytest.mark.parametrize(
    ("state", "check", "message"),
    [
        (RankState.STOPPED, "rank-stopped", "rank 3 (pid 103) is stopped by a signal"),
        (RankState.TRACED, "rank-traced", "rank 3 (pid 103) is held by a debugger"),
        (
            RankState.UNINTERRUPTIBLE,
            "rank-in-kernel",
            "rank 3 (pid 103) is in uninterruptible sleep (D): no signal ends it, in nfs_wait",
        ),
    ],
)
def test_what_is_proven(state: RankState, check: str, message: str) -> None:
    (found,) = judged(job({"state": state, "function": "nfs_wait"}))
    assert (found.check, found.level, found.host) == (check, Level.FAIL, "w-1")
    assert found.message == message
    assert "PID" not in found.hint
    assert ("kill -CONT 103" in found.hint) == (state is RankState.STOPPED)


def test_several_are_one_finding() -> None:
    (found,) = judged(job({}, state=RankState.STOPPED))
    assert found.message == "ranks 0-3 are stopped by a signal"
    assert (found.host, found.hosts) == ("", ("w-0", "w-1"))
    assert found.evidence[3] == "rank 3 on w-1 (pid 103)"
    assert "kill -CONT PID" in found.hint


@pytest.mark.parametrize(
    ("listed", "given", "message"),
    [
        (job({})[:3], {}, "rank 3 of 4 is on none of the hosts that answered"),
        (job({})[:1], {}, "ranks 1-3 of 4 are on none of the hosts that answered"),
        (
            job({})[:2],
            {"unasked": ("w-1",)},
            "ranks 2-3 of 4 are on none of the hosts that answered; 1 host did not (w-1)",
        ),
        (job({})[:1], {"all_hosts": False}, "1 of this pod's 2 ranks are running"),
    ],
)
def test_ranks_that_are_nowhere(listed: list[Rank], given: dict[str, object], message: str) -> None:
    (found,) = judged(listed, **given)
    assert (found.check, found.level) == ("rank-missing", Level.WARN)
    assert found.message == message


def test_of_a_pod_alone_other_pods_ranks_are_not_missing() -> None:
    assert judged(job({})[:2], all_hosts=False) == ()
    assert judged([replace(RUNNING, local=0)], all_hosts=False) == ()


def test_two_launches_are_judged_apart() -> None:
    other = [replace(item, job="other") for item in job({})]
    assert judged([*job({}), *other]) == ()
    (found,) = judged([*job({}), *other[:3]])
    assert found.check == "rank-missing"


def test_ranks_that_differ_come_first() -> None:
    other = [replace(item, job="zoo", **SLEEPS) for item in job({})]  # type: ignore[arg-type]
    ordered = ranks.differing_first([*other, *job(SLEEPS)])
    assert [(item.job, item.number) for item, _ in ordered[:3]] == [
        ("job", 3),
        ("job", 0),
        ("job", 1),
    ]
    assert [differs for _, differs in ordered] == [True] + [False] * 7
