"""What hosts answer beside the job and at its end; each is a script here."""

from __future__ import annotations

import json
import os
import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from mpiboot.core.launch_spec import LAUNCH_ID
from mpiboot.hosts import host_shell
from mpiboot.hosts.host_shell import JOB_IS_OVER
from mpiboot.network.records import CountedPort
from mpiboot.ssh import pool
from mpiboot.supervisor import workers
from mpiboot.supervisor.evidence import HostSnapshot
from mpiboot.supervisor.job import HostFacts
from mpiboot.supervisor.workers import Workers
from mpiboot.system import processes
from tests.supervisor.answering import Hosts, pool_for
from tests.waiting import until

OOM = "out of memory: the kernel killed a process of this pod since the hosts were checked"
HANGS = "exec sleep 300"


def counted(**record: object) -> str:
    return f"echo 'mpiboot-answer {json.dumps({'version': 1, **record})}'"


KILLED = counted(oom_kills=2)
COUNTED = (CountedPort("eth0", "eth0", data=True, rdma=False),)


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hosts:
    monkeypatch.setattr(workers, "SECONDS", 120.0)  # the machines are shared
    return Hosts(tmp_path)


def calls(script: str) -> str:
    return script.rpartition("\n")[2]


def test_each_host_reports_what_explains_the_end(hosts: Hosts) -> None:
    made = (
        hosts.answers("w-0", 'eval "$script"'),
        hosts.answers("w-1", counted(oom_kills=1)),
        hosts.before("w-2"),
        hosts.answers("w-4", KILLED),
    )
    found = hosts.facts(made, "/no/such", "w-1")
    assert found["w-0"].lacks == "the program /no/such does not exist"
    assert found["w-4"] == HostFacts("w-4", True, memory=OOM)
    assert found["w-1"] == HostFacts("w-1", True)
    assert found["w-2"].answered is False


