"""Which ranks are accused, and which are shown first, by values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mpiboot.core.model import Finding, Level
from mpiboot.doctor import ranks_judge as judge
from mpiboot.doctor.ranks_answer import HostRanks, Rank, RankState

RUNNING = Rank(0, "w-0", 100, "job", 4, 2, "train")
SLEEPS: dict[str, object] = {"state": RankState.SLEEPING}


def job(last: dict[str, object], **all_: object) -> list[Rank]:
    """Four ranks, two a host; the last one differs."""
    ranks = [
        replace(RUNNING, number=n, host=f"w-{n // 2}", pid=100 + n, **all_)  # type: ignore[arg-type]
        for n in range(4)
    ]
    return [*ranks[:3], replace(ranks[3], **last)]  # type: ignore[arg-type]


def judged(ranks: list[Rank], **given: object) -> tuple[Finding, ...]:
    names = list(dict.fromkeys(item.host for item in ranks))
    hosts = [HostRanks(name, tuple(item for item in ranks if item.host == name)) for name in names]
    return judge.judge(hosts, **{"all_hosts": True, **given})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "ranks",
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
def test_nobody_else_is_accused(ranks: list[Rank]) -> None:
    assert judged(ranks) == ()


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
    ("ranks", "given", "message"),
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
def test_ranks_that_are_nowhere(ranks: list[Rank], given: dict[str, object], message: str) -> None:
    (found,) = judged(ranks, **given)
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
    ordered = judge.differing_first([*other, *job(SLEEPS)])
    assert [(item.job, item.number) for item, _ in ordered[:3]] == [
        ("job", 3),
        ("job", 0),
        ("job", 1),
    ]
    assert [differs for _, differs in ordered] == [True] + [False] * 7
