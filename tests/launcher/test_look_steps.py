"""The steps of the commands that look or wait, with gates that are written."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from mpiboot.core import log
from mpiboot.core.errors import MpibootError, ShownError, error
from mpiboot.core.model import Finding, Host, Level
from mpiboot.core.setting_types import LogFormat
from mpiboot.core.settings import resolve
from mpiboot.hosts.gate import DoctorLook, GateResult
from mpiboot.job import plan as plan_of
from mpiboot.launcher import look, observation, role
from mpiboot.launcher.observation import Observation
from mpiboot.launcher.role import RunsOnce
from mpiboot.launcher.setup import LauncherPod
from tests.fakes import plans

WARN = Finding("slots", Level.WARN, "warned of")
FAIL = Finding("slots", Level.FAIL, "it failed")
LAST = Finding("ranks", Level.FAIL, "it failed too")
POD = cast("LauncherPod", SimpleNamespace(folder=Path("/run/x/launcher")))
RESOLVED = resolve({}, {})


class Ended(Exception):  # noqa: N818 - nothing went wrong
    """This process would have ended."""


Handlers = dict[int, Callable[[int, None], None]]


@pytest.fixture(autouse=True)
def handlers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Handlers]:
    """The handlers of signals, which are not set for this process."""
    found: Handlers = {}
    fake = SimpleNamespace(**{**vars(signal), "signal": found.__setitem__})
    monkeypatch.setattr(look, "signal", fake)
    log.configure(form=LogFormat.JSON)
    yield found
    log.configure()


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (signal.SIGTERM, "SIGTERM"),
        (signal.SIGINT, "SIGINT"),
        (signal.SIGHUP, "SIGHUP"),
        (signal.SIGQUIT, "SIGQUIT"),
    ],
)
def test_a_signal_ends_the_wait_at_once_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
    handlers: Handlers,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    number: int,
    name: str,
) -> None:
    codes: list[int] = []

    def ends(code: int) -> NoReturn:
        codes.append(code)
        raise Ended

    monkeypatch.setattr(os, "_exit", ends)
    (tmp_path / "message").touch()
    look.end_on_signals(resolve({"termination_log": str(tmp_path / "message")}, {}))
    with pytest.raises(Ended):
        handlers[number](number, None)
    message = f"{name} while waiting for hosts: nothing was started"
    told = json.loads(capfd.readouterr().err)
    assert (told["event"], told["message"]) == ("ended", message)
    assert (told["signal"], told["exit"], told["reference"]) == (name, 128 + number, "signal")
    assert (tmp_path / "message").read_text() == f"signal: {message}\n"
    assert codes == [128 + number]


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGUSR2"])
def test_a_signal_for_the_program_is_told_and_ends_nothing(
    handlers: Handlers, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    look.end_on_signals(resolve({}, {}))
    number = signal.Signals[name]
    handlers[number](number, None)
    told = json.loads(capfd.readouterr().err)
    assert (told["event"], told["message"]) == (
        "signal",
        f"{name} is not forwarded: the program has not started",
    )


def gates(monkeypatch: pytest.MonkeyPatch, end: GateResult | MpibootError) -> None:
    async def pass_gates(launcher: LauncherPod) -> GateResult:
        assert launcher is POD
        if isinstance(end, MpibootError):
            raise end
        return end

    def pod(*given: object) -> LauncherPod:
        assert given == (RESOLVED, {"A": "b"})
        return POD

    monkeypatch.setattr(look, "launcher_pod", pod)
    monkeypatch.setattr(observation, "pass_gates", pass_gates)


@pytest.mark.parametrize("as_json", [True, False])
def test_who_is_ready_is_told_as_json_where_asked_for(
    monkeypatch: pytest.MonkeyPatch,
    handlers: Handlers,
    capfd: pytest.CaptureFixture[str],
    *,
    as_json: bool,
) -> None:
    (worker, _) = plans.observed().workers
    gates(monkeypatch, GateResult((worker,), (Host("launcher"),), {}, {}, (WARN,)))
    look.wait(RESOLVED, {"A": "b"}, as_json=as_json)
    assert signal.SIGTERM in handlers
    text = capfd.readouterr().out
    if not as_json:
        assert text == ""
        return
    told = json.loads(text)
    assert told["ready"] is True
    assert told["hosts"] == [
        {"host": "launcher", "address": "", "port": None},
        {"host": worker.host.name, "address": worker.address, "port": 22},
    ]
    assert [item["message"] for item in told["findings"]] == ["warned of"]


@pytest.mark.parametrize("as_json", [True, False])
def test_who_is_not_ready_is_told_as_json_too(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *, as_json: bool
) -> None:
    wrong = MpibootError(error("names-unresolved", "two are missing").finding, others=(WARN,))
    gates(monkeypatch, wrong)
    with pytest.raises(MpibootError, match="two are missing"):
        look.wait(RESOLVED, {"A": "b"}, as_json=as_json)
    text = capfd.readouterr().out
    if not as_json:
        assert text == ""
        return
    told = json.loads(text)
    assert (told["ready"], told["hosts"]) == (False, [])
    assert [item["message"] for item in told["findings"]] == ["two are missing", "warned of"]


def test_a_look_waits_for_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []

    def pod(*args: object, **named: object) -> LauncherPod:
        given.append((*args, named))
        return POD

    found = Observation(plans.observed(), GateResult((), (), {}, {}), ())

    async def looked(*message: object) -> Observation:
        given.append(message)
        return found

    monkeypatch.setattr(look, "launcher_pod", pod)
    monkeypatch.setattr(observation, "look", looked)
    resolved, environ = resolve({}, {}), {"A": "b"}
    assert look.look(resolved, ("x",), environ) == (found, POD)
    assert given == [(resolved, environ, {"patience": 0.0}), (POD, ("x",), DoctorLook())]


def test_a_plan_tells_what_was_found_on_the_way_and_ends_with_the_first_failure(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    seen = plans.observed()
    made = replace(plans.planned(seen=seen), findings=(LAST,))
    passed = GateResult((), (), {}, {}, (Finding("slots", Level.WARN, "at the gate"),))
    found = Observation(seen, passed, (WARN,))
    asked: list[Any] = []

    def makes(*given: object) -> object:
        asked.append(given)
        return made

    resolved = resolve({}, {})

    def looked(*given: object) -> tuple[Observation, LauncherPod]:
        assert given == (resolved, ("./train",), {})
        return found, POD

    def pair_findings(*given: object) -> tuple[Finding, ...]:
        assert given == (made, seen, found.dialled)
        return (FAIL,)

    monkeypatch.setattr(look, "look", looked)
    monkeypatch.setattr(plan_of, "make", makes)
    monkeypatch.setattr(plan_of, "pair_findings", pair_findings)
    with pytest.raises(ShownError) as shown:
        look.show_plan(resolved, ("./train",), {}, as_json=True)
    assert shown.value.finding == FAIL
    told = json.loads(capfd.readouterr().out)
    message = ["warned of", "at the gate", "it failed", "it failed too"]
    assert [item["message"] for item in told["findings"]] == message
    ((observed, its, where),) = asked
    assert (observed, its) == (seen, resolved)
    assert where.launch_dir.startswith("/run/x/launcher/launch")


@pytest.mark.parametrize("offline", [True, False])
@pytest.mark.parametrize("as_json", [True, False])
def test_a_script_has_no_plan_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    *,
    as_json: bool,
    offline: bool,
) -> None:
    once = RunsOnce("it calls mpirun", reaches_hosts=False)
    resolved = resolve({}, {})
    monkeypatch.setattr(
        role, "runs_once", lambda *given: once if given == (resolved, ("./run.sh",), {}) else None
    )
    look.show_plan(resolved, ("./run.sh",), {}, as_json=as_json, offline=offline)
    text = capfd.readouterr().out
    message = "it calls mpirun: it runs once, and each mpirun in it has a plan of its own"
    if not as_json:
        assert message in " ".join(text.split())
        return
    told = json.loads(text)
    (decision,) = told["decisions"]
    assert (decision["name"], decision["value"]) == ("script", "./run.sh")
    assert (decision["source"], decision["reason"]) == ("detected", message)
    assert (told["argv"], told["findings"]) == (["./run.sh"], [])


def test_a_plan_away_from_the_cluster_is_printed_alike(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    resolved, environ = resolve({}, {}), {"A": "b"}
    made = replace(plans.planned(), findings=())

    def makes(*given: object) -> object:
        assert given == (resolved, ("./train",), environ, "facts")
        return made, (WARN,)

    monkeypatch.setattr(look, "offline_plan", makes)
    look.show_plan(resolved, ("./train",), environ, as_json=True, offline=True, folder="facts")
    told = json.loads(capfd.readouterr().out)
    assert [item["message"] for item in told["findings"]] == ["warned of"]
    look.show_plan(resolved, ("./train",), environ, as_json=False, offline=True, folder="facts")
    assert "warned of" in capfd.readouterr().out
