"""``mpiboot exec``: a program that each pod starts by itself, once it can meet the others."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Mapping
from typing import Final, NoReturn

from mpiboot.core import log
from mpiboot.core.choices import DataNetworkUse
from mpiboot.core.model import Finding, Host, Level, Worker
from mpiboot.core.setting_sources import Resolved
from mpiboot.hosts import rendezvous as gate
from mpiboot.job import names, rendezvous
from mpiboot.job import plan as plans
from mpiboot.launcher.child_loop import new_loop
from mpiboot.launcher.look import end_on_signals
from mpiboot.network import decision, pod, worker_network
from mpiboot.network.decision import DataNetwork
from mpiboot.system import process
from mpiboot.worker import facts

_HERE: Final = "this pod's environment"
# Looking at what is still to come costs half a second of one core.
_FIRST, _LAST = 0.5, 5.0


def run(resolved: Resolved, program: tuple[str, ...], environ: Mapping[str, str]) -> NoReturn:
    """Wait for the name where the program's processes meet, and become the program.

    Raises:
        MpibootError: ``program-missing``; ``names-unresolved`` at the deadline; a check of the data
            network where that is required.
    """
    process.lookup(program, environ)
    end_on_signals(resolved)
    network = new_loop().run_until_complete(_prepare(resolved, program, environ))
    plans.stop_on_failure(network.findings)
    for finding in network.findings:
        log.finding(finding)
    for item in network.decisions:
        log.debug("plan", f"plan {item.name}={item.value} ({item.source.value}: {item.because})")
    said = " ".join(f"{name}={value}" for name, value in network.common.items())
    log.info("data-network", f"set for the program: {said or 'nothing'}")
    log.info("start", f"starting {program[0]}")
    process.replace(program, {**environ, **network.common})


async def _prepare(
    resolved: Resolved, program: tuple[str, ...], environ: Mapping[str, str]
) -> DataNetwork:
    """Wait for the name, and look at this pod meanwhile."""
    network = asyncio.ensure_future(_network(resolved, environ))
    try:
        await _name(resolved, program, environ)
        return await network
    finally:
        network.cancel()


async def _name(resolved: Resolved, program: tuple[str, ...], environ: Mapping[str, str]) -> None:
    """Wait for the name, unless it is this pod's own."""
    wanted, own = rendezvous.find(program, environ), socket.gethostname()
    if wanted is None:
        log.info("rendezvous", "nothing names a host to meet at: no name is waited for")
        return
    own_names = tuple(pod.own_names(own))
    if names.is_local(wanted.host, own, own_names):
        return
    said, hint = rendezvous.why_no_name(wanted.host, own, own_names, environ)
    if said:
        log.finding(Finding("names-unresolved", Level.WARN, said, hint=hint))
    await gate.wait(wanted, resolved.settings, hint and f"{said}: {hint}")


async def _network(resolved: Resolved, environ: Mapping[str, str]) -> DataNetwork:
    """Decide this pod's own network as a worker's is; what may still come is waited for."""
    settings = resolved.settings
    patience = worker_network.patience(settings)
    deadline, pause, said = time.monotonic() + patience, _FIRST, ""
    while True:
        seen = await asyncio.to_thread(
            facts.gather, resolved, environ, sshd="", pid=os.getpid(), mpi=None
        )
        host = Host(seen.hostname)
        worker = Worker(host, seen.control_address, 0, "", seen.control_address, seen)
        network = worker_network.choose(worker, settings)
        left = deadline - time.monotonic()
        if not network.pending or left <= 0:
            break
        line = f"waiting for the data network ({', '.join(network.pending)})"
        if line != said:
            said = line
            log.info("data-network", line)
        await asyncio.sleep(min(pause, left))
        pause = min(pause * 1.5, _LAST)
    if network.pending and settings.data_network is not DataNetworkUse.REQUIRE:
        log.warning("data-network", worker_network.not_ready("", network.pending, patience))
    taken = dict.fromkeys(environ, _HERE)
    given = resolved.given["data_network"]
    return decision.decide([network], settings, taken, values=environ, given=given)
