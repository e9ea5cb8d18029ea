"""What hosts are asked and told, beside the job and at its end: each is a script here."""

from __future__ import annotations

import json
import os
import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from mpiboot.core.launch_names import LAUNCH_ID
from mpiboot.hosts import host_shell
from mpiboot.hosts.host_shell import JOB_IS_OVER
from mpiboot.network.counters import QUESTION, CountedPort
from mpiboot.ssh import pool
from mpiboot.supervisor import ask_workers
from mpiboot.supervisor.ask_workers import Workers
from mpiboot.supervisor.evidence import HostSnapshot
from mpiboot.supervisor.state import HostFacts
from tests.supervisor.answering import Hosts, pool_for
from tests.waiting import until

OOM = "out of memory: the kernel killed a process of this pod since the hosts were checked"
HANGS = "exec sleep 300"
COUNTED = (CountedPort("eth0", "eth0", data=True, rdma=False),)


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hosts:
    monkeypatch.setattr(ask_workers, "SECONDS", 120.0)  # the machines are shared
    return Hosts(tmp_path)


def calls(script: str) -> str:
    return script.rpartition("\n")[2]


def test_each_host_says_what_explains_the_end(hosts: Hosts) -> None:
    made = (
        hosts.answers("w-0", "echo mpiboot-lacks file ./p"),
        hosts.answers("w-1", "echo mpiboot-oom 1"),
        hosts.before("w-2"),
        hosts.answers("w-3", "echo mpiboot-oom 1"),
        hosts.answers("w-4", "echo mpiboot-oom 2"),
    )
    told = hosts.facts(made, "", "w-3")
    assert told["w-0"] == HostFacts("w-0", True, lacks="the program ./p does not exist")
    assert told["w-4"] == HostFacts("w-4", True, memory=OOM)
    assert (told["w-1"], told["w-3"]) == (HostFacts("w-1", True), HostFacts("w-3", True))
    assert told["w-2"].answered is False
    assert set(hosts.asked()) == {"w-0", "w-1", "w-2", "w-3", "w-4"}


