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
from mpiboot.doctor.ranks_answer import Activity, MpiStage, Rank, SilentConnection
from mpiboot.hosts import host_shell
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MARK = f"test-{uuid.uuid4()}"


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a process with a rank's environment; all are ended with the test."""
    begun: list[subprocess.Popen[bytes]] = []

    def begin(number: int, *words: str, **environ: str) -> subprocess.Popen[bytes]:
        given = {"PMI_RANK": str(number), "PMI_SIZE": "4", "MPIBOOT_LAUNCH_ID": MARK, **environ}
        process = subprocess.Popen(
            words, env={**os.environ, **given}, stdout=subprocess.PIPE, start_new_session=True
        )
        begun.append(process)
        return process

    yield begin
    for process in begun:
        os.killpg(process.pid, signal.SIGKILL)  # a shell's child too
        process.communicate()


def ask() -> dict[int, Rank]:
    """The ranks of this test, by number, as the shell program sees them."""
    done = subprocess.run(
        ["sh", "-c", host_shell.ranks(1)], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    found = answer.read(f"a banner\n{done.stdout}", "w-0")
    assert found is not None
    assert found.host == "w-0"
    assert found.seconds >= 1
    return {item.number: item for item in found.ranks if item.job == MARK}


def state(process: subprocess.Popen[bytes]) -> str:
    with open(f"/proc/{process.pid}/stat", encoding="ascii") as file:  # noqa: PTH123
        return file.read().rpartition(") ")[2][0]


def test_real_processes(start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "data")
    held = os.open(tmp_path / "data", os.O_RDWR)
    spin = "while True: pass"
    busy = start(0, sys.executable, "-c", spin, "--token", "geheim")
    halted = start(1, "sleep", "1000")
    halted.send_signal(signal.SIGSTOP)
    reads = start(2, "cat", str(tmp_path / "data"))
    start(3, "sh", "-c", "sleep 1000; :")
    until(lambda: state(halted) == "T" and state(reads) == "S")
    found = ask()
    os.close(held)
    assert sorted(found) == [0, 1, 2, 3]
    assert found[0].pid == busy.pid
    assert found[0].activity is Activity.BUSY
    assert found[0].program.startswith("python")
    assert found[0].cpu is not None
    assert found[0].cpu > 0
    assert found[0].memory > 1 << 20
    assert "geheim" not in found[0].command
    assert "(hidden)" in found[0].command
    assert found[1].activity is Activity.STOPPED
    assert (found[2].activity, found[2].call) == (Activity.WAITS, "read")
    assert found[2].file == str(tmp_path / "data")
    # The wrapper's child is what the rank does; none of them is in MPI.
    assert (found[3].program, found[3].call) == ("sleep", "clock_nanosleep")
    assert {item.stage for item in found.values()} == {MpiStage.BEFORE}
    assert {item.size for item in found.values()} == {4}


def test_what_a_rank_holds_open(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    """An epoll is what MPICH's and Open MPI's event loops have from MPI_Init on."""
    script = "import select, time; e = select.epoll(); print('go', flush=True); time.sleep(1000)"
    hydra = start(0, sys.executable, "-c", script)
    left = start(1, sys.executable, "-c", script, PMIX_SERVER_URI2="x;tcp4://127.0.0.1:1")
    for process in (hydra, left):
        assert process.stdout is not None
        process.stdout.readline()
    found = ask()
    assert found[0].stage is MpiStage.INSIDE
    assert found[1].stage is MpiStage.LEFT


HEAD = """mpiboot-ranks
machine x86_64
ticks 100
page 4096
unreadable /proc/1/environ
"""
STAT = "10 (a) b) {state} 1 10 10 0 -1 0 0 0 0 0 {user} 0 0 0 20 0 3 0 1000 9999 {pages} 0\n"
LINKS = "link eth0: {0} 1 0 0 0 0 0 0 {1} 1 0 0 0 0 0 0\nlink lo: 9 1 0 0 0 0 0 0 9 1 0 0 0 0 0 0\n"
PORTS = "port /sys/class/infiniband/mlx5_0/ports/1/counters/port_{}_data {}\n"
FOUND = """own 127.0.0.1
own 10.0.0.10
own 192.168.0.1
own6 00000000000000000000000000000001
own6 fd001024000000000000000000000005
state /sys/class/net/eth0/operstate up
verbs /sys/class/infiniband_verbs/uverbs0/ibdev mlx5_0
unanswered 1: 0A00000A:1000 0B00000A:0400 01 00000001:00000000 01:00000010 00000006 0 0 77 1 0
unanswered 9: 0A00000A:1000 0B00000A:0400 01 00000001:00000000 01:00000010 00000006 0 0 77 1 0
unanswered 2: 0A00000A:1001 0B00000A:0401 02 00000001:00000000 01:00000010 00000003 0 0 78 1 0
unanswered 3: 0A00000A:1001 0B00000A:0401 01 00000001:00000000 01:00000010 00000009 0 0 79 1 0
served 4: 0100007F:1001 0100007F:0401 01 00000000:00000000 00:00000000 00000000 0 0 80 1 0
process 10
exe /usr/bin/python3.11
word python3
word -u
word /app/train.py
env OMPI_COMM_WORLD_RANK=2
env OMPI_COMM_WORLD_SIZE=4
env OMPI_COMM_WORLD_LOCAL_SIZE=2
env PMIX_RANK=2
env PMIX_NAMESPACE=7
env MPIBOOT_LAUNCH_ID=mark
env PMIX_SERVER_URI2=x;tcp4://127.0.0.1:1025
mpi
running 1
wchan futex_wait_queue
syscall 202 0x7f 0x0
file /dev/null
fd 5 -> socket:[77]
fd 6 -> socket:[78]
fd 7 -> socket:[80]
fd 8 -> /dev/nvidia3
fd 9 -> /dev/nvidiactl
fd 10 -> /dev/infiniband/uverbs0
fd 11 -> /dev/infiniband/rdma_cm
stack MainThread: train (train.py:7)
"""


def output(before: str = "S", now: str = "S", *, found: str = FOUND) -> str:
    first = "look\nuptime 100.00\nstat " + STAT.format(state=before, user=500, pages=512)
    first += LINKS.format(1000, 2000) + PORTS.format("xmit", 10) + PORTS.format("rcv", 20)
    second = "look\nuptime 102.00\nstat " + STAT.format(state=now, user=501, pages=512)
    second += LINKS.format(5000, 2000) + PORTS.format("xmit", 110) + PORTS.format("rcv", 20)
    return HEAD + first + second + found


def one(text: str) -> Rank:
    host = answer.read(text, "w-0", "10.0.0.10")
    assert host is not None
    (rank,) = host.ranks
    return rank


def test_every_field() -> None:
    host = answer.read(output(), "w-0", "10.0.0.10")
    assert host is not None
    assert (host.seconds, host.others) == (2.0, 1)
    assert host.addresses == ("10.0.0.10", "192.168.0.1", "fd00:1024::5")
    assert [(item.name, item.sent, item.received, item.state) for item in host.links] == [
        ("eth0", 0.0, 2000.0, "up"),
        ("mlx5_0:1", 200.0, 0.0, ""),
    ]
    (rank,) = host.ranks
    assert rank.cpu == pytest.approx(0.005)
    assert rank.cpu_since == pytest.approx(5.01 / 92)
    assert (replace(rank, cpu=None, cpu_since=None),) == (
        Rank(
            number=2,
            host="w-0",
            pid=10,
            job="mark 7",
            size=4,
            local=2,
            program="python3.11 train.py",
            command="python3 -u /app/train.py",
            activity=Activity.WAITS,
            stage=MpiStage.INSIDE,
            memory=512 * 4096,
            threads=3,
            running=1,
            call="futex",
            place="futex_wait_queue",
            devices=("mlx5_0", "nvidia3"),
            unanswered=(
                SilentConnection("10.0.0.10", "10.0.0.11", 1024, 6),
                SilentConnection("10.0.0.10", "10.0.0.11", 1025, 3, new=True),
            ),
            stack=("MainThread: train (train.py:7)",),
        ),
    )


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ("S", "S", Activity.WAITS),
        ("R", "S", Activity.BUSY),
        ("S", "R", Activity.BUSY),
        ("D", "D", Activity.KERNEL),
        ("D", "S", Activity.WAITS),  # a disk that answers
        ("S", "D", Activity.WAITS),
        ("T", "T", Activity.STOPPED),
        ("t", "t", Activity.TRACED),
        ("R", "D", Activity.BUSY),
    ],
)
def test_what_it_does(before: str, now: str, expected: Activity) -> None:
    assert one(output(before, now)).activity is expected


