from __future__ import annotations

from pathlib import Path

from mpiboot.supervisor.host_watch import UnusedHosts
from mpiboot.supervisor.mpirun_messages import host_of

HOSTS = ("w-0.job.ns.svc", "w-1.job.ns.svc", "w-2.job.ns.svc")
ONE, TWO, THREE = HOSTS


def started(*names: str) -> UnusedHosts:
    hosts = UnusedHosts(HOSTS)
    for name in names:
        hosts.started(name)
    return hosts


def test_hosts_without_an_agent_are_named_once() -> None:
    hosts = started(TWO, THREE)
    assert hosts.message({}) == "mpirun started no daemon on 1 of 3 hosts: w-0.job.ns.svc"
    assert hosts.message({}) == ""
    assert started(*HOSTS).message({}) == ""


def test_ranks_say_more_than_agents() -> None:
    """A host that is not known to have none, and had an agent, is not named."""
    hosts = started(*HOSTS)
    assert hosts.message({ONE: 0, TWO: 0}) == ""  # none has started yet
    assert hosts.message({ONE: 2, TWO: 0}) == "no rank runs on 1 of 3 hosts: w-1.job.ns.svc"
    assert started(ONE).message({ONE: 2}) == (
        "no rank runs on 2 of 3 hosts: w-1.job.ns.svc, w-2.job.ns.svc"
    )
    # As an MPI whose daemons another agent than mpiboot's has started.
    assert started().message(dict.fromkeys(HOSTS, 1)) == ""


def test_who_was_asked_is_not_named_by_agents_at_the_end() -> None:
    hosts = started(ONE)
    assert hosts.message(dict.fromkeys(HOSTS, 1)) == ""
    assert hosts.message({}) == ""


def test_the_table_of_ranks_is_read_as_mpirun_writes_it(tmp_path: Path) -> None:
    assert host_of(str(tmp_path), 1) == ""
    rows = (
        "(rank, host, exe, pid) = (0, w-0, ./x, 7)",
        "(rank, host, exe, pid) = (1, w-1, ./x, 8)",
    )
    (tmp_path / "placement").write_text("MPIR\n" + "\n".join(rows) + "\n")
    assert (host_of(str(tmp_path), 1), host_of(str(tmp_path), 2)) == ("w-1", "")
