"""A job's ranks: real processes, what two samples mean, who is accused, and how it is shown."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mpiboot.cli import main as cli
from mpiboot.core.checks import error
from mpiboot.core.model import Finding, Level
from mpiboot.core.settings import Resolved
from mpiboot.doctor import ranks
from mpiboot.doctor.ranks import HostRanks, Rank, RankState, Replies
from mpiboot.job import render
from mpiboot.system import processes
from mpiboot.system.processes import descendants as below
from tests.fakes.programs import program
from tests.supervisor.answering import state
from tests.waiting import until

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
    found = ranks.sample("here", 1, gdb=gdb)
    report = "a banner\n" + render.as_json({"version": 2, "hosts": [found]})
    read = ranks.read(report, "w-0")
    assert read is not None
    assert {read.host, *(item.host for item in read.ranks)} == {"w-0"}
    return {item.number: item for item in read.ranks if item.job == MARK}


def test_real_processes(start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "data")
    held = os.open(tmp_path / "data", os.O_RDWR)
    busy = start(0, sys.executable, "-c", "while True: pass")
    halted = start(1, "sleep", "1000")
    halted.send_signal(signal.SIGSTOP)
    reads = start(2, "cat", str(tmp_path / "data"))
    shell = start(3, "sh", "-c", "sleep 1000; :")
    stuck = start(4, sys.executable, "-c", VFORK)
    until(lambda: tuple(state(one.pid) for one in (halted, reads, stuck)) == ("T", "S", "D"))
    until(lambda: "sleep" in [Path(processes.program(of)).name for of, _ in below(shell.pid)])
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
    assert found[0].cpu_avg is not None
    assert not any(item.mpi for item in found.values())


def test_stacks_come_from_programs_that_are_there(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """py-spy of a Python rank, which it does not halt; gdb only where it is asked for."""
    for name in ("py-spy", "gdb"):
        program(tmp_path, name, f'echo "#0 {name} $*"')
    start(0, sys.executable, "-c", "import time; time.sleep(1000)")
    other = start(1, "sleep", "1000")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = query()
    assert found[0].stack[0].startswith("#0 py-spy dump --nonblocking --pid ")
    assert found[1].stack == ()
    found = query(gdb=True)
    assert found[0].stack[0].startswith("#0 py-spy ")
    assert found[1].stack == (f"#0 gdb -nx -batch -p {other.pid} -ex bt",)


def test_states_count_where_both_samples_have_them() -> None:
    names = ("sleeping", "disk-sleep", "stopped", "tracing-stop", "zombie")
    states = [ranks.state_of(name, name, 0.01) for name in names]
    assert states == [state for state in RankState if state is not RankState.RUNNING]
    sleeps = (("disk-sleep", "sleeping"), ("sleeping", "disk-sleep"))  # a disk that answers
    assert {ranks.state_of(*both, 0.01) for both in sleeps} == {RankState.SLEEPING}
    runs = (("running", "sleeping"), ("sleeping", "running"), ("running", "disk-sleep"))
    assert {ranks.state_of(*both, 0.01) for both in runs} == {RankState.RUNNING}
    assert ranks.state_of("sleeping", "sleeping", 0.05) is RankState.RUNNING


def test_a_data_loader_and_a_shell_are_no_ranks_of_their_own() -> None:
    """They have the rank's number, and a fork has MPI's library."""
    rank = replace(RUNNING, pid=10, parent=1, program="python3.11", mpi=True)
    forked = replace(rank, pid=11, parent=10)
    assert ranks.one_process_a_rank([forked, rank]) == [rank]
    shell = replace(rank, pid=9, program="sh", mpi=False)
    assert ranks.one_process_a_rank([shell, rank, forked]) == [rank]
    alone = replace(rank, pid=12, parent=9, mpi=False)
    assert ranks.one_process_a_rank([shell, alone]) == [alone]


def test_what_is_no_answer() -> None:
    rank = '{"host": "w-0", "ranks": [{"number": 0}]}'
    hosts = (f'{{\n"hosts": [{one}]}}' for one in ("", '{"host": 1}', rank))
    for text in ("", "no such command", '{\n"findings": []}', *hosts):
        assert ranks.read(text, "w-0") is None


# -- who is accused, and who is shown first -------------------------------------------------------

RUNNING = Rank(0, "w-0", 100, "job", 4, "train")
SLEEPS: dict[str, object] = {"state": RankState.SLEEPING}


def job(last: dict[str, object], **all_: object) -> list[Rank]:
    """Four ranks, two a host; the last one differs."""
    every = [
        replace(RUNNING, number=n, host=f"w-{n // 2}", pid=100 + n, **all_)  # type: ignore[arg-type]
        for n in range(4)
    ]
    return [*every[:3], replace(every[3], **last)]  # type: ignore[arg-type]


def judged(listed: list[Rank], *, all_hosts: bool = True) -> tuple[Finding, ...]:
    names = list(dict.fromkeys(item.host for item in listed))
    hosts = [HostRanks(name, tuple(item for item in listed if item.host == name)) for name in names]
    return tuple(ranks.judge(hosts, all_hosts=all_hosts))


def test_nobody_else_is_accused() -> None:
    polls = job({"state": RankState.RUNNING}, **SLEEPS)
    # A manager that polls while its workers compute.
    for listed in ([], job({}), job({}, **SLEEPS), job(SLEEPS), polls):
        assert judged(listed) == ()
    assert judged(job({"program": "helper", "state": RankState.ENDED})) == ()


@pytest.mark.parametrize(
    ("state", "check", "message"),
    [
        (RankState.STOPPED, "rank-stopped", "is stopped by a signal"),
        (RankState.TRACED, "rank-traced", "is held by a debugger"),
        (
            *(RankState.UNINTERRUPTIBLE, "rank-in-kernel"),
            "is in uninterruptible sleep (D): no signal ends it",
        ),
    ],
)
def test_what_is_proven(state: RankState, check: str, message: str) -> None:
    (found,) = judged(job({"state": state, "function": "nfs_wait"}))
    assert (found.check, found.level, found.host) == (check, Level.FAIL, "w-1")
    assert found.message == f"rank 3 {message}"
    assert found.evidence == ("rank 3 on w-1: pid 103, in nfs_wait",)
    assert ("kill -CONT PID" in found.hint) == (state is RankState.STOPPED)


def test_several_are_one_finding() -> None:
    (found,) = judged(job({}, state=RankState.STOPPED))
    assert found.message == "ranks 0, 1, 2, 3 are stopped by a signal"
    assert (found.host, found.hosts) == ("", ("w-0", "w-1"))
    assert found.evidence[3] == "rank 3 on w-1: pid 103, in ?"


NOWHERE = "of 4 are on none of the hosts that answered"


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        (job({})[:3], "rank 3 of 4 is on none of the hosts that answered"),
        (job({})[::2], f"ranks 1, 3 {NOWHERE}"),
        ([replace(RUNNING, size=0)], ""),
    ],
)
def test_ranks_that_are_nowhere(listed: list[Rank], message: str) -> None:
    found = [(item.check, item.level, item.message) for item in judged(listed)]
    assert found == ([("rank-missing", Level.WARN, message)] if message else [])
    assert judged(listed, all_hosts=False) == ()  # other pods' ranks are not missing here


def test_two_launches_are_judged_apart() -> None:
    other = [replace(item, job="other") for item in job({})]
    assert judged([*job({}), *other]) == ()
    (found,) = judged([*job({}), *other[:3]])
    assert found.check == "rank-missing"


def test_ranks_that_differ_come_first() -> None:
    other = [replace(item, job="zoo", **SLEEPS) for item in job({})]  # type: ignore[arg-type]
    ordered = ranks.differing_first([*other, *job(SLEEPS)])
    assert [(item.job, item.number) for item, _ in ordered[:2]] == [("job", 3), ("job", 0)]
    assert [differs for _, differs in ordered] == [True] + [False] * 7


HOST = "w-0.pi.default.svc"
RUNS = Rank(0, HOST, 100, "job", 2, "train", cpu=0.98, cpu_avg=0.5, stack=("#0 main",))
STOPPED = replace(RUNS, number=1, state=RankState.STOPPED, cpu=0.0, function="do_signal_stop")


def answered(*ranks: Rank, **given: Any) -> HostRanks:  # noqa: ANN401
    return HostRanks(HOST, ranks, **given)


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:  # noqa: ANN401
    """Runs it in a worker with these ranks: the code, stdout and stderr."""

    def run(given: HostRanks, *words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(ranks, "sample", lambda *_, **__: given)
        code = cli.run(["doctor", "ranks", "--role", "worker", *words])
        out, err = capfd.readouterr()
        return code, out, err

    return run


def test_the_ranks_are_rows_with_stacks_below(doctor: Any) -> None:  # noqa: ANN401
    code, out, err = doctor(answered(RUNS, STOPPED))
    assert (code, err) == (1, "")
    _, _, _, _, _, row, other, _, *stacks = out.splitlines()
    assert " ".join(row.split()) == "1 w-0 100 stopped (T) 0% 50% do_signal_stop train"
    assert other.startswith("0     w-0   100  running      98%")
    assert stacks[:2] == [f"rank 1 on {HOST}:", "#0 main"]
    assert stacks[-1] == "2 ranks on 1 host: 1 stopped (T), 1 running"


def test_json(doctor: Any) -> None:  # noqa: ANN401
    code, out, _ = doctor(answered(RUNS, STOPPED), "--json")
    found = json.loads(out)
    assert code == 1
    assert (found["version"], found["all_hosts"]) == (3, False)
    assert found["findings"][0]["check"] == "rank-stopped"
    rank = found["hosts"][0]["ranks"][1]
    assert (rank["number"], rank["state"], rank["stack"]) == (1, "stopped (T)", ["#0 main"])


@pytest.mark.parametrize("words", [["--seconds", "0"], ["--seconds", "x"], ["more"]])
def test_a_wrong_call_is_2(doctor: Any, words: list[str]) -> None:  # noqa: ANN401
    code, out, err = doctor(answered(), *words)
    assert (code, out) == (2, "")
    assert "doctor ranks" in err
    assert cli.run(["doctor", "--json", "ranks"]) == 2  # its options stand behind ranks


def test_no_rank_and_what_could_not_be_read(doctor: Any) -> None:  # noqa: ANN401
    assert doctor(answered()) == (0, "no rank runs here\n", "")
    code, out, _ = doctor(answered(others=3))
    assert code == 0
    assert out.startswith("?     this pod  not-readable  3 processes of other users on w-0")


def test_a_launcher_that_reaches_nobody_says_why(
    doctor: Any,  # noqa: ANN401
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ranks of its own are shown all the same: then that is no failure."""

    async def job(_resolved: Resolved, *_: object, **__: object) -> Replies:
        raise error("hostfile-missing", "no hostfile")

    monkeypatch.setattr(ranks, "_job", job)
    code, out, _ = doctor(answered(), "--role", "launcher")
    assert code == 1
    assert out.startswith("FAIL  this pod  hostfile-missing  no hostfile\n")
    code, out, _ = doctor(answered(replace(RUNS, size=1)), "--role", "launcher")
    assert code == 0
    assert out.startswith("?     this pod  hostfile-missing  no hostfile\n")


def test_a_terminal_shows_a_screen_of_them() -> None:
    many = [replace(RUNS, number=n, pid=n, stack=()) for n in range(80)]
    many[79] = replace(many[79], state=RankState.SLEEPING)
    hosts = (answered(*many),)
    shown = ranks.as_text(hosts, (), terminal=True)
    assert shown.splitlines()[1].startswith("79 ")
    assert "and 16 more" in shown
    assert ranks.as_text(hosts, (), terminal=False).count("running  ") == 79