def test_kubectl_has_the_launchers_own_environment_not_mpiruns(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the API server is must not reach ranks, and mpirun's becomes the launcher's."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    host = hosts.answers("w-0", "echo $KUBERNETES_SERVICE_HOST")
    made = pool_for(hosts.folder, {})
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    assert hosts.run(made.run(host.name, "{ true; exit 0; }", 60)).answer == "10.96.0.1\n"


def test_a_host_that_hangs_is_left_out_and_its_command_ends(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "SECONDS", 1.0)
    made = (hosts.answers("w-0", HANGS), hosts.answers("w-1", HANGS))
    assert [found.answered for found in hosts.facts(made).values()] == [False, False]
    there = hosts.workers(*(replace(host, mpiboot=True, counted=COUNTED) for host in made))
    hosts.run(there.notify("", 0, ""))
    hosts.run(there.count(strict=False))


def test_a_host_whose_name_has_gone_is_not_waited_for(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer would take 300 s; the command that waits for it ends."""
    hosts.answers("w-0", f": > began; {HANGS}")

    def resolve(*_: object, **__: object) -> list[tuple[object, ...]]:
        until((hosts.folder / "began").exists)
        raise socket.gaierror(socket.EAI_NONAME, "no")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    found = hosts.facts((hosts.before("w-0", dns="w-0.job"),))["w-0"]
    assert (found.answered, found.memory) == (False, "")
    assert found.gone.startswith("its name no longer resolves")


def test_an_answer_counts_whatever_its_name_does(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nameservers that need 6 s, and a pod that is being deleted but still there."""
    over = threading.Event()

    def slow(*_: object, **__: object) -> list[tuple[object, ...]]:
        over.wait(60)
        raise socket.gaierror(socket.EAI_NONAME, "no")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    host = replace(hosts.answers("w-0", KILLED), dns="w-0.job")
    reported: list[HostFacts] = []

    def report(facts: HostFacts) -> None:
        reported.append(facts)
        over.set()

    hosts.run(hosts.workers(host).after_job(("",), report))
    assert reported == [HostFacts("w-0", True, memory=OOM)]
    # The name has gone first: what the host answers a moment later counts.
    monkeypatch.setattr(workers, "_AFTER_NAME_S", 60.0)
    assert hosts.facts((host,))["w-0"] == HostFacts("w-0", True, memory=OOM)
    # It leads to the same address.
    same = [(2, 1, 6, "", ("10.0.0.2", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: same)
    assert hosts.facts((host,))["w-0"] == HostFacts("w-0", True, memory=OOM)


def test_those_that_may_be_to_blame_are_queried_first_and_all_in_the_end(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_MAX_KUBECTLS", 1)
    note = 'echo "$host" >> order; echo'
    made = [hosts.answers(f"w-{number}", note) for number in range(6)]
    assert all(found.answered for found in hosts.facts(made, "", "w-3", "w-5").values())
    order = (hosts.folder / "order").read_text().split()
    assert order == ["w-3", "w-5", "w-0", "w-1", "w-2", "w-4"]


def test_of_who_was_not_queried_in_time_nothing_is_known(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_MAX_KUBECTLS", 2)
    monkeypatch.setattr(workers, "SECONDS", 1.0)
    made = tuple(hosts.answers(f"w-{number}", HANGS) for number in range(5))
    answered = [found.answered for found in hosts.facts(made).values()]
    assert sorted(answered, key=str) == [False, False, None, None, None]


@pytest.mark.parametrize("why", ["", "no"])
def test_workers_that_run_mpiboot_are_notified_of_the_end_and_no_others(
    hosts: Hosts, why: str
) -> None:
    over, failed = host_shell.ask(JOB_IS_OVER), host_shell.job_failed("l@1@a", 60, "no")
    made = [hosts.before(f"w-{number}", mpiboot=number != 1) for number in range(3)]
    hosts.run(hosts.workers(*made).notify("l@1@a", 60, why))
    assert hosts.asked() == dict.fromkeys(("w-0", "w-2"), calls(failed if why else over))


def test_counters_are_read_on_the_hosts_that_have_some(hosts: Hosts) -> None:
    before = {"eth0": {"rx_bytes": 1, "tx_bytes": 7}}
    line = counted(counters={"eth0": {"rx_bytes": 7, "tx_bytes": 9}})
    names, bare = ("w-0", "w-1"), hosts.before("w-2")
    made = [replace(hosts.answers(x, line), counted=COUNTED, counters=before) for x in names]
    found = hosts.run(hosts.workers(*made, bare).count(strict=False))
    assert hosts.asked().keys() == {*names}
    assert found
    assert [found["hosts"][name]["eth0"]["sent"] for name in names] == [2, 2]
    assert hosts.run(hosts.workers(bare).count(strict=True)) is None


def test_the_launcher_itself_is_queried_by_its_own_shell_in_mpiruns_environment(
    hosts: Hosts,
) -> None:
    here = HostSnapshot("me", oom_kills=-1, here=True)
    environ = {**os.environ, "OF_MPIRUN": "1"}
    run = pool_for(hosts.folder, environ).run(here.reached_as, "echo $OF_MPIRUN", 60)
    assert hosts.run(run).answer == "1\n"
    # Its count of kills as it is now, whatever this machine's is.
    found = hosts.facts((here,))["me"]
    assert (found.here, found.answered) == (True, True)
    assert bool(found.memory) == (processes.memory_kills() is not None)
    assert hosts.asked() == {}


def test_each_host_reports_its_ranks_and_of_some_they_are_not_known(hosts: Hosts) -> None:
    """Where mpiboot does not run processes may be hidden: none that is seen proves nothing."""

    def answers(name: str, **record: object) -> HostSnapshot:
        return hosts.answers(name, counted(**record))

    made = (
        answers("w-0", ranks=2),
        answers("w-1", ranks=0, libraries=["connected", "libmpi.so.12"]),
        answers("bare"),
        replace(answers("w-3"), mpiboot=True),
        replace(hosts.answers("older", "echo mpiboot-answer"), mpiboot=True),
        hosts.before("gone", mpiboot=True),
    )
    workers = Workers(pool_for(hosts.folder), made, {LAUNCH_ID: "a-launch"})
    libraries = ("connected", "libmpi.so.12")
    found = hosts.run(workers.ranks())
    assert found == [("w-0", 2, ()), ("w-1", 0, libraries), ("w-3", None, ())]
