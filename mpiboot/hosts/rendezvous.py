"""Waits for one name, that of the pod where the processes of a program meet."""

from __future__ import annotations

import asyncio
import time

from mpiboot.core import log
from mpiboot.core.errors import MpibootError, error
from mpiboot.core.model import Host
from mpiboot.core.settings import Settings
from mpiboot.hosts import failure_reasons, progress, retry_delay
from mpiboot.hosts.dns import Resolver
from mpiboot.hosts.progress import HostState
from mpiboot.hosts.reporter import Reporter
from mpiboot.job.rendezvous import Rendezvous


async def wait(
    wanted: Rendezvous, settings: Settings, hint: str = "", resolver: Resolver | None = None
) -> tuple[str, ...]:
    """Wait until a name resolves, and say now and then why it doesn't; its addresses.

    Args:
        wanted: the name, and what says it.
        settings: ``timeout``, ``dns_wait`` and ``dns_interval`` are read.
        hint: what to do where the name does not come; empty: nothing better than usual is known.
        resolver: who is asked; the system's files where not given.

    Raises:
        MpibootError: ``names-unresolved`` at the deadline; ``usage`` for what is no host name.
    """
    resolver = resolver or Resolver(system_decides=True)  # the program will ask it
    started = time.monotonic()
    end = min(settings.timeout, settings.dns_wait or settings.timeout)
    state = HostState(Host(wanted.host), wanted.host)
    reporter = Reporter(live=log.draws(), left=lambda: max(0.0, started + end - time.monotonic()))
    side = [asyncio.ensure_future(work((state,))) for work in (reporter.lines, reporter.drawing)]
    try:
        while True:
            answer = await resolver.ask(wanted.host)
            waited = time.monotonic() - started
            if answer.addresses:
                break
            if answer.reason is not None and answer.reason.permanent:
                raise error(
                    "usage", f"{wanted.by}: {answer.detail}", hint="name a host, or HOST:PORT"
                )
            reason = answer.reason.value if answer.reason is not None else ""
            if reason != state.reason:
                state.reason = reason
                reporter.changed()
            state.detail = (
                f"{answer.detail}; {wanted.by} names it, waited for {round(waited, 1):g} s"
            )
            state.hint = hint or failure_reasons.unresolved(answer.reason, resolver.conf)
            if waited >= end:
                raise MpibootError(progress.finding(state))
            pause = retry_delay.pause(waited, 1, answer.retry_after, settings.dns_interval)
            await asyncio.sleep(min(pause, end - waited))
    finally:
        for task in side:
            task.cancel()
        reporter.clear()
    where = ", ".join(answer.addresses)
    log.info(
        "rendezvous",
        f"{wanted.host} ({wanted.by}) is {where}, after {waited:.1f} s",
        host=wanted.host,
        by=wanted.by,
        seconds=round(waited, 3),
    )
    return answer.addresses
