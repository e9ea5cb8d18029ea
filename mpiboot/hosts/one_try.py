"""One try of every host that waits for none: for a plan that is shown, and for doctor."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator, Sequence
from typing import Any

from mpiboot.core.errors import MpibootError
from mpiboot.core.model import Host, Worker
from mpiboot.core.setting_types import DataNetworkUse
from mpiboot.core.settings import Settings
from mpiboot.hosts import doctor_look, progress, recheck, sockets
from mpiboot.hosts.access import Access
from mpiboot.hosts.dns import Resolver
from mpiboot.hosts.doctor_look import DoctorLook
from mpiboot.hosts.gate import GateResult, end_tasks
from mpiboot.hosts.pair_check import PairCheck
from mpiboot.hosts.pipeline import Pipelines
from mpiboot.hosts.pod_pipeline import PodPipelines
from mpiboot.ssh.attempt import LoginTimeouts
from mpiboot.system import os_calls


async def look(
    hosts: Sequence[Host],
    settings: Settings,
    access: Access,
    *,
    resolver: Resolver | None = None,
    limits: LoginTimeouts | None = None,
    mpirun: str = "",
    pairs: PairCheck | None = None,
    doctor: DoctorLook = doctor_look.ALL,
) -> GateResult:
    """Try every host once, and wait for none; what failed is in ``findings``, a host each.

    The arguments are those of ``gate.wait``; ``doctor`` is what is asked more, in the same session.

    Raises:
        MpibootError: ``ssh-key``; without the job's key nobody can be asked.
    """
    hosts = doctor.asked(hosts)
    states = progress.states(hosts)
    resolver = resolver or Resolver(sockets=sockets.of_look_ups(os_calls.most_open_files()))
    pipelines = (PodPipelines if access.pods else Pipelines)(
        settings,
        access,
        resolver,
        changed=lambda: None,
        limits=limits,
        once=True,
        mpirun=mpirun,
        pairs=pairs,
        doctor=doctor.questions,
    )
    if any(not pipelines.is_own_name(host) for host in hosts):
        await pipelines.prepare()
    runs = [asyncio.ensure_future(pipelines.run(state)) for state in states]
    with _ended_by_ctrl_c(runs if doctor.questions else ()):
        found = await asyncio.gather(*runs, return_exceptions=True)
    findings, unasked = [], []
    for host, item in zip(hosts, found, strict=True):
        if isinstance(item, MpibootError):
            findings.append(item.finding)
        elif isinstance(item, asyncio.CancelledError):
            unasked.append(host)
        elif isinstance(item, BaseException):
            raise item
    local = tuple(host for host, item in zip(hosts, found, strict=True) if item is None)
    workers = tuple(item for item in found if isinstance(item, Worker))
    if settings.data_network is not DataNetworkUse.OFF:
        findings += [recheck.finding(worker) for worker in workers if worker.late]
    return GateResult(
        workers,
        local,
        pipelines.names.renamed,
        pipelines.host_keys,
        tuple(findings),
        pipelines.answers,
        tuple(unasked),
    )


@contextlib.contextmanager
def _ended_by_ctrl_c(runs: Sequence[asyncio.Future[Any]]) -> Iterator[None]:
    """Let Ctrl-C end these alone: what the others have learnt is told."""
    if not runs:
        yield
        return
    loop = asyncio.get_running_loop()
    ending: list[asyncio.Future[None]] = []  # or asyncio would forget it

    def end() -> None:
        ending.append(asyncio.ensure_future(end_tasks(set(runs))))

    loop.add_signal_handler(signal.SIGINT, end)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
