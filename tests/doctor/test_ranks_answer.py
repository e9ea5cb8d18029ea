"""What hosts say of their ranks, read: real processes by the real shell program, and odd texts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from mpiboot.doctor import ranks_answer as answer
from mpiboot.doctor.ranks_answer import Rank, RankState
from mpiboot.hosts import host_shell
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


def query(*, gdb: bool = False, **environ: str) -> dict[int, Rank]:
    """The ranks of this test, by number, as the shell program sees them."""
    done = subprocess.run(
        ["sh", "-c", host_shell.ranks(1, gdb=gdb)],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    found = answer.read(f"a banner\n{done.stdout}", "w-0")
    assert found is not None
    assert found.host == "w-0"
    return {item.number: item for item in found.ranks if item.job == MARK}


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
    assert (found[2].state, found[2].call) == (RankState.SLEEPING, "read")
    # The wrapper's child is what the rank does.
    assert (found[3].program, found[3].call) == ("sleep", "clock_nanosleep")
    assert (found[4].pid, found[4].state) == (stuck.pid, RankState.UNINTERRUPTIBLE)
    assert {item.size for item in found.values()} == {5}


def test_stacks_come_from_programs_that_are_there(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """py-spy of a Python rank, which it does not halt; gdb only where it is asked for."""
    for name in ("py-spy", "gdb"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "#0 {name} $*"\n')
        (tmp_path / name).chmod(0o755)
    start(0, sys.executable, "-c", "import time; time.sleep(1000)")
    other = start(1, "sleep", "1000")
    path = f"{tmp_path}:{os.environ['PATH']}"
    found = query(PATH=path)
    assert found[0].stack[0].startswith("#0 py-spy dump --nonblocking --pid ")
    assert found[1].stack == ()
    found = query(PATH=path, gdb=True)
    assert found[0].stack[0].startswith("#0 py-spy ")
    assert found[1].stack == (f"#0 gdb -nx -batch -p {other.pid} -ex bt",)


HEAD = """mpiboot-ranks
machine x86_64
unreadable
"""
STAT = "10 (a) b) {state} 1 10 10 0 -1 0 0 0 0 0 {user} 0 0 0 20 0 3 0 1000 9999 512 0\n"
FOUND = """process 10
exe python3.11 (deleted)
env OMPI_COMM_WORLD_RANK=2
env OMPI_COMM_WORLD_SIZE=4
env OMPI_COMM_WORLD_LOCAL_SIZE=2
env PMIX_RANK=2
env PMIX_NAMESPACE=7
env MPIBOOT_LAUNCH_ID=mark
mpi
wchan futex_wait_queue
syscall 202 0x7f 0x0
stack MainThread: train (train.py:7)
"""


def output(before: str = "S", now: str = "S", *, found: str = FOUND) -> str:
    first = "sample 100.00\nstat " + STAT.format(state=before, user=500)
    second = "sample 102.00\nstat " + STAT.format(state=now, user=501)
    return HEAD + first + second + found


def one(text: str) -> Rank:
    host = answer.read(text, "w-0")
    assert host is not None
    (rank,) = host.ranks
    return rank


def test_every_field() -> None:
    host = answer.read(output(found=FOUND + "closed syscall\n"), "w-0")
    assert host is not None
    assert (host.others, *host.closed) == (1, "syscall")
    (rank,) = host.ranks
    assert rank.cpu == pytest.approx(0.005)
    assert rank.cpu_avg == pytest.approx(5.01 / 92)
    assert replace(rank, cpu=None, cpu_avg=None) == Rank(
        number=2,
        host="w-0",
        pid=10,
        job="mark 7",
        size=4,
        local=2,
        program="python3.11",
        state=RankState.SLEEPING,
        function="futex_wait_queue",
        call="futex",
        stack=("MainThread: train (train.py:7)",),
    )


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ("S", "S", RankState.SLEEPING),
        ("R", "S", RankState.RUNNING),
        ("S", "R", RankState.RUNNING),
        ("D", "D", RankState.UNINTERRUPTIBLE),
        ("D", "S", RankState.SLEEPING),  # a disk that answers
        ("S", "D", RankState.SLEEPING),
        ("T", "T", RankState.STOPPED),
        ("t", "t", RankState.TRACED),
        ("Z", "Z", RankState.ENDED),
        ("R", "D", RankState.RUNNING),
    ],
)
def test_states(before: str, now: str, expected: RankState) -> None:
    assert one(output(before, now)).state is expected


def test_a_rank_that_used_the_cpu_in_between_is_running() -> None:
    text = output().replace(" 501 0 0 0 20", " 511 0 0 0 20")
    assert one(text).state is RankState.RUNNING


def test_what_runs_now_waits_in_nothing() -> None:
    assert one(output(found=FOUND.replace("syscall 202 0x7f 0x0", "syscall running"))).call == ""


def test_calls_by_machine() -> None:
    text = output(found=FOUND.replace("syscall 202 0x7f 0x0", "syscall 63 0x3"))
    assert one(text.replace("x86_64", "aarch64")).call == "read"
    assert one(text).call == one(text.replace("x86_64", "riscv64")).call == "system call 63"


def test_a_data_loader_is_no_rank_of_its_own() -> None:
    """It has the rank's number and MPI's library, as a child that was forked."""
    text = output(found=FOUND + FOUND.replace("process 10", "process 11"))
    for user in (500, 501):
        line = "stat " + STAT.format(state="S", user=user)
        text = text.replace(line, line + line.replace("10 (a) b) S 1", "11 (a) b) S 10"))
    assert one(text).pid == 10


@pytest.mark.parametrize(
    "text", ["", "no such command", "mpiboot-ranks\nhost x\n", "mpiboot-ranks\nlook 1\n"]
)
def test_what_is_no_answer(text: str) -> None:
    assert answer.read(text, "w-0") is None


def test_broken_lines_are_passed_over() -> None:
    text = output().replace("sample 102.00", "sample ?")
    text += "process x\nprocess 99\nenv\nstat\nstat 10\nstat 7 (a) S 1\n"
    assert one(text).cpu is None  # without a time there is no share
