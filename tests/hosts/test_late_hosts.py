"""Two hundred of three hundred hosts that come late, one by one, by a clock that never waits."""

from __future__ import annotations

import asyncio
import itertools
import selectors
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import TypeVar, cast

import pytest

from mpiboot.core import log
from mpiboot.core.facts import Host
from mpiboot.core.setting_types import Switch
from mpiboot.core.settings import Settings
from mpiboot.hosts import gate, pipeline, progress
from mpiboot.hosts.access import SshAccess
from mpiboot.hosts.dns import DnsAnswer, NoAddress, ResolvConf, Resolver
from mpiboot.ssh import attempt as tcp
from mpiboot.ssh.attempt import Attempt, LoginTimeouts, Outcome, Target
from mpiboot.ssh.pool import Pool

HOSTS, READY, FIRST, GAP = 300, 100, 20.0, 0.5
LAST = FIRST + (HOSTS - READY - 1) * GAP
T = TypeVar("T")


class Selector(selectors.DefaultSelector):
    """Where a loop would wait for a time, the time is over."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0 if timeout is not None else None)
        if not found and timeout:
            self.now += timeout
        return found


class Loop(asyncio.SelectorEventLoop):
    """A loop by such a clock."""

    def __init__(self) -> None:
        self.clock = Selector()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now


class Cluster:
    """Hosts that come by the clock; ``tries`` has the time of each look at one that isn't there."""

    def __init__(self, loop: Loop, *, late: str) -> None:
        self.conf = ResolvConf()
        self.tries: list[float] = []
        self._loop, self._late = loop, late

    def _is_there(self, name: str) -> bool:
        number = int(name.partition("-")[2])
        return self._loop.time() >= (FIRST + (number - READY) * GAP if number >= READY else 0)

    async def resolve(self, name: str) -> DnsAnswer:
        if self._late == "name" and not self._is_there(name):
            self.tries.append(self._loop.time())
            return DnsAnswer(name, reason=NoAddress.NXDOMAIN)
        return DnsAnswer(name, ("10.0.0.1",))

    async def connect(self, target: Target, _: LoginTimeouts) -> Attempt:
        if self._late == "server" and not self._is_there(target.host):
            self.tries.append(self._loop.time())
            return Attempt(target, Outcome.REFUSED)
        return Attempt(target, Outcome.OK)


async def loaded(_: Pool) -> SimpleNamespace:
    """Have the SSH client without the thread in which it is loaded, for which no clock waits."""
    return SimpleNamespace(host_fingerprint="")


def run(loop: Loop, work: Callable[[], Awaitable[T]]) -> T:
    try:
        return loop.run_until_complete(work())
    finally:
        loop.close()


@pytest.mark.parametrize("late", ["name", "server"])
def test_hosts_that_come_late_one_by_one_cost_no_more_each_and_the_last_ends_the_wait(
    late: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    log.configure()
    loop = Loop()
    cluster = Cluster(loop, late=late)
    for module in (gate, pipeline, progress):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=loop.time))
    monkeypatch.setattr(tcp, "connect", cluster.connect)
    monkeypatch.setattr(Pool, "load", loaded)
    monkeypatch.setattr(pipeline.Pipelines, "is_connected", lambda *_: True)

    async def wait() -> gate.GateResult:
        return await gate.wait(
            [Host(f"w-{number}") for number in range(HOSTS)],
            Settings(timeout=600.0, rewrite_fqdn=Switch.OFF),
            SshAccess("runner", Pool(None), "launcher", ports=(22,)),
            resolver=cast("Resolver", cluster),
        )

    found = run(loop, wait)
    assert len(found.workers) == HOSTS
    assert LAST <= loop.time() <= LAST + 1.1
    # So many looks at all that are waited for, however many these are, and no more for each that
    # comes later.
    arrivals = [FIRST + number * GAP for number in range(HOSTS - READY)]
    each = [
        sum(begin <= at < end for at in cluster.tries)
        for begin, end in itertools.pairwise(arrivals)
    ]
    assert len(cluster.tries) <= 200 * LAST + HOSTS
    half = len(each) // 2
    assert sum(each[half:]) <= sum(each[:half])
    told = capfd.readouterr().err.splitlines()
    assert told[-1].startswith(f"mpiboot: {HOSTS} hosts ready in ")
    assert 4 <= len(told) <= 16
