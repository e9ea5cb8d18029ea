"""The commands that start no job: wait, plan, exec, and doctor's look at the hosts."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from mpiboot.core import addresses, log
from mpiboot.core.checks import MpibootError, ShownError, error
from mpiboot.core.facts import Host, Worker
from mpiboot.core.model import AUTO, Decision, Finding, Level, Mpi, Source
from mpiboot.core.settings import Resolved
from mpiboot.core.wording import assigned
from mpiboot.hosts import gate, remote_commands
from mpiboot.hosts.gate import GateResult
from mpiboot.job import mpi_environment, mpirun_line, platforms, program_words, render
from mpiboot.job import plan as plans
from mpiboot.job.plan_input import Observed
from mpiboot.launcher import prepare, role, setup
from mpiboot.launcher.prepare import Observation
from mpiboot.launcher.setup import LauncherPod, launcher_pod
from mpiboot.network import decision, pod, worker_network
from mpiboot.network.decision import DataNetwork
from mpiboot.network.records import Owned
from mpiboot.supervisor import signals
from mpiboot.supervisor.job import signal_name
from mpiboot.supervisor.verdict import WAITING, by_signal
from mpiboot.system import process, programs
from mpiboot.system.programs import in_thread
from mpiboot.worker import facts


def wait(resolved: Resolved, environ: Mapping[str, str], *, as_json: bool) -> None:
    """Only wait for the hosts; with ``as_json`` the result is on stdout, failures included."""
    end_on_signals(resolved)

    async def pass_gates() -> GateResult:
        launcher = launcher_pod(resolved, environ)
        return await prepare.pass_gates(launcher, await prepare.find_job(launcher))

    try:
        passed = asyncio.run(pass_gates())
    except MpibootError as wrong:
        if as_json:
            record = {"ready": False, "hosts": (), "findings": (wrong.finding, *wrong.others)}
            sys.stdout.write(render.as_json(record))
        raise
    if as_json:
        hosts: list[dict[str, str | int | None]]
        hosts = [{"host": one.name, "address": "", "port": None} for one in passed.local]
        for one in passed.workers:
            hosts.append({"host": one.host.name, "address": one.address, "port": one.port})
        record = {"ready": True, "hosts": hosts, "findings": passed.findings}
        sys.stdout.write(render.as_json(record))


def look(
    resolved: Resolved,
    program: tuple[str, ...],
    environ: Mapping[str, str],
    doctor: tuple[str, ...] = (),
    role_name: str = "launcher",
) -> tuple[Observation, LauncherPod]:
    """Observe every host once, without starting the program.

    ``doctor`` are its own queries, and ``role_name`` is that of its private folder.
    """
    own = partial(role.gather_facts, resolved, environ, os.getpid())
    launcher = launcher_pod(resolved, environ, role_name, waits=False)
    return asyncio.run(prepare.observe(launcher, program, own, doctor=doctor)), launcher


def show_plan(
    resolved: Resolved,
    program: tuple[str, ...],
    environ: Mapping[str, str],
    *,
    as_json: bool,
    offline: bool = False,
) -> None:
    """Print the plan, and end with the first failure in it.

    Args:
        resolved: the settings.
        program: what would be started.
        environ: this pod's environment, or that of a shell away from the cluster.
        as_json: print JSON.
        offline: contact no host, to plan away from the cluster.

    Raises:
        ShownError: the failure with which the launcher would stop.
        MpibootError: there can be no plan.
    """
    before: tuple[Finding, ...] = ()
    role.refuse_removed(resolved)
    plan = _plan_without_hosts(resolved, program, environ)
    if plan is None and offline:
        plan, before = offline_plan(resolved, program, environ)
    elif plan is None:
        seen, launcher = look(resolved, program, environ)
        plan = plans.make(seen.observed, resolved, setup.paths(launcher.folder))
        pairs = plans.pair_findings(plan, seen.observed, seen.dialled)
        before = (*seen.passed.findings, *pairs)
    found = (*before, *plan.findings)
    text = render.plan_json(plan, found) if as_json else render.plan(plan, found)
    sys.stdout.write(text)
    for item in found:
        if item.level is Level.FAIL:
            raise ShownError(item)


def _plan_without_hosts(
    resolved: Resolved, program: tuple[str, ...], environ: Mapping[str, str]
) -> plans.Plan | None:
    """Make the plan of what is no launch; None for an mpirun that starts ranks."""
    if role.prints(resolved, program, environ):
        name, message = "mpirun", "it prints something and starts nothing: no host is waited for"
    elif not program_words.is_mpirun(program[0]):
        name, message = "command", f"it runs once, in this pod; {role.ranks_hint(program)}"
    else:
        return None
    return plans.Plan((Decision(name, program[0], Source.DETECTED, message),), (), program)


def end_on_signals(resolved: Resolved, when: str = WAITING) -> None:
    """Exit at once with 128+n on a signal, and say when: without a handler PID 1 would ignore it.

    While hosts are waited for there is nothing to clean up.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        ended = by_signal(number, when)
        message, name = ended.message.partition(": ")[2].rstrip(), signal_name(number)
        log.info("ended", message, signal=name, exit=ended.code, reference=ended.reference)
        log.write_termination(resolved.settings.termination_log, ended.message)
        os._exit(ended.code)

    for number in signals.ENDING:
        signal.signal(number, end)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        # Meant for the program: the default action would end the wait, and exec keeps SIG_IGN.
        signal.signal(number, lambda *_: None)


