"""What hosts answer beside the job and at its end; each is a script here."""

from __future__ import annotations

import json
import os
import socket
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

OOM = "out of memory: the kernel killed a process of this pod since the hosts were checked"
HANGS = "exec sleep 300"


def counted(**record: object) -> str:
    return f"echo 'mpiboot-answer {json.dumps({'version': 1, **record})}'"


KILLED = counted(oom_kills=2)
COUNTED = (CountedPort("eth0", "eth0", data=True, rdma=False),)


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hosts:
    for name in ("SECONDS", "_ANSWER_S"):
        monkeypatch.setattr(workers, name, 120.0)  # the machines are shared
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
    found = hosts.facts(made, "/no/such")
    assert found["w-0"].lacks == "the program /no/such does not exist"
    assert found["w-4"] == HostFacts("w-4", True, memory=OOM)
    assert found["w-1"] == HostFacts("w-1", True)
    assert found["w-2"].answered is False


def test_a_host_that_hangs_is_left_out_and_its_command_ends(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "SECONDS", 1.0)
    made = (hosts.answers("w-0", HANGS), hosts.answers("w-1", HANGS))
    assert [found.answered for found in hosts.facts(made).values()] == [False, False]
    there = hosts.workers(*(replace(host, mpiboot=True, counted=COUNTED) for host in made))
    hosts.run(there.notify("", 0, ""))
    hosts.run(there.count(strict=False))


def test_the_name_of_a_host_that_gives_no_answer_is_resolved(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod that is being deleted may still answer, and its answer counts."""

    def resolve(*_: object, **__: object) -> list[tuple[object, ...]]:
        raise socket.gaierror(socket.EAI_NONAME, "no")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    host = replace(hosts.answers("w-1", KILLED), dns="w-1.job")
    assert hosts.facts((host,))["w-1"] == HostFacts("w-1", True, memory=OOM)
    monkeypatch.setattr(workers, "_ANSWER_S", 1.0)
    found = hosts.facts((replace(hosts.answers("w-0", HANGS), dns="w-0.job"),))["w-0"]
    assert (found.answered, found.memory) == (False, "")
    assert found.gone.startswith("its name no longer resolves")


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
    found = hosts.run(workers.ranks())
    assert {name: answer.ranks for name, answer in found.items()} == {
        "w-0": 2,
        "w-1": 0,
        "w-3": None,
    }
    assert found["w-1"].libraries == ("connected", "libmpi.so.12")
