"""Why a job is ended that has not ended by itself, word by word."""

from __future__ import annotations

import errno
import os
from dataclasses import replace

from mpiboot.supervisor import judgement
from mpiboot.supervisor.state import (
    AgentStarted,
    RankEnd,
    RankEnded,
    Verdict,
)
from tests.supervisor.test_verdicts import go, job, running


def test_a_launch_that_took_too_long_tells_how_far_each_of_some_hosts_came() -> None:
    hosts = tuple(f"w-{number}" for number in range(1, 12))
    start = go([AgentStarted(host, n) for n, host in enumerate(hosts)], None)[0]
    state = replace(
        start,
        job=replace(job(hosts=hosts), launch_timeout=90.5),
        no_daemon=frozenset(hosts[1:]),
        no_agent=frozenset(hosts[1:2]),
        ended_unjoined=frozenset(hosts[2:3]),
        connected=frozenset(hosts[3:4]),
    )
    found = judgement.launch_timeout(state)
    assert found.message == (
        "w-3, w-4, w-5, w-6, w-7, w-8, w-9, w-10 and 1 more (9 of 11 remote hosts) did not join "
        "within 90.5 s after the last daemon that did"
    )
    assert found.evidence[:3] == (
        "w-3: its agent ended with 0, but no orted joined",
        "w-4: ssh is connected, but its orted has not joined",
        "w-5: its agent was started, but is not connected",
    )
    assert len(found.evidence) == 8
    assert (found.code, found.reference) == (69, "launch-timeout")


def test_the_other_causes_in_words() -> None:
    assert judgement.not_startable(
        ("/x/mpirun",), {}, OSError(errno.EACCES, "Permission denied")
    ) == Verdict(127, "program-missing", "/x/mpirun: Permission denied: mpirun was not started")
    assert judgement.pod_ending("w-1") == Verdict(
        69,
        "host-lost",
        "its pod was told to end (deleted, drained or preempted), and so was the job",
        "w-1",
        gone=True,
    )
    for how, words in (
        (RankEnd.SIGNAL, "was ended by a signal"),
        (RankEnd.ABORT, "called MPI_Abort"),
        (RankEnd.STATUS, "ended badly"),
    ):
        found = judgement.rank_ended_badly(go([RankEnded(1, how, "w-2")], running())[0])
        assert found.message == f"rank 1 {words}, but mpirun went on without it"
        assert (found.code, found.host, found.rank) == (69, "w-2", 1)


def test_what_is_too_long_for_the_kernel_is_named_with_its_size() -> None:
    wrong = OSError(errno.E2BIG, os.strerror(errno.E2BIG))
    environ = {"PATH": "/bin", "OMPI_MCA_x": "y" * (200 << 10)}
    found = judgement.not_startable(("mpirun", "-n", "2"), environ, wrong)
    assert found.code == 127
    assert found.message == (
        "mpirun: Argument list too long (the longest variable, OMPI_MCA_x, has 200 KiB, all of "
        "them 200 KiB, the command 9 bytes): mpirun was not started"
    )
