"""What a look at everything asks and hands on, with hosts that are written."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mpiboot.core.model import Finding, Host, Level, Mpi, PodFacts, Worker
from mpiboot.core.settings import resolve
from mpiboot.hosts import gate, hostfiles, remote_commands
from mpiboot.hosts.gate import DoctorLook, GateResult
from mpiboot.hosts.hostfiles import HostfilePath, JobHostfile
from mpiboot.hosts.pairs import PairCheck
from mpiboot.job.program_words import Rendezvous
from mpiboot.launcher import observation
from mpiboot.launcher.observation import Observation, find_hostfile
from mpiboot.launcher.setup import LauncherPod
from mpiboot.network import worker_pairs
from mpiboot.network.records import Transport, WorkerNetwork
from mpiboot.network.worker_pairs import Dial
from mpiboot.system.keys import JobKey
from tests.fakes import plans

SEEN = plans.observed()
DIALLED = cast("tuple[Dial, ...]", ("a dials b",))
NETWORKS = {"w-0": WorkerNetwork("w-0", None, 1, None, Transport.UNKNOWN)}
WARN = Finding("hostfile-invalid", Level.WARN, "two differ")


class Pairs:
    """A pair check that was asked for these workers."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    async def results(self, workers: object) -> tuple[Dial, ...]:
        self.asked.append(workers)
        return DIALLED

    async def blocked_on_data(self, workers: object) -> str:
        self.asked.append(workers)
        return "w-0 can't reach w-1"

    async def close(self) -> None:
        self.asked.append("closed")


def pod(folder: Path, environ: Mapping[str, str] = plans.POD, **flags: str) -> LauncherPod:
    key = JobKey(folder / "id", "ssh-ed25519 AAAA")
    return LauncherPod(resolve(flags, environ), environ, plans.ROOT, folder, key, 1000.0, 1)


@pytest.fixture
def pairs(monkeypatch: pytest.MonkeyPatch) -> Pairs:
    found = Pairs()
    monkeypatch.setattr(observation, "_pairs", lambda _: found)
    monkeypatch.setattr(observation, "access", lambda launcher: ("access", launcher))
    clock = SimpleNamespace(monotonic=lambda: 1010.0)
    monkeypatch.setattr(observation, "time", clock)
    return found


async def test_a_look_asks_every_host_once_and_hands_on_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pairs: Pairs
) -> None:
    given: list[tuple[Any, ...]] = []
    passed = GateResult(SEEN.workers, (), {}, {})

    async def hostfile(*message: object) -> JobHostfile:
        given.append(message)
        return JobHostfile(SEEN.hostfile, (WARN,))

    async def look(*message: object, **named: object) -> GateResult:
        given.append((*message, named))
        return passed

    (facts, _) = [worker.facts for worker in SEEN.workers]
    assert facts is not None
    monkeypatch.setattr(observation, "find_hostfile", hostfile)
    launcher = pod(tmp_path)
    program = ("/usr/bin/mpirun", "--hostfile", "/h", "./train")

    def mpi(*message: object) -> Mpi:
        assert message == (launcher, program)
        return SEEN.mpi

    def own_facts(message: object) -> tuple[PodFacts, int]:
        assert message is launcher
        return facts, 3

    monkeypatch.setattr(observation, "_mpi", mpi)
    monkeypatch.setattr(observation, "_own_facts", own_facts)
    monkeypatch.setattr(gate, "probe_once", look)
    doctor = DoctorLook(("own_values",))
    found = await observation.look(launcher, program, doctor)
    assert given == [
        (launcher.resolved, launcher.environ, 0.0, ("/h",)),
        (
            SEEN.hostfile.hosts,
            launcher.resolved.settings,
            ("access", launcher),
            {"mpirun": found.observed.line.daemons_mpirun, "pairs": pairs, "doctor": doctor},
        ),
    ]
    assert pairs.asked == [SEEN.workers, SEEN.workers, "closed"]
    assert found.observed.data_blocked == "w-0 can't reach w-1"
    assert (found.passed, found.dialled, found.warnings) == (passed, DIALLED, (WARN,))
    assert (found.observed.own, found.observed.own_oom_kills) == (facts, 3)
    assert (found.observed.line.argv, found.observed.networks) == (program, {})
    assert (found.already_said, found.pairs) == ((), None)


