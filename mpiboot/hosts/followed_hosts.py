"""Who is waited for: the hostfile's hosts with a pipeline each, also when the hostfile changes.

The comparison of two versions is pure; the rest starts and stops pipelines and says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mpiboot.core import log
from mpiboot.core.addresses import is_address
from mpiboot.core.model import Host, Worker
from mpiboot.core.wording import counted, first_few
from mpiboot.hosts import progress
from mpiboot.hosts.pipeline import Pipelines
from mpiboot.hosts.progress import HostState

_NAMES: Final = 5
# A pod that is replaced while others are waited for is noticed by its name, which costs a few
# questions; only what changes in the last seconds is left to mpirun's own end.
_AGAIN: Final = 10.0
_PER_SECOND: Final = 50


@dataclass(frozen=True, slots=True)
class HostfileChange:
    """What a new version of a hostfile means, by name; ``others`` have other slots or places."""

    left: tuple[str, ...]
    joined: tuple[str, ...]
    others: tuple[str, ...]

    def line(self, count: int) -> str:
        """Say it in one line, with the number of hosts that there are now."""
        parts = []
        for verb, found in (("left", self.left), ("joined", self.joined)):
            if found:
                parts.append(f"{verb}: {first_few(found, _NAMES)}")
        if not parts:
            parts.append("other slots" if self.others else "another order")
        return f"the hostfile has changed: {counted(count, 'host')} now; " + "; ".join(parts)


def _key(host: Host) -> tuple[str, str]:
    # Another login is another way in.
    return host.name, host.user


def change(old: Sequence[Host], new: Sequence[Host]) -> HostfileChange:
    """Compare two versions."""
    before = {_key(host): host for host in old}
    after = {_key(host): host for host in new}
    return HostfileChange(
        left=tuple(host.name for key, host in before.items() if key not in after),
        joined=tuple(host.name for key, host in after.items() if key not in before),
        others=tuple(
            host.name
            for key, host in after.items()
            if key in before and replace(before[key], line=0) != replace(host, line=0)
        ),
    )


class FollowedHosts:
    """The hosts of the present version: what is known of each, and its pipeline."""

    def __init__(self, hosts: Sequence[Host], pipelines: Pipelines) -> None:
        self._pipelines = pipelines
        self.states: list[HostState] = list(progress.states(hosts))
        self._runs = {_key(state.host): self._start(state) for state in self.states}

    def _start(self, state: HostState) -> asyncio.Future[Worker | None]:
        return asyncio.ensure_future(self._pipelines.run(state))

    @property
    def runs(self) -> Mapping[tuple[str, str], asyncio.Future[Worker | None]]:
        """The pipelines."""
        return self._runs

    def follow(
        self, hosts: Sequence[Host]
    ) -> tuple[HostfileChange, set[asyncio.Future[Worker | None]]]:
        """Take a new version: hosts that stay go on where they are, new ones are started.

        Returns:
            What changed, and the pipelines of hosts that left; they are the caller's to end.
        """
        changed = change([state.host for state in self.states], hosts)
        known = {_key(state.host): state for state in self.states}
        fresh = []
        for state in progress.states(hosts):
            old = known.get(_key(state.host))
            if old is not None:
                old.host, old.label = state.host, state.label
            fresh.append(old or state)
        self.states[:] = fresh  # in place: whoever reports on them has this list
        old_runs = self._runs
        self._runs = {
            _key(state.host): old_runs.get(_key(state.host)) or self._start(state)
            for state in self.states
        }
        return changed, {run for key, run in old_runs.items() if key not in self._runs}

    async def watch(self) -> None:
        """Look now and then whether the hosts that are ready are still where they were."""
        while True:
            await asyncio.sleep(_AGAIN)
            for state in tuple(self.states):
                await self._look_again(state)

    async def _look_again(self, state: HostState) -> None:
        run = self._runs.get(_key(state.host))
        if run is None or not run.done() or run.cancelled() or run.exception() is not None:
            return
        worker = run.result()
        if worker is None or is_address(worker.host.name):
            return
        moved = await self._pipelines.moved(worker)
        if moved and self._runs.get(_key(state.host)) is run:
            name = worker.host.name
            said = f"{name} was ready at {worker.address}, but {moved}; waiting for it again"
            log.info("gate", said, host=name)
            self._pipelines.restart(state)
            self._runs[_key(state.host)] = self._start(state)
        await asyncio.sleep(1 / _PER_SECOND)

    def ready(self) -> list[Worker]:
        """Who is ready by now, also while others are waited for; without this pod itself."""
        ended = [run for run in self._runs.values() if run.done() and not run.cancelled()]
        found = [run.result() for run in ended if run.exception() is None]
        return [worker for worker in found if worker is not None]

    def results(self) -> tuple[tuple[Worker, ...], tuple[Host, ...]]:
        """Who passed, as the present version has them: the workers, and this pod itself."""
        workers, local = [], []
        for state in self.states:
            found = self._runs[_key(state.host)].result()
            if found is None:
                local.append(state.host)
            else:
                workers.append(replace(found, host=state.host))
        return tuple(workers), tuple(local)