# Where a launcher's private files are in a usual pod.
_FOLDER: Final = Path("/run/mpiboot/launcher")


def offline_plan(
    resolved: Resolved, program: tuple[str, ...], environ: Mapping[str, str]
) -> tuple[plans.Plan, tuple[Finding, ...]]:
    """Make the plan without the hosts, and a finding of what is unknown then.

    Args:
        resolved: the settings.
        program: what would be started.
        environ: the environment of this shell.

    Raises:
        MpibootError: ``hostfile-missing``, ``hostfile-invalid``; ``program-missing``: the MPI is
            not known.
    """
    mpi = _offline_mpi(resolved, environ, program_words.called(program))
    line = mpirun_line.read(program, mpi.family)
    # This shell's variables are the launcher's where they are those of a platform: nobody else has
    # these.
    given = environ if platforms.recognise(environ)[0] is not platforms.PLAIN else {}
    launcher = LauncherPod(resolved, given, pod.identity(environ), _FOLDER, 0.0)
    found = asyncio.run(prepare.find_hosts(launcher, line))
    observed = Observed(found.hostfile, mpi, launcher.identity, given, line)
    message = "hosts and keys not checked: links, RDMA ports, MPI and variables of the pods are "
    message += "unknown, and their user is assumed to be yours"
    unknown = Finding("offline", Level.UNKNOWN, message)
    return plans.make(observed, resolved, setup.paths(_FOLDER)), (unknown,)


def _offline_mpi(resolved: Resolved, environ: Mapping[str, str], called: str) -> Mpi:
    wanted, found = resolved.settings.mpi, programs.detect_mpi(environ, called)
    if wanted is not AUTO and (found is None or wanted is not found.family):
        by = resolved.given["mpi"]
        return Mpi(wanted, "(not known)", "mpirun", f"{wanted.value} ({by})")
    if found is None:
        hint = "say which one the image has: --mpi openmpi4, openmpi5, spectrum, mpich or intel"
        raise error("program-missing", "no mpirun or mpiexec on PATH", hint=hint)
    return found


def execute(resolved: Resolved, program: tuple[str, ...], environ: Mapping[str, str]) -> NoReturn:
    """Wait until the program's rendezvous host resolves, and become the program.

    Raises:
        MpibootError: ``program-missing``; ``names-unresolved`` at the deadline; a check of the data
            network where that is required.
    """
    process.lookup(program, environ)
    end_on_signals(resolved)
    network = asyncio.run(_prepare(resolved, program, environ))
    plans.stop_on_failure(network.findings)
    for finding in network.findings:
        log.finding(finding)
    for item in network.decisions:
        log.debug("plan", render.decision(item))
    message = " ".join(assigned(name, value) for name, value in network.common.items())
    log.info("data-network", f"set for the program: {message or 'nothing'}")
    log.info("start", f"starting {program[0]}")
    process.replace(program, {**environ, **network.common})


async def _prepare(
    resolved: Resolved, program: tuple[str, ...], environ: Mapping[str, str]
) -> DataNetwork:
    """Wait for the name, unless it is this pod's own, and observe this pod's network meanwhile."""
    network = asyncio.ensure_future(_network(resolved, environ))
    wanted, own = program_words.find_rendezvous(program, environ), socket.gethostname()
    if wanted is None:
        log.info("rendezvous", "no rendezvous host is named: not waiting for any name")
    elif not addresses.is_local(wanted.host, own, pod.own_names(own)):
        await gate.wait_for_name(wanted, resolved.settings)
    return await network


async def _network(resolved: Resolved, environ: Mapping[str, str]) -> DataNetwork:
    """Decide this pod's data network as a worker's; wait for what may still come up."""
    settings = resolved.settings

    async def observe(*_: Worker) -> Worker:
        gather = partial(facts.gather, resolved, environ, mpi=None, pid=os.getpid())
        seen = await in_thread(gather)
        host = Host(seen.hostname)
        return Worker(host, seen.control_address, 0, "", seen.control_address, seen)

    _, networks = await remote_commands.wait_until_settled(
        (await observe(),), lambda one: worker_network.choose(one, settings), settings, observe
    )
    here = "this pod's environment"
    users = {name: Owned(value, Source.ENVIRONMENT, here) for name, value in environ.items()}
    given = resolved.given["data_network"]
    found = decision.decide(tuple(networks.values()), settings, users, given=given)
    return mpi_environment.of_ranks(found)