async def test_the_gates_of_a_script_have_what_is_left_of_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pairs: Pairs
) -> None:
    given: list[tuple[Any, ...]] = []
    passed, reached = GateResult(SEEN.workers, (), {}, {}), list[Worker]()
    listed = JobHostfile(SEEN.hostfile, ())

    async def hostfile(*message: object) -> JobHostfile:
        given.append(message)
        return listed

    async def wait(*message: object, **named: object) -> GateResult:
        given.append((*message, named))
        return passed

    def findings(*message: object) -> tuple[Finding, ...]:
        given.append(message)
        return ()

    monkeypatch.setattr(observation, "find_hostfile", hostfile)
    monkeypatch.setattr(gate, "wait", wait)
    monkeypatch.setattr(worker_pairs, "findings", findings)
    launcher = pod(tmp_path, timeout="60")
    assert await observation.pass_gates(launcher, reached) == passed
    first, (hosts, rest, to, named), last = given
    assert first == (launcher.resolved, launcher.environ, 50.0)
    assert (hosts, to) == (SEEN.hostfile.hosts, ("access", launcher))
    assert rest == replace(launcher.resolved.settings, timeout=50.0)
    assert (named["pairs"], named["reached"]) == (pairs, reached)
    assert named["follow"].found is listed
    assert pairs.asked == [SEEN.workers, "closed"]
    names = [worker.host.name for worker in SEEN.workers]
    assert last == (DIALLED, names, "what will be started is not known here")


async def test_the_hostfile_is_looked_for_where_the_settings_and_the_platform_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, Any]] = []
    listed, found = HostfilePath("l", "--replicas"), HostfilePath("p", "platform")
    launcher = pod(tmp_path, {"HYDRA_HOST_FILE": "/h"}, hostfile="/a/b")

    it = JobHostfile(SEEN.hostfile, ())

    async def find(*message: object, **named: object) -> JobHostfile:
        given.append({"message": message, **named})
        return it

    def by_platform(*message: object) -> HostfilePath:
        assert message == (launcher.environ, socket.gethostname())
        return found

    def by_setting(*message: object) -> HostfilePath:
        assert message == (launcher.resolved, launcher.environ)
        return listed

    monkeypatch.setattr(hostfiles, "find", find)
    monkeypatch.setattr(hostfiles, "hosts_by_setting", by_setting)
    monkeypatch.setattr(hostfiles, "hosts_by_platform", by_platform)
    assert await find_hostfile(launcher.resolved, launcher.environ, 7.0, ("/line",)) is it
    (asked,) = given
    assert asked.pop("platform")() == found
    assert asked == {
        "message": ("/a/b", "--hostfile", launcher.environ),
        "patience": 7.0,
        "line": ("/line",),
        "listed": listed,
    }


@pytest.mark.parametrize(
    ("host", "asked"), [("w-0.job.ns.svc", 0), ("launcher.x", None), ("elsewhere", "nobody")]
)
async def test_the_port_is_looked_at_where_ranks_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pairs: Pairs, host: str, asked: object
) -> None:
    """On a worker, or here by mpirun's name for this pod; another host is not the job's."""
    del pairs
    taken = (Finding("master-port", Level.FAIL, "taken"),)
    given: list[tuple[object, ...]] = []

    async def look(*message: object) -> tuple[Finding, ...]:
        given.append(message)
        return taken

    monkeypatch.setattr(remote_commands, "look_at_master_port", look)
    observed = replace(SEEN, local=(Host("me"),), renamed={"me": "launcher.x"})
    seen = Observation(observed, GateResult((), (), {}, {}), ())
    launcher, meeting = pod(tmp_path), Rendezvous(host, "MASTER_PORT", 29500)
    found = await observation.master_port_taken(launcher, seen, meeting)
    if asked == "nobody":
        assert (found, given) == ((), [])
        return
    worker = SEEN.workers[0] if asked == 0 else None
    assert found == taken
    assert given == [(meeting, worker, launcher.resolved.settings, ("access", launcher))]


def test_the_pair_check_has_the_time_and_the_ports_of_the_settings(tmp_path: Path) -> None:
    made = observation._pairs(pod(tmp_path, pair_check="0", port_range="4000-4100"))
    assert isinstance(made, PairCheck)
    assert (made.wanted, made._ports) == (False, "4000-4100")
    assert observation._pairs(pod(tmp_path, pair_check="3"))._seconds == 3.0


def test_what_was_found_is_what_the_plan_is_made_from(tmp_path: Path) -> None:
    (facts, _) = [worker.facts for worker in SEEN.workers]
    assert facts is not None
    passed = GateResult((), (Host("me"),), {}, {})
    launcher = pod(tmp_path)
    before = observation._before_hosts(launcher, SEEN.hostfile, SEEN.mpi, SEEN.line)
    found = observation._with_hosts(launcher, before, passed, (facts, None))
    assert found.client is not None
    assert found.client.name == "ssh-client"
    assert found.local == passed.local
    assert (found.identity, found.line) == (plans.ROOT, SEEN.line)
    assert (found.environ, found.links) == (launcher.environ, facts.links)
