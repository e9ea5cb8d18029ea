from __future__ import annotations

from pathlib import Path

from mpiboot.supervisor.host_watch import UnusedHosts
from mpiboot.supervisor.mpirun_messages import host_of, hosts_with_ranks

HOSTS = ("w-0.job.ns.svc", "w-1.job.ns.svc", "w-2.job.ns.svc")


def test_hosts_without_an_agent_are_named_once() -> None:
    hosts = UnusedHosts(HOSTS)
    hosts.started("w-1.job.ns.svc")
    hosts.started("w-2")  # as an mpirun that cuts names calls it
    assert hosts.message(()) == "mpirun started nothing on 1 of 3 hosts: w-0.job.ns.svc"
    assert hosts.message(()) == ""


def test_mpiruns_own_table_of_ranks_says_more_than_agents_and_may_come_later() -> None:
    hosts = UnusedHosts(HOSTS)
    for name in HOSTS:
        hosts.started(name)
    assert hosts.message(()) == ""
    message = "mpirun put no rank on 2 of 3 hosts: w-1.job.ns.svc, w-2.job.ns.svc"
    assert hosts.message({"w-0.job.ns.svc"}) == message


def test_where_every_host_is_used_or_the_plan_knows_nothing_is_said() -> None:
    assert UnusedHosts(HOSTS).message(HOSTS) == ""
    assert UnusedHosts(()).message(()) == ""


def test_the_table_of_ranks_is_read_as_mpirun_writes_it(tmp_path: Path) -> None:
    assert hosts_with_ranks(str(tmp_path)) == frozenset()
    rows = (
        "(rank, host, exe, pid) = (0, w-0, ./x, 7)",
        "(rank, host, exe, pid) = (1, w-1, ./x, 8)",
    )
    (tmp_path / "placement").write_text("MPIR\n" + "\n".join(rows) + "\n")
    assert hosts_with_ranks(str(tmp_path)) == {"w-0", "w-1"}
    assert (host_of(str(tmp_path), 1), host_of(str(tmp_path), 2)) == ("w-1", "")
