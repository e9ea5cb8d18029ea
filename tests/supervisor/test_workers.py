"""What hosts answer beside the job and at its end, and ranks that save; each is a script here."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mpiboot.core.facts import HostAnswer
from mpiboot.core.launch_spec import LAUNCH_ID
from mpiboot.hosts import host_shell
from mpiboot.hosts.dns import DnsAnswer, NoAddress, Resolver
from mpiboot.hosts.host_shell import JOB_IS_OVER
from mpiboot.network.records import CountedPort
from mpiboot.ssh import pool
from mpiboot.supervisor import workers
from mpiboot.supervisor.evidence import HostSnapshot
from mpiboot.supervisor.job import HostFacts, RanksLeft
from mpiboot.supervisor.workers import Saving, StopScript, Workers
from mpiboot.system import processes
from tests.supervisor.answering import Hosts, gone, left, pool_for, state
from tests.waiting import until, until_in_loop

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
    reasons = [NoAddress.TIMEOUT, NoAddress.NXDOMAIN]

    async def resolve(_: Resolver, __: str) -> DnsAnswer:
        return DnsAnswer(reason=reasons.pop())

    monkeypatch.setattr(Resolver, "resolve", resolve)
    loaded = list[str]()  # what does that, while hosts are queried
    monkeypatch.setattr(workers, "import_module", loaded.append)
    host = replace(hosts.answers("w-1", KILLED), dns="w-1.job")
    assert hosts.facts((host,))["w-1"] == HostFacts("w-1", True, memory=OOM)
    monkeypatch.setattr(workers, "_ANSWER_S", 1.0)
    for why in ("its name no longer resolves", ""):
        found = hosts.facts((replace(hosts.answers("w-0", HANGS), dns="w-0.job"),))["w-0"]
        assert (found.answered, found.memory, found.gone[:27]) == (False, "", why)
    assert loaded == ["dns.asyncresolver"] * 3


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
    before = HostAnswer(counters={"eth0": {"rx_bytes": 1, "tx_bytes": 7}})
    line = counted(counters={"eth0": {"rx_bytes": 7, "tx_bytes": 9}})
    names, bare = ("w-0", "w-1"), hosts.before("w-2")
    made = [replace(hosts.answers(x, line), counted=COUNTED, answer=before) for x in names]
    found = hosts.run(hosts.workers(*made, bare).count(strict=False))
    assert hosts.asked().keys() == {*names}
    assert found
    assert [found["hosts"][name]["eth0"]["sent"] for name in names] == [2, 2]
    assert hosts.run(hosts.workers(bare).count(strict=True)) is None


def test_the_launcher_itself_is_queried_by_its_own_shell_in_mpiruns_environment(
    hosts: Hosts,
) -> None:
    here = HostSnapshot("me", answer=HostAnswer(oom_kills=-1), here=True)
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
    found = hosts.run(Workers(pool_for(hosts.folder), made, {LAUNCH_ID: "a-launch"}).ranks())
    assert {name: answer.ranks for name, answer in found.items()} == {
        "w-0": 2,
        "w-1": 0,
        "w-3": None,
    }
    assert found["w-1"].libraries == ("connected", "libmpi.so.12")


# Writes how many ranks there are, at first and for each line: a file has the number.
COUNTS = "say() { echo ranks $(cat $host-left); }; say; while read -r _; do say; done"


class Rig(Hosts):
    """An mpirun, the ranks of several hosts, and the numbers that were reported."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.mpirun = subprocess.Popen(["sleep", "1000"])
        self.numbers: list[int | None] = []
        self.unread = False
        self.hosts: list[HostSnapshot] = [self.before("gone")]
        self.saving = Saving(self.scripts, lambda: [self.mpirun.pid], self.note, None)

    def note(self, event: RanksLeft) -> None:
        self.numbers.append(event.ranks)

    def scripts(self, number: int) -> list[Coroutine[Any, Any, StopScript]]:
        assert number == signal.SIGUSR1
        to = pool_for(self.folder)
        return [StopScript.start(to, host, "{ stop; exit 0; }") for host in self.hosts]

    def host(self, name: str, left: int, text: str = COUNTS) -> None:
        self.left(name, left)
        self.hosts.append(self.answers(name, text))

    def left(self, name: str, left: int) -> None:
        path = self.folder / f"{name}-new"
        path.write_text(str(left))
        path.rename(self.folder / f"{name}-left")

    def start(self) -> None:
        self.saving.start(signal.SIGUSR1)
        self.becomes(held=True)

    async def reported(self, number: int | None) -> None:
        await until_in_loop(lambda: number in self.numbers)

    def held(self) -> bool:
        """Whether mpirun is stopped."""
        return state(self.mpirun.pid) == "T"

    def becomes(self, held: bool) -> None:  # noqa: FBT001
        until(lambda: self.held() == held)

    async def stays_held(self) -> None:
        """It is held whenever one looks, for longer than all intervals."""
        for _ in range(20):
            await asyncio.sleep(0.05)
            assert self.held()


