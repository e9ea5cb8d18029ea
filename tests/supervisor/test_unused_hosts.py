from __future__ import annotations

import pytest

from mpiboot.supervisor.host_watch import unused_hosts

ONE, TWO, THREE = HOSTS = ("w-0.job.ns.svc", "w-1.job.ns.svc", "w-2.job.ns.svc")


@pytest.mark.parametrize(
    ("ranks", "without_agent", "message"),
    [
        # At the end of a job whose hosts were not asked.
        ({}, [ONE], "mpirun started no daemon on 1 of 3 hosts: w-0.job.ns.svc"),
        ({}, [], ""),
        # None has started yet.
        ({ONE: 0, TWO: 0}, [], ""),
        # Of the third one nothing is known, but that mpirun has started an agent for it, or none.
        ({ONE: 2, TWO: 0}, [], "no rank runs on 1 of 3 hosts: w-1.job.ns.svc"),
        ({ONE: 2, TWO: 0}, [THREE], "no rank runs on 2 of 3 hosts: w-1.job.ns.svc, w-2.job.ns.svc"),
        # An MPI whose daemons another agent than mpiboot's has started.
        (dict.fromkeys(HOSTS, 1), HOSTS, ""),
    ],
)
def test_hosts_without_a_rank_are_named(
    ranks: dict[str, int], without_agent: list[str], message: str
) -> None:
    assert unused_hosts(HOSTS, ranks, without_agent) == message
