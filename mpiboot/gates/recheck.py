"""After the gate: what a worker's data network still waits for is waited for, by asking again.

It changes nothing on a worker but its file of facts, and it raises nothing: what never comes is
a finding of the plan.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from mpiboot import log
from mpiboot.data_network.records import WorkerNetwork
from mpiboot.gates import host_command
from mpiboot.gates.pipeline import Access
from mpiboot.model import Worker
from mpiboot.observe import tcp
from mpiboot.observe.attempt import Limits, Outcome, Probe, Target
from mpiboot.settings import Settings

if TYPE_CHECKING:
    from mpiboot.observe.ssh import Prober

_AT_ONCE: Final = 32
# A port's state sends no event that crosses to another pod. Looking costs a worker half a second
# of one core.
_FIRST, _LAST = 0.5, 5.0
_SHOWN: Final = 3


async def settled(
    workers: Sequence[Worker],
    decide: Callable[[Worker], WorkerNetwork],
    settings: Settings,
    access: Access,
    *,
    limits: Limits | None = None,
) -> tuple[tuple[Worker, ...], dict[str, WorkerNetwork]]:
    """Ask the workers with something pending again, until nothing is or the deadline passes.

    Args:
        workers: who passed the gate.
        decide: tells what a worker's networks are, and what is still to come there.
        settings: ``timeout`` is what is left of the one deadline.
        access: how to log in.
        limits: how long the steps of one attempt may take.

    Returns:
        The workers in their order, with their latest facts; and their networks, by host.
    """
    deadline = time.monotonic() + settings.timeout
    known = {worker.host.name: worker for worker in workers}
    pause, told = _FIRST, ""
    networks = {name: decide(worker) for name, worker in known.items()}
    waiting = _pending(networks)
    if not waiting:
        return tuple(workers), networks
    asker = _Asker(settings, access, limits or Limits())
    while waiting:
        line = _line(waiting)
        if line != told:
            told = line
            log.info("data-network", f"waiting for the data network: {line}", hosts=len(waiting))
        left = deadline - time.monotonic()
        if left <= 0:
            break
        await asyncio.sleep(min(pause, left))
        pause = min(pause * 1.5, _LAST)
        asked = [known[name] for name in waiting]
        for worker in await asyncio.gather(*map(asker.ask, asked)):
            known[worker.host.name] = worker
            networks[worker.host.name] = decide(worker)
        waiting = _pending(networks)
    return tuple(known.values()), networks


def _pending(networks: Mapping[str, WorkerNetwork]) -> dict[str, tuple[str, ...]]:
    return {name: network.pending for name, network in networks.items() if network.pending}


def _line(waiting: Mapping[str, Sequence[str]]) -> str:
    shown = [f"{host}: {', '.join(items)}" for host, items in list(waiting.items())[:_SHOWN]]
    more = len(waiting) - len(shown)
    return "; ".join(shown) + (f"; and {more} more workers" if more else "")


class _Asker:
    """Logs in to workers that let us in before."""

    def __init__(self, settings: Settings, access: Access, limits: Limits) -> None:
        self._settings = settings
        self._access = access
        self._limits = limits
        self._free = asyncio.Semaphore(_AT_ONCE)
        self._prober: Prober | None = None

    async def ask(self, worker: Worker) -> Worker:
        """Bring a worker's facts of now; as they were where it does not answer."""
        target = Target(worker.host.name, worker.address, worker.port, worker.user)
        async with self._free:
            opened = await tcp.connect(target, self._limits)
            if isinstance(opened, Probe):
                return worker
            with opened.sock:
                probe = await self._load().log_in(
                    target, opened.sock, opened.greeting, host_command.AGAIN
                )
        facts, _ = host_command.read(probe.output) if probe.outcome is Outcome.OK else (None, None)
        return worker if facts is None else replace(worker, facts=facts)

    def _load(self) -> Prober:
        if self._prober is None:
            from mpiboot.observe.ssh import Prober  # noqa: PLC0415 - loaded by the gate already

            self._prober = Prober(
                self._access.key,
                host_key=self._access.host_key,
                mode=self._settings.host_keys,
                limits=self._limits,
            )
        return self._prober
