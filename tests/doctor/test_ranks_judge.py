"""Which ranks are told as odd, by values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpiboot.core.model import Finding, Level
from mpiboot.doctor import ranks_judge as judge
from mpiboot.doctor.ranks_answer import (
    Activity,
    HostRanks,
    LinkRates,
    MpiStage,
    Rank,
    SilentConnection,
)

BUSY = Rank(0, "w-0", 100, "job", 4, 2, "train", stage=MpiStage.INSIDE)


def job(**odd: object) -> list[Rank]:
    """Four ranks, two a host; the last one is as told."""
    ranks = [replace(BUSY, number=n, host=f"w-{n // 2}", pid=100 + n) for n in range(4)]
    return [*ranks[:3], replace(ranks[3], **odd)]  # type: ignore[arg-type]


def judged(ranks: list[Rank], *links: LinkRates, **given: object) -> tuple[Finding, ...]:
    names = list(dict.fromkeys(item.host for item in ranks))
    hosts = [
        HostRanks(name, tuple(item for item in ranks if item.host == name), links, 1.0)
        for name in names
    ]
    return judge.judge(hosts, **{"all_hosts": True, **given})  # type: ignore[arg-type]


def test_nothing_is_odd_where_all_do_the_same() -> None:
    assert judged(job()) == ()
    assert judged([replace(item, activity=Activity.WAITS) for item in job()]) == ()
    assert judged([]) == ()


REST = "; the other 3 are busy, as ranks waiting in MPI are"
WAITS = Activity.WAITS


@pytest.mark.parametrize(
    ("odd", "check", "message"),
    [
        ({"activity": Activity.STOPPED}, "rank-stopped", "is stopped by a signal"),
        ({"activity": Activity.TRACED}, "rank-traced", "is held by a debugger"),
        (
            {"activity": Activity.KERNEL, "call": "read", "file": "/nfs/x"},
            "rank-in-kernel",
            "sleeps in the kernel and takes no signal: it waits in read of /nfs/x",
        ),
        (
            {"activity": Activity.KERNEL, "place": "nfs_wait"},
            "rank-in-kernel",
            "sleeps in the kernel and takes no signal: it waits (nfs_wait)",
        ),
        (
            {"activity": WAITS, "call": "read", "file": "/data/x"},
            "rank-in-file",
            "waits in read of /data/x",
        ),
        ({"activity": WAITS, "call": "openat"}, "rank-in-file", "waits in openat"),
        (
            {"activity": WAITS, "call": "read", "file": "socket:[1]"},
            "rank-apart",
            "waits in read of socket:[1]",
        ),
        ({"activity": WAITS, "call": "futex"}, "rank-apart", "waits in futex"),
        ({"activity": WAITS, "call": "nanosleep"}, "rank-apart", "sleeps (nanosleep)"),
        ({"activity": WAITS}, "rank-apart", "waits"),
        (
            {"activity": WAITS, "call": "nanosleep", "stage": MpiStage.BEFORE},
            "rank-before-mpi",
            "has not reached MPI_Init: it sleeps (nanosleep)",
        ),
        (
            {"stage": MpiStage.BEFORE, "program": "sh"},
            "rank-before-mpi",
            "runs sh, not train; it has not reached MPI_Init: it is busy",
        ),
        (
            {"activity": WAITS, "call": "wait4", "stage": MpiStage.LEFT},
            "rank-left-mpi",
            "has left MPI (MPI_Finalize): it waits in wait4",
        ),
        ({"program": "other"}, "rank-program", "runs other, the others train"),
    ],
)
def test_the_odd_one(odd: dict[str, object], check: str, message: str) -> None:
    (found,) = judged(job(**odd))
    assert found.check == check
    assert found.message == f"rank 3 on w-1 (pid 103) {message}{REST}"
    assert found.host == "w-1"
    assert found.hint
    assert "PID" not in found.hint


def test_where_all_wait_the_one_that_works_is_odd() -> None:
    ranks = [replace(item, activity=WAITS, call="poll") for item in job()[:3]]
    (found,) = judged([*ranks, job()[3]])
    assert (found.check, found.level) == ("rank-busy-alone", Level.WARN)
    assert found.message == "rank 3 on w-1 (pid 103) is busy; the other 3 wait"


def test_reading_is_nothing_odd_where_most_read() -> None:
    reads = {"activity": WAITS, "call": "read", "file": "/data/x"}
    assert judged([replace(item, **reads) for item in job()]) == ()  # type: ignore[arg-type]


def test_before_mpi_is_nothing_odd_where_nobody_is_in_it() -> None:
    assert judged([replace(item, stage=MpiStage.BEFORE) for item in job()]) == ()


def test_several_that_are_alike_are_one_line() -> None:
    ranks = [replace(item, activity=Activity.STOPPED) for item in job()[:2]] + job()[2:]
    (found,) = judged(ranks)
    message = "each of 2 ranks (0-1, on w-0) is stopped by a signal; the other 2 are busy"
    assert found.message.startswith(message)
    assert found.evidence == ("rank 0 on w-0 (pid 100)", "rank 1 on w-0 (pid 101)")


def test_the_others_are_told_apart() -> None:
    ranks = job(activity=Activity.STOPPED)
    ranks[0] = replace(ranks[0], activity=WAITS, call="futex")
    first, second = judged(ranks)
    assert first.message.endswith("; of the other 3 2 are busy and 1 wait")
    assert second.check == "rank-apart"


def test_two_ranks() -> None:
    ranks = [job()[0], replace(job()[1], activity=WAITS)]
    (found,) = judged([replace(item, size=2) for item in ranks])
    end = "rank 1 on w-0 (pid 101) waits; the other one is busy, as a rank waiting in MPI is"
    assert found.message == end


def test_ranks_that_are_not_there() -> None:
    (found,) = judged(job()[:2])
    assert (found.check, found.message) == ("rank-missing", "ranks 2-3 of 4 are missing")
    (found,) = judged(job()[:3])
    assert found.message == "rank 3 of 4 is missing"
    (found,) = judged(job()[:2], unasked=("w-1",))
    message = "ranks 2-3 of 4 are missing; 1 host could not be asked (w-1)"
    assert found.message == message


def test_a_pod_knows_how_many_are_its_own() -> None:
    assert judged(job()[:2], all_hosts=False) == ()
    (found,) = judged(job()[:1], all_hosts=False)
    assert found.message == "1 of this pod's 2 ranks are running"


def test_two_launches_are_judged_apart() -> None:
    other = [replace(item, job="b", program="other", activity=WAITS) for item in job()]
    assert judged([*job(), *other]) == ()


def test_connections_that_nobody_answers() -> None:
    """The end that most have in common comes first; its name is known by its own connections."""
    ranks = job()
    lost = SilentConnection("10.0.0.1", "10.0.0.9", 1024, 6)
    ranks[0] = replace(ranks[0], unanswered=(lost, replace(lost, port=1025, new=True)))
    back = SilentConnection("10.0.0.9", "10.0.0.1", 1024, 4)
    ranks[3] = replace(ranks[3], unanswered=(back,))
    first, second = judged(ranks)
    assert first.check == second.check == "data-unanswered"
    assert {first.host, second.host} == {"w-0", "w-1"}
    to = first if first.host == "w-1" else second
    assert to.message == "w-1 does not answer 2 connections of ranks"
    assert to.evidence == (
        "rank 0 on w-0: 10.0.0.1 -> 10.0.0.9 port 1024, repeated what it sent 6 times",
        "rank 0 on w-0: 10.0.0.1 -> 10.0.0.9 port 1025, asked for a connection 6 times",
    )


def test_an_unknown_end_is_its_address() -> None:
    lost = SilentConnection("10.0.0.1", "10.0.0.9", 1024, 6)
    (found,) = judged(job(unanswered=(lost,)))
    assert (found.message, found.host) == ("10.0.0.9 does not answer 1 connection of ranks", "")


def test_an_end_is_known_by_its_host() -> None:
    ranks = job(unanswered=(SilentConnection("10.0.0.1", "10.0.0.9", 1024, 6),))
    there = HostRanks("w-0", tuple(ranks[:2]), addresses=("10.0.0.9",))
    (found,) = judge.judge([there, HostRanks("w-1", tuple(ranks[2:]))], all_hosts=True)
    assert (found.message, found.host) == ("w-0 does not answer 1 connection of ranks", "w-0")


def hosts(*rates: float, state: str = "up") -> list[HostRanks]:
    return [
        HostRanks(
            f"w-{n}",
            (replace(BUSY, number=n, host=f"w-{n}", size=len(rates)),),
            (LinkRates("net1", rate, 0.0, "up" if n else state),),
        )
        for n, rate in enumerate(rates)
    ]


def test_a_link_that_is_down_and_up_elsewhere() -> None:
    (found,) = judge.judge(hosts(0, 0, state="down"), all_hosts=True)
    assert (found.check, found.host) == ("link-down", "w-0")
    assert judge.judge(hosts(0, state="down"), all_hosts=True) == ()


def test_a_host_whose_counters_stand_still() -> None:
    (found,) = judge.judge(hosts(10, 5e6, 6e6), all_hosts=True)
    assert (found.check, found.host, found.level) == ("host-still", "w-0", Level.WARN)
    assert judge.judge(hosts(10, 5e6), all_hosts=True) == ()  # two: nobody is the odd one
    assert judge.judge(hosts(10, 10, 10), all_hosts=True) == ()
    assert judge.judge(hosts(5e6, 5e6, 6e6), all_hosts=True) == ()


@pytest.mark.parametrize(
    ("of", "text"),
    [([], ""), ([3], "3"), ([0, 1, 2], "0-2"), ([5, 0, 1], "0-1, 5"), ([0, 2, 4], "0, 2, 4")],
)
def test_numbers(of: list[int], text: str) -> None:
    assert judge.numbers(of) == text


@pytest.mark.parametrize(
    ("activity", "more", "message"),
    [
        (Activity.BUSY, {}, "is busy"),
        (Activity.STOPPED, {"call": "read"}, "is stopped"),
        (Activity.TRACED, {}, "is held by a debugger"),
        (Activity.ENDED, {}, "is ended"),
        (Activity.KERNEL, {"place": "nfs_wait"}, "waits (nfs_wait)"),
        (Activity.WAITS, {"call": "read", "file": "/d/x", "place": "y"}, "waits in read of /d/x"),
        (Activity.WAITS, {"call": "nanosleep", "place": "y"}, "sleeps (nanosleep)"),
    ],
)
def test_what_a_rank_does(activity: Activity, more: dict[str, str], message: str) -> None:
    rank = replace(BUSY, activity=activity, **more)  # type: ignore[arg-type]
    assert judge.doing(rank) == message
