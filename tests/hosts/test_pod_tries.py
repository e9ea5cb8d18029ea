"""A pod's way through the gate, try by try: the API server's answers are written."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from mpiboot.core.checks import MpibootError
from mpiboot.core.facts import Host
from mpiboot.core.settings import Settings
from mpiboot.hosts import pipeline
from mpiboot.hosts.access import PodAccess, PodError, SshAccess, Trouble
from mpiboot.hosts.dns import Resolver
from mpiboot.hosts.pipeline import PipelineOptions, PodPipelines
from mpiboot.hosts.progress import HostState, Stage
from mpiboot.ssh.attempt import LoginTimeouts

PODS = PodAccess("/opt/kubectl", "jobs")
TO = SshAccess("", Path(), "launcher", pods=PODS)
DENIED = PodError(Trouble.FORBIDDEN, "no right", ("a Role",))
GONE = PodError(Trouble.NO_POD, "not found")


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses, which are over at once and move the clock."""
    noted: list[float] = []

    async def sleep(seconds: float) -> None:
        assert len(noted) < 1000, "it never ends"
        noted.append(seconds)

    asyncs = SimpleNamespace(**{**vars(asyncio), "sleep": sleep})
    monkeypatch.setattr(pipeline, "asyncio", asyncs)
    clock = SimpleNamespace(monotonic=lambda: 1000.0 + sum(noted))
    monkeypatch.setattr(pipeline, "time", clock)
    return noted


class Api:
    """A kubectl whose answers are written, one a look; the last one stays."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *answers: tuple[str, ...] | PodError
    ) -> None:
        self._answers = [*answers]
        self.made: list[object] = []
        self.state = HostState(Host("w-0.job"), "w-0")
        self.seen: list[tuple[object, ...]] = []
        self.pipelines: PodPipelines | None = None
        monkeypatch.setattr(pipeline, "Kubectl", self._make)

    def _make(self, *args: object, **named: object) -> Api:
        self.made.append((*args, named))
        return self

    async def look(self, pod: str) -> tuple[str, ...]:
        mine = self.state
        assert (pod, mine.stage, mine.resolved) == ("w-0", Stage.KUBECTL, True)
        self.seen.append((mine.reason, mine.detail, mine.hint))
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, PodError):
            raise answer
        return answer

    async def run(self, pod: str, command: str) -> str:
        assert (pod, command) == ("w-0", self.running._command)
        return "mpiboot-plain\n"

    def start(self, to: SshAccess = TO) -> PodPipelines:
        limits = PipelineOptions(LoginTimeouts(command=4.0))
        self.running = PodPipelines(Settings(), to, Resolver(), limits)
        return self.running


async def test_only_two_refusals_in_a_row_are_for_good(
    monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    """A Role may be applied a moment after the job: two seconds lie between."""
    given: list[tuple[float, ...]] = []

    def pause(*message: float) -> float:
        given.append(message)
        return 3.0

    monkeypatch.setattr(pipeline, "pause", pause)
    api = Api(monkeypatch, DENIED, GONE, DENIED, DENIED)
    with pytest.raises(MpibootError) as told:
        await api.start().run(api.state)
    assert pauses == [2.0, 3.0, 2.0]
    assert given == [(0.0, 1), (2.0, 1), (5.0, 1)]
    finding = told.value.finding
    assert (finding.check, finding.host, finding.hint) == (
        "kubectl-denied",
        "w-0.job",
        DENIED.trouble.hint,
    )
    assert finding.evidence == ("a Role",)
    denied, gone = ((item.trouble.text, str(item), item.trouble.hint) for item in (DENIED, GONE))
    assert api.seen == [("", "", None), denied, gone, denied]
    assert api.made == [(PODS, {"limit": 4.0})]
    assert api.running._reaching == 0


@pytest.mark.parametrize(
    ("ipv6", "address"), [(None, "2001:db8::7"), (True, "2001:db8::7"), (False, "192.0.2.7")]
)
async def test_a_pod_that_runs_is_ready_at_the_address_of_the_launchers_kind(
    monkeypatch: pytest.MonkeyPatch,
    ipv6: bool | None,  # noqa: FBT001 - a row of the table
    address: str,
) -> None:
    api = Api(monkeypatch, ("2001:db8::7", "192.0.2.7"))
    worker = await api.start(replace(TO, ipv6=ipv6)).run(api.state)
    assert worker is not None
    assert (worker.address, worker.port, worker.user) == (address, 0, "")
    assert (api.state.stage, worker.host) == (Stage.READY, api.state.host)


async def test_this_pods_own_name_is_ready_and_an_address_is_told_with_its_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api = Api(monkeypatch, GONE)
    own = HostState(Host("launcher"), "launcher")
    assert await api.start().run(own) is None
    assert (own.stage, api.made) == (Stage.READY, [])
    with pytest.raises(MpibootError) as told:
        await api.running.run(HostState(Host("192.0.2.7"), "192.0.2.7"))
    assert told.value.finding.host == "192.0.2.7"
