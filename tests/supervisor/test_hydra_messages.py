"""What Hydra's mpirun says of its ranks: text as MPICH 4.0.2 and 5.0.2 and Intel MPI wrote it."""

from __future__ import annotations

import os

import pytest

from mpiboot.supervisor.job import RankEnd, RankEnded
from mpiboot.supervisor.output import HydraMessages, first_failure
from tests.supervisor.test_mpirun_messages import Stream, stream

__all__ = ["stream"]

RULE = "=" * 83 + "\n"
TITLE = f"[mpiexec@{os.uname().nodename}] Exit codes: "
HOSTS = ("w-0.job.ns.svc", "w-1.job.ns.svc")
MPICH = (
    f"\n{RULE}=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"
    "=   PID 54 RUNNING AT w-1.job.ns.svc\n=   EXIT CODE: {}\n"
    "=   CLEANING UP REMAINING PROCESSES\n=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES\n"
    f"{RULE}"
)
INTEL = (
    f"\n{RULE}=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"
    "=   RANK 1 PID 35 RUNNING AT w-1\n=   KILLED BY SIGNAL: 15 (Terminated)\n"
    f"{RULE}"
)
TIMED_OUT = RankEnded(None, RankEnd.TIMED_OUT)
SAID = "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)\n"


def messages(
    stream: Stream, hosts: tuple[str, ...] = HOSTS, *, take_out: bool = True
) -> HydraMessages:
    return HydraMessages(stream.reader, stream.forward, lambda: hosts, take_out=take_out)


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
@pytest.mark.parametrize(
    ("block", "end"),
    [
        (MPICH.format(9), RankEnded(1, RankEnd.SIGNAL, "w-1.job.ns.svc", 9)),
        # 128 more where there is a core file.
        (MPICH.format(139), RankEnded(1, RankEnd.SIGNAL, "w-1.job.ns.svc", 11)),
        (INTEL, RankEnded(1, RankEnd.SIGNAL, "w-1", 15)),
        ("[mpiexec@l] APPLICATION TIMED OUT, TIMEOUT = 3s\n", TIMED_OUT),
        ("I_MPI_JOB_TIMEOUT = 3 second(s): job ending due to application timeout\n", TIMED_OUT),
    ],
)
def test_the_rank_that_a_signal_ended_is_read_and_passed_on(
    stream: Stream, block: str, end: RankEnded, size: int
) -> None:
    reading = messages(stream)
    text = f"epoch 1\n{block}{SAID}epoch 2, without an end".encode()
    assert list(dict.fromkeys(stream.read(reading, text, size))) == [end]
    assert {*reading.read_last()} <= {TIMED_OUT}
    assert stream.shown == text


def test_a_rank_is_not_numbered_by_a_host_that_may_have_several(stream: Stream) -> None:
    (end,) = stream.read(messages(stream, ()), MPICH.format(9).encode())
    assert (end.rank, end.host) == (None, "w-1.job.ns.svc")


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
@pytest.mark.parametrize("number", ["", ":1"])
def test_lines_with_statuses_are_mpiboots_alone(stream: Stream, size: int, number: str) -> None:
    """Intel MPI writes a number behind each host."""
    listed = f"[w-0.job.ns.svc] 15\n[w-1.job.ns.svc{number}] 768\n"
    reading = messages(stream)
    assert stream.read(reading, f"last words[{TITLE}{listed}{SAID}".encode(), size) == []
    end = RankEnded(1, RankEnd.STATUS, "w-1.job.ns.svc", code=3, last=True)
    assert reading.read_last() == [end]
    assert stream.shown == f"last words[{SAID}".encode()


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_user_who_wants_them_sees_them(stream: Stream, end: str) -> None:
    text = f"{TITLE}[w-0.job.ns.svc] 0,256{end}".encode()
    reading = messages(stream, (), take_out=False)
    stream.read(reading, text)
    exited = RankEnded(None, RankEnd.STATUS, "w-0.job.ns.svc", code=1, last=True)
    assert reading.read_last() == [exited]
    assert stream.shown == text


def test_what_only_resembles_them_goes_on(stream: Stream) -> None:
    reading = messages(stream)
    text = f"{TITLE}\n[w-0] fine\n{TITLE[:-3]}x\n[w-0.job.ns.svc] 256\n{TITLE[:9]}"
    stream.read(reading, text.encode())
    assert reading.read_last() == []
    assert stream.shown == text.replace(TITLE, "").encode()
    # A rank that outlives its mpirun has the same pipe.
    os.write(stream.writer, b"a rank's\n")
    assert reading.read_last() == []
    assert stream.shown.endswith(b"a rank's\n")


@pytest.mark.parametrize(
    ("statuses", "signal", "code"),
    [
        ((0, 0), None, None),
        ((9, 11, 9), 11, 0),
        ((9, 6, 0), 6, 0),
        ((15, 9), 9, 0),
        ((0, 15), 15, 0),
        ((9, 768), 0, 3),
        ((15, 139), 11, 0),
    ],
)
def test_what_mpirun_ended_itself_explains_less(
    statuses: tuple[int, ...], signal: int | None, code: int | None
) -> None:
    """Measured with 5.0.2: beside a rank that SIGABRT ended its host's others have 9."""
    found = first_failure({"w-0": statuses}, ())
    assert [(end.signal, end.code) for end in found] == ([] if signal is None else [(signal, code)])