@pytest.fixture
async def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    before, made = left(), Rig(tmp_path)
    monkeypatch.setattr(workers, "unread", lambda _: made.unread)
    yield made
    made.saving.release()
    # Nothing of a command stays open.
    await until_in_loop(lambda: left() <= before and all(map(gone, made.pids())))
    made.mpirun.kill()
    made.mpirun.wait()


async def test_numbers_are_reported_as_they_come_and_the_last_one_is_0(rig: Rig) -> None:
    rig.host("w-0", 2)
    rig.host("w-1", 3)
    rig.start()
    await rig.reported(5)
    rig.left("w-0", 0)
    await rig.reported(3)
    rig.left("w-1", 0)
    await rig.reported(0)
    assert rig.held(), "whoever gets that number releases mpirun"
    assert list(dict.fromkeys(rig.numbers)) == [5, 3, 0]


async def test_a_release_ends_the_count(rig: Rig) -> None:
    rig.host("w-0", 1)
    rig.start()
    await rig.reported(1)


async def test_mpirun_runs_while_it_has_something_to_read_and_every_rank_is_there(rig: Rig) -> None:
    rig.host("w-0", 1)
    rig.start()
    await rig.reported(1)
    await rig.stays_held()
    rig.unread = True
    await until_in_loop(lambda: not rig.held())
    rig.unread = False
    await until_in_loop(rig.held)
    await rig.stays_held()
    # What comes after a rank's end could be the order to kill the others.
    rig.left("w-0", 0)
    rig.unread = True
    await rig.reported(0)


@pytest.mark.parametrize("ranks", [None, 4])
async def test_once_a_rank_has_ended_mpirun_stays_held(rig: Rig, ranks: int | None) -> None:
    rig.saving.ranks = ranks
    rig.host("w-0", 3)
    rig.start()
    await rig.reported(3)
    if ranks is None:  # else one of those that were started had ended before
        rig.left("w-0", 2)
        await rig.reported(2)
    rig.unread = True
    await rig.stays_held()


@pytest.mark.parametrize("text", ["exec sleep 300", "head -c 200000 /dev/zero"])
async def test_a_host_that_hangs_or_writes_too_much_keeps_no_others_from_saving(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(workers, "_LOGIN_S", 2.0)
    rig.host("w-0", 1)
    rig.host("w-1", 1, text)
    rig.start()
    await rig.reported(1)
    rig.left("w-0", 0)
    await rig.reported(0)


def fail(*_: object) -> Any:  # noqa: ANN401 - in the place of something
    raise KeyError("odd")


@pytest.mark.parametrize(("text", "number"), [(COUNTS, 0), ("exec sleep 300", None)])
async def test_where_ranks_can_not_be_counted_mpirun_is_not_left_held(
    rig: Rig,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    text: str,
    number: int | None,
) -> None:
    """Whoever gets 0 or None releases it."""
    monkeypatch.setattr(workers, "unread", fail)
    monkeypatch.setattr(workers, "_LOGIN_S", 60.0 if number == 0 else 0.5)
    rig.host("w-0", 1, text)
    rig.start()
    await rig.reported(number)
    rig.saving.release()
    rig.becomes(held=False)
    message = capfd.readouterr().err
    assert ("[bug] letting ranks save failed at" in message) == (number == 0)