def test_kubectl_has_the_launchers_own_environment_not_mpiruns(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the API server is must not reach ranks, and mpirun's becomes the launcher's."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    host = hosts.answers("w-0", "echo $KUBERNETES_SERVICE_HOST")
    made = pool_for(hosts.folder, {})
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    assert hosts.run(made.run(host.name, "{ true; exit 0; }", 60)).answer == "10.96.0.1\n"


def test_hosts_are_asked_for_the_program(hosts: Hosts) -> None:
    host = hosts.answers("w-0", 'eval "$script"')
    found = hosts.facts((host,), "/no/such")
    assert found["w-0"].lacks == "the program /no/such does not exist"


def test_a_host_that_hangs_is_left_out_and_its_command_ends(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ask_workers, "SECONDS", 1.0)
    made = (hosts.answers("w-0", HANGS), hosts.answers("w-1", HANGS))
    assert [found.answered for found in hosts.facts(made).values()] == [False, False]
    counted = [replace(host, mpiboot=True, counted=COUNTED) for host in made]
    there = hosts.workers(*counted)
    hosts.run(there.notify("", 0, ""))
    hosts.run(there.count(strict=False))


def test_a_host_whose_name_has_gone_is_not_waited_for(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer would take 300 s; the command that asks for it ends."""
    hosts.answers("w-0", f": > began; {HANGS}")

    def resolve(*_: object, **__: object) -> list[tuple[object, ...]]:
        until((hosts.folder / "began").exists)
        raise socket.gaierror(socket.EAI_NONAME, "no")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    found = hosts.facts((hosts.before("w-0", dns="w-0.job"),))["w-0"]
    assert (found.answered, found.memory) == (False, "")
    assert found.gone.startswith("its name does not resolve any more")


def test_an_answer_counts_whatever_its_name_does(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nameservers that need 6 s, and a pod that is being deleted but still there."""
    over = threading.Event()

    def slow(*_: object, **__: object) -> list[tuple[object, ...]]:
        over.wait(60)
        raise socket.gaierror(socket.EAI_NONAME, "no")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    host = replace(hosts.answers("w-0", "echo mpiboot-oom 2"), dns="w-0.job")
    told: list[HostFacts] = []

    def tell(facts: HostFacts) -> None:
        told.append(facts)
        over.set()

    hosts.run(hosts.workers(host).after_job(("",), tell))
    assert told == [HostFacts("w-0", True, memory=OOM)]
    # The name has gone first: what the host says a moment later counts.
    monkeypatch.setattr(ask_workers, "_AFTER_NAME_S", 60.0)
    assert hosts.facts((host,))["w-0"] == HostFacts("w-0", True, memory=OOM)


def test_a_name_that_leads_to_the_same_address_leaves_the_answer(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts.answers("w-0", "echo mpiboot-oom 2")
    same = [(2, 1, 6, "", ("10.0.0.2", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: same)
    found = hosts.facts((hosts.before("w-0", dns="w-0.job"),))
    assert found["w-0"] == HostFacts("w-0", True, memory=OOM)


def test_those_that_may_be_to_blame_are_asked_first_and_all_in_the_end(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_MAX_KUBECTLS", 1)
    note = 'echo "$host" >> order; echo mpiboot-oom 1'
    made = [hosts.answers(f"w-{number}", note) for number in range(6)]
    assert all(found.answered for found in hosts.facts(made, "", "w-3", "w-5").values())
    order = (hosts.folder / "order").read_text().split()
    assert order == ["w-3", "w-5", "w-0", "w-1", "w-2", "w-4"]


def test_who_was_not_asked_in_time_is_not_known(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_MAX_KUBECTLS", 2)
    monkeypatch.setattr(ask_workers, "SECONDS", 1.0)
    made = tuple(hosts.answers(f"w-{number}", HANGS) for number in range(5))
    answered = [found.answered for found in hosts.facts(made).values()]
    assert sorted(answered, key=str) == [False, False, None, None, None]


@pytest.mark.parametrize(
    ("why", "order"),
    [("", host_shell.order(JOB_IS_OVER)), ("no", host_shell.job_failed("l@1@a", 60, "no"))],
)
def test_workers_that_run_mpiboot_are_told_of_the_end_and_no_others(
    hosts: Hosts, why: str, order: str
) -> None:
    made = [hosts.before(f"w-{number}", mpiboot=number != 1) for number in range(3)]
    hosts.run(hosts.workers(*made).notify("l@1@a", 60, why))
    assert hosts.asked() == dict.fromkeys(("w-0", "w-2"), calls(order))


def test_counters_are_read_on_the_hosts_that_have_some(hosts: Hosts) -> None:
    before = {"eth0": {"rx_bytes": 1, "tx_bytes": 7}}
    line = "echo /proc/net/dev:eth0: 7 0 0 0 0 0 0 0 9 0"
    made = [
        replace(hosts.answers(name, line), counted=COUNTED, counters=before)
        for name in ("w-0", "w-1")
    ]
    found = hosts.run(hosts.workers(*made, hosts.before("w-2")).count(strict=False))
    assert hosts.asked() == dict.fromkeys(("w-0", "w-1"), calls(host_shell.order(QUESTION)))
    assert found
    assert [found["hosts"][name]["eth0"]["sent"] for name in ("w-0", "w-1")] == [2, 2]
    assert hosts.run(hosts.workers(hosts.before("w-2")).count(strict=True)) is None


def test_the_launcher_itself_is_asked_by_its_own_shell_in_mpiruns_environment(hosts: Hosts) -> None:
    here = replace(hosts.before("me"), here=True)
    environ = {**os.environ, "OF_MPIRUN": "1"}
    said = pool_for(hosts.folder, environ).run(here.reached_as, "echo $OF_MPIRUN", 60)
    assert hosts.run(said).answer == "1\n"
    assert hosts.asked() == {}


def test_each_host_tells_how_many_ranks_it_has_and_of_some_it_is_not_known(hosts: Hosts) -> None:
    """Where mpiboot does not run processes may be hidden: none that is seen proves nothing."""

    def answers(name: str, **record: object) -> HostSnapshot:
        found = json.dumps({"version": 1, **record})
        return hosts.answers(name, f"echo 'mpiboot-answer {found}'")

    made = (
        answers("w-0", ranks=2),
        answers("w-1", ranks=0, libraries=["connected", "libmpi.so.12"]),
        answers("bare"),
        replace(answers("w-3"), mpiboot=True),
        replace(hosts.answers("older", "echo mpiboot-answer"), mpiboot=True),
        hosts.before("gone", mpiboot=True),
    )
    workers = Workers(pool_for(hosts.folder), made, {LAUNCH_ID: "a-launch"})
    assert hosts.run(workers.ranks()) == [
        ("w-0", 2, ()),
        ("w-1", 0, ("connected", "libmpi.so.12")),
        ("w-3", None, ()),
    ]