def test_a_rank_that_used_the_cpu_in_between_is_busy() -> None:
    text = output().replace(" 501 0 0 0 20", " 511 0 0 0 20")
    assert one(text).activity is Activity.BUSY


def without(*lines: str) -> str:
    text = output()
    for line in lines:
        assert line in text
        text = text.replace(line, "")
    return text


@pytest.mark.parametrize(
    ("text", "stage"),
    [
        (without("fd 7 -> socket:[80]\n"), MpiStage.BEFORE),
        (output(found=FOUND.replace("socket:[80]", "anon_inode:[eventpoll]")), MpiStage.LEFT),
        (output(found=FOUND.replace("socket:[80]", "/dev/shm/open_mpi (deleted)")), MpiStage.LEFT),
        (output(found=FOUND.replace("fd 7 -> socket:[80]", "closed fd")), MpiStage.UNKNOWN),
    ],
)
def test_how_far_it_is_in_mpi(text: str, stage: MpiStage) -> None:
    assert one(text).stage is stage


def test_what_runs_now_waits_in_nothing() -> None:
    rank = one(output(found=FOUND.replace("syscall 202 0x7f 0x0", "syscall running")))
    assert (rank.call, rank.file) == ("", "")


def test_calls_by_machine() -> None:
    read = FOUND.replace("syscall 202 0x7f 0x0", "syscall 63 0x3").replace("/dev/null", "/data/x")
    arm = output(found=read).replace("x86_64", "aarch64")
    assert (one(arm).call, one(arm).file) == ("read", "/data/x")
    assert one(output(found=read)).call == "system call 63"
    assert answer.call_name("riscv64", 63) == "system call 63"
    for table in (answer._X86_64, answer._AARCH64):
        known = set(table.values())
        assert known >= answer.SLEEPS - {"pause"}
        assert known >= answer.FILE_SYSTEM_CALLS - {"open", "lstat"}


def test_a_data_loader_is_no_rank_of_its_own() -> None:
    """It has the rank's number and MPI's library, as a child that was forked."""
    child = FOUND[FOUND.index("process 10") :].replace("process 10", "process 11")
    text = output(found=FOUND + child)
    line = "stat " + STAT.format(state="S", user=500, pages=512)
    text = text.replace(line, line + line.replace("10 (a) b) S 1", "11 (a) b) S 10"))
    line = "stat " + STAT.format(state="S", user=501, pages=512)
    text = text.replace(line, line + line.replace("10 (a) b) S 1", "11 (a) b) S 10"))
    assert one(text).pid == 10


@pytest.mark.parametrize(
    "text", ["", "no such command", "mpiboot-ranks\nhost x\n", "mpiboot-ranks\nlook\nuptime 1\n"]
)
def test_what_is_no_answer(text: str) -> None:
    assert answer.read(text, "w-0") is None


def test_broken_lines_are_passed_over() -> None:
    text = output().replace("uptime 102.00", "uptime ?")
    text += "process x\nprocess 99\nenv\nfd ?\nstat\n"
    rank = one(text)
    assert replace(rank, cpu=None) == rank  # without a time there is no share
