"""Why a job is ended that has not ended by itself, word by word."""

from __future__ import annotations

import errno
from dataclasses import replace

from mpiboot.supervisor import verdict as verdicts
from mpiboot.supervisor.state import (
    AgentConnected,
    AgentEnded,
    AgentStarted,
    RanksCounted,
    Timer,
    TimerFired,
    Verdict,
    pod_ending,
)
from tests.supervisor.test_job import begun, go, job


def test_a_launch_that_took_too_long_tells_how_far_each_of_some_hosts_came() -> None:
    hosts = tuple(f"w-{number}" for number in range(1, 12))
    start = begun(replace(job(hosts=hosts), launch_timeout=90.5))
    events = [AgentEnded("w-3", 1, 0), AgentConnected("w-4"), TimerFired(Timer.LAUNCH)]
    counted = RanksCounted(dict.fromkeys(hosts[2:]))
    state, _ = go([*(AgentStarted(host, 1) for host in hosts), *events, counted], start)
    found = state.cause
    assert found
    assert found.message == (
        "w-3, w-4, w-5, w-6, w-7, w-8, w-9, w-10 and 1 more (9 of 11 remote hosts): no orted runs "
        "there 1m30s after mpirun's start"
    )
    assert found.evidence[:3] == (
        "w-3: its agent ended with 0",
        "w-4: its agent was started, and is connected",
        "w-5: its agent was started, and is not connected",
    )
    assert len(found.evidence) == 8
    assert (found.code, found.reference) == (69, "launch-timeout")


def test_the_other_causes_in_words() -> None:
    assert verdicts.not_startable(
        "/x/mpirun", OSError(errno.EACCES, "Permission denied")
    ) == Verdict(127, "program-missing", "/x/mpirun: Permission denied: mpirun was not started")
    assert pod_ending("w-1") == Verdict(
        69,
        "host-lost",
        "its pod is being terminated (deleted, drained or preempted), and so the job was ended",
        "w-1",
        gone=True,
    )
