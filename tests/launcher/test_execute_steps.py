"""The steps of `mpiboot exec`, with a clock that moves by its pauses."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from mpiboot.core import log
from mpiboot.core.errors import MpibootError, error
from mpiboot.core.model import Decision, Finding, Level, Source, Worker
from mpiboot.core.setting_types import LogFormat, LogLevel
from mpiboot.core.settings import resolve
from mpiboot.hosts import gate
from mpiboot.job import program_words
from mpiboot.job.program_words import Rendezvous
from mpiboot.launcher import look
from mpiboot.network import decision, pod, worker_network
from mpiboot.network.decision import DataNetwork
from mpiboot.network.records import Transport, WorkerNetwork
from mpiboot.system import process
from mpiboot.worker import facts
from tests.fakes import workers as w

ENVIRON = {"A": "1", "SAME": "mine"}
DECIDE = decision.decide


class Became(Exception):  # noqa: N818 - nothing went wrong
    """This process would be the program now."""


@pytest.fixture(autouse=True)
def as_json() -> Iterator[None]:
    log.configure(form=LogFormat.JSON, level=LogLevel.DEBUG)
    yield
    log.configure()


def records(capfd: pytest.CaptureFixture[str]) -> list[tuple[str, str, str]]:
    told = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    return [(item["level"], item["event"], item["message"]) for item in told]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """What is done, in its order, by a program that would be started."""
    done: list[object] = []

    def becomes(*given: object) -> NoReturn:
        done.append(given)
        raise Became

    monkeypatch.setattr(process, "lookup", lambda *given: done.append(("lookup", *given)))
    monkeypatch.setattr(look, "end_on_signals", lambda one: done.append(("signals", one)))
    monkeypatch.setattr(process, "replace", becomes)
    loop = asyncio.new_event_loop()
    monkeypatch.setattr("asyncio.new_event_loop", lambda: loop)
    yield done
    loop.close()


def network(*findings: Finding) -> DataNetwork:
    chosen = Decision("NCCL_IB_HCA", "=mlx5_0:1", Source.DETECTED, "it is there")
    made = DECIDE([w_network()], resolve({}, {}).settings, {})
    return replace(
        made, common={"NEW": "2", "SAME": "theirs"}, decisions=(chosen,), findings=findings
    )


def w_network(*pending: str) -> WorkerNetwork:
    return replace(WorkerNetwork("here", None, 1, None, Transport.UNKNOWN), pending=pending)


def test_the_program_gets_what_was_decided_over_what_it_had(
    seen: list[object], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    odd = Finding("slots", Level.WARN, "something is odd")

    async def prepared(*given: object) -> DataNetwork:
        seen.append(("prepare", *given))
        return network(odd)

    monkeypatch.setattr(look, "_prepare", prepared)
    resolved, program = resolve({}, {}), ("torchrun", "x.py")
    with pytest.raises(Became):
        look.execute(resolved, program, ENVIRON)
    assert seen == [
        ("lookup", program, ENVIRON),
        ("signals", resolved),
        ("prepare", resolved, program, ENVIRON),
        (program, {"A": "1", "NEW": "2", "SAME": "theirs"}),
    ]
    assert records(capfd) == [
        ("warning", "slots", "[slots] something is odd"),
        ("debug", "plan", "plan NCCL_IB_HCA==mlx5_0:1 (detected: it is there)"),
        ("info", "data-network", "set for the program: NEW=2 SAME=theirs"),
        ("info", "start", "starting torchrun"),
    ]


def test_a_network_that_is_required_and_not_there_ends_it(
    seen: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def prepared(*_: object) -> DataNetwork:
        return network(Finding("slots", Level.FAIL, "it is not there"))

    monkeypatch.setattr(look, "_prepare", prepared)
    with pytest.raises(MpibootError, match="it is not there"):
        look.execute(resolve({}, {}), ("x",), ENVIRON)
    assert len(seen) == 2


async def test_the_look_at_this_pod_ends_where_the_name_does_not_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, ended = asyncio.Event(), list[bool]()

    resolved = resolve({}, {})

    async def looks(*given: object) -> NoReturn:
        assert given == (resolved, ENVIRON)
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)
        raise AssertionError

    async def name(*given: object) -> NoReturn:
        assert given == (resolved, ("x",), ENVIRON)
        await begun.wait()
        raise error("names-unresolved", "no such name")

    monkeypatch.setattr(look, "_network", looks)
    monkeypatch.setattr(look, "_name", name)
    with pytest.raises(MpibootError, match="no such name"):
        await look._prepare(resolved, ("x",), ENVIRON)
    await asyncio.sleep(0)
    assert ended == [True]


@pytest.mark.parametrize(
    ("why", "hint"), [(("", ""), ""), (("no pod has it", "do this"), "no pod has it: do this")]
)
async def test_a_name_is_waited_for_and_what_is_odd_about_it_told_at_once(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    why: tuple[str, str],
    hint: str,
) -> None:
    given: list[tuple[object, ...]] = []
    wanted, resolved = Rendezvous("head-0", "MASTER_ADDR"), resolve({}, {})

    async def wait(*message: object) -> None:
        given.append(message)

    def why_no_name(*message: object) -> tuple[str, str]:
        given.append(message)
        return why

    monkeypatch.setattr(
        program_words,
        "find_rendezvous",
        lambda *message: wanted if message == (("x",), ENVIRON) else None,
    )
    monkeypatch.setattr(program_words, "why_no_name", why_no_name)
    monkeypatch.setattr(pod, "own_names", lambda name: [f"{name}.job"])
    monkeypatch.setattr(gate, "wait_for_name", wait)
    await look._name(resolved, ("x",), ENVIRON)
    own = socket.gethostname()
    assert given == [
        ("head-0", own, (f"{own}.job",), ENVIRON),
        (wanted, resolved.settings, hint),
    ]
    message = [("warning", "names-unresolved", "[names-unresolved] no pod has it")] if hint else []
    assert [
        (level, event, text.partition("\n")[0]) for level, event, text in records(capfd)
    ] == message


async def test_a_network_that_still_comes_is_looked_at_ever_less_often_until_the_deadline(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pauses, chosen, decided = list[float](), list[Worker](), list[Any]()
    gathered: list[object] = []
    own = w.plain(0).facts
    assert own is not None

    async def sleep(seconds: float) -> None:
        assert len(pauses) < 1000, "it never ends"
        pauses.append(seconds)

    asyncs = SimpleNamespace(**{**vars(asyncio), "sleep": sleep})
    monkeypatch.setattr(look, "asyncio", asyncs)
    clock = SimpleNamespace(monotonic=lambda: 1000.0 + sum(pauses))
    monkeypatch.setattr(look, "time", clock)

    def gather(*args: object, **named: object) -> object:
        gathered.append((args, named))
        return own

    def choose(worker: Worker, settings: object) -> WorkerNetwork:
        chosen.append(worker)
        return w_network("port x is INIT", "port y is INIT")

    def decide(*args: object, **named: object) -> DataNetwork:
        decided.append((args, named))
        return network()

    monkeypatch.setattr(facts, "gather", gather)
    monkeypatch.setattr(worker_network, "choose", choose)
    monkeypatch.setattr(decision, "decide", decide)
    resolved = resolve({"timeout": "20"}, {})
    await look._network(resolved, ENVIRON)
    assert pauses[:7] == [0.5, 0.75, 1.125, 1.6875, 2.53125, 3.796875, 5.0]
    assert (len(pauses), sum(pauses)) == (8, 20.0)
    one = ((resolved, ENVIRON), {"sshd": "", "pid": os.getpid(), "mpi": None})
    assert gathered == [one] * 9
    last = chosen[-1]
    assert (last.host.name, last.facts) == (own.hostname, own)
    assert (last.address, last.port, last.user) == (own.control_address, 0, "")
    assert last.local_address == own.control_address
    here = "this pod's environment"
    (((networks, settings, taken), named),) = decided
    assert networks == [w_network("port x is INIT", "port y is INIT")]
    assert (settings, taken) == (resolved.settings, {"A": here, "SAME": here})
    assert named == {"values": ENVIRON, "given": resolved.given["data_network"]}
    assert records(capfd) == [
        (
            "info",
            "data-network",
            "waiting for the data network (port x is INIT, port y is INIT)",
        ),
        (
            "warning",
            "data-network",
            (
                "the data network is not ready after 20 s: port x is INIT, port y is INIT; the "
                "start goes on without it (MPIBOOT_DATA_NETWORK=require waits until the deadline)"
            ),
        ),
    ]
    pauses.clear()
    await look._network(resolve({"timeout": "600"}, {}), ENVIRON)
    assert sum(pauses) == 60.0
    pauses.clear()
    await look._network(resolve({"timeout": "600", "data_network": "require"}, {}), ENVIRON)
    assert sum(pauses) == 600.0
