"""Looks at a launcher's hosts, at a worker's own SSH server, and at the paths between workers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from mpiboot.core import log
from mpiboot.core.addresses import is_address
from mpiboot.core.checks import MpibootError, error, failed
from mpiboot.core.facts import Host, Hostfile, Worker
from mpiboot.core.model import Finding, Json, Level
from mpiboot.core.records_json import read_record
from mpiboot.core.settings import Resolved, Settings
from mpiboot.core.wording import counted, first_few
from mpiboot.doctor import looks, table
from mpiboot.doctor.checks import finding, judge_all, ok
from mpiboot.doctor.hosts import HostReport, LauncherPlace, NameLook, merged
from mpiboot.hosts import gate, host_shell, hostfiles, pacing, progress
from mpiboot.hosts.access import SshAccess
from mpiboot.hosts.dns import Resolver
from mpiboot.hosts.dns_query import NoAddress
from mpiboot.hosts.gate import DoctorLook, is_one_of
from mpiboot.hosts.host_shell import HostAnswer
from mpiboot.hosts.pipeline import PipelineOptions, Pipelines
from mpiboot.job import plan as plans
from mpiboot.job.plan_builder import LaunchPaths
from mpiboot.launcher import launch_folder, look
from mpiboot.launcher import setup as launcher_setup
from mpiboot.launcher.observation import Observation
from mpiboot.network import pod, worker_network, worker_pairs
from mpiboot.network.worker_pairs import WORDS, Reached
from mpiboot.ssh.attempt import Attempt
from mpiboot.system import os_calls
from mpiboot.worker.state import WorkerState, running_worker, worker_folder

SERVER: Final = "workers-unreachable"
# What the plan is asked with: its checks don't depend on the program.
ANY_PROGRAM: Final = ("mpirun", "true")


def own_server(resolved: Resolved, environ: Mapping[str, str]) -> Finding:
    """Log in to this worker's own server; how that went."""
    try:
        state, access, _ = log_in_here(resolved, environ)
    except MpibootError as wrong:
        return wrong.finding
    return ok(SERVER, f"{state.sshd} lets {access.user} in at {state.address} port {state.port}")


async def log_in_once(address: str, port: int, settings: Settings, access: SshAccess) -> Worker:
    """Log in once to a server of this pod, as a launcher's gate would; it runs the gate's command.

    Raises:
        MpibootError: what a launcher's gate would say of this host.
    """
    once, settings = PipelineOptions(once=True), replace(settings, ssh_port=port)
    pipelines = Pipelines(settings, access, Resolver(), changed=lambda: None, options=once)
    await pipelines.load()
    (state,) = progress.states((Host(address),))
    return await pipelines.reach(state, (address,))


def log_in_here(
    resolved: Resolved, environ: Mapping[str, str]
) -> tuple[WorkerState, SshAccess, Worker]:
    """Log in to this worker's own server, as a launcher would.

    Raises:
        MpibootError: no worker of mpiboot's runs here, or it does not let us in.
    """
    launcher = launcher_setup.launcher_pod(resolved, environ, looks.role(), patience=0.0)
    wanted = resolved.settings.runtime_dir
    state = running_worker(wanted, environ)
    if state is None:
        folder = worker_folder(wanted, environ) or launcher.folder.parent / "worker"
        raise error(
            SERVER,
            f"no SSH server of mpiboot's runs in this pod: {folder} names none",
            hint="start the container with `args: [worker]`, and look at its log",
        )
    access = launcher_setup.access(launcher)
    look_at = log_in_once(state.address, state.port, resolved.settings, access)
    return state, access, asyncio.run(look_at)


def of_job(
    resolved: Resolved,
    environ: Mapping[str, str],
    only: Sequence[str] = (),
    *,
    measures: bool = False,
) -> Iterator[Finding]:
    """Check the hostfile and every host of it, as far as this pod allows.

    Args:
        resolved: the settings.
        environ: this pod's environment.
        only: the hosts that are asked, by their whole or first names; empty: all.
        measures: whether they measure the paths between them too.

    Raises:
        MpibootError: ``usage``; the hostfile has no such host.
        KeyboardInterrupt: after the findings of the hosts that had answered.
    """
    with listening(resolved.settings, environ) as place:
        doctor = DoctorLook(questions(place), tuple(only))
        try:
            seen, launcher = look.look(resolved, ANY_PROGRAM, environ, doctor)
        except MpibootError as wrong:
            yield from (wrong.finding, *wrong.others)
            if wrong.finding.check in _GOES_ON:
                yield from _without_plan(resolved, environ, place, doctor)
            return
    file = seen.observed.hostfile
    yield from _hostfile(file)
    yield from seen.warnings
    refuse_unknown(only, (host.name for host in file.hosts))
    planned = list(_planned(seen, resolved, launch_folder.paths(launcher.folder)))
    place = replace(place, key=launcher.key.fingerprint if launcher.key else "")
    yield from _passed(file.hosts, seen.passed, place, doctor, planned)
    yield from planned
    if seen.passed.unasked:
        raise KeyboardInterrupt  # put off by the gate until what hosts had answered was printed
    if measures:
        to = launcher_setup.access(launcher)
        yield from _measure(seen.passed.workers, resolved.settings, to)


def refuse_unknown(only: Sequence[str], known: Iterable[str]) -> None:
    """Raise ``usage`` where a host is asked for that is neither known nor this pod."""
    names = tuple(dict.fromkeys((*known, os.uname().nodename)))
    for wanted in only:
        if not any(is_one_of(name, (wanted,)) for name in names):
            hint = f"its hosts are {first_few(names, 8)}"
            raise error("usage", f"the job has no host {wanted!r}", hint=hint)


def _planned(seen: Observation, resolved: Resolved, where: LaunchPaths) -> Iterator[Finding]:
    """Find what the plan of all that were reached finds."""
    try:
        made = plans.make(seen.observed, resolved, where)
    except MpibootError as wrong:
        yield from (wrong.finding, *wrong.others)
        return
    failed_pairs = plans.pair_findings(made, seen.observed, seen.dialled)
    if seen.dialled and not failed_pairs:
        tried = counted(len(seen.dialled), "connection")
        yield ok("worker-pairs", f"workers reach each other: {tried} tried")
    yield from (*failed_pairs, *made.findings)


def _passed(
    listed: Sequence[Host],
    passed: gate.GateResult,
    place: LauncherPlace,
    doctor: DoctorLook,
    planned: Sequence[Finding] = (),
) -> Iterator[Finding]:
    """Report how each host was reached, what it finds itself, and how they differ."""
    yield from (ok("names-unresolved", "this pod itself", one.name) for one in passed.local)
    yield from merged(map(_reached, passed.workers))
    yield from passed.findings
    left_out = (*passed.local, *passed.unasked)
    hosts = [one for one in doctor.select(listed) if one not in left_out]
    names = asyncio.run(look_up(hosts))
    reports = reports_of(hosts, passed.workers, passed.answers, names)
    known = {(item.check, name) for item in planned for name in (item.host, *item.hosts)}
    own = (item for one in reports for item in one.checks or ())
    yield from merged(item for item in own if (item.check, item.host) not in known)
    yield from judge_all(table.HOSTS, {"hosts": reports, "place": place}, {})


def _hostfile(file: Hostfile) -> Iterator[Finding]:
    yield ok("hostfile-missing", f"the hostfile is {file.path}, named by {file.named_by}")
    yield ok("hostfile-invalid", file.size)


def _reached(worker: Worker) -> Finding:
    server = worker.facts.sshd if worker.facts and worker.facts.sshd else "sshd"
    mpi = worker.facts.mpi if worker.facts else worker.mpi
    message = f"{worker.address} port {worker.port}, {server}, {mpi.banner if mpi else 'no mpirun'}"
    return ok(SERVER, message, worker.host.name)


# Without these there is no plan, but hosts can still be looked for.
_GOES_ON: Final = frozenset({"program-missing", "ssh-key", "runtime-folder", "tmpdir"})


def _without_plan(
    resolved: Resolved, environ: Mapping[str, str], place: LauncherPlace, doctor: DoctorLook
) -> Iterator[Finding]:
    """Look at the hostfile; log in where there is a key, else only look up the hosts' names."""
    try:
        file = asyncio.run(hostfiles.of_job(resolved, environ, 0.0)).hostfile
    except MpibootError as wrong:
        yield from (wrong.finding, *wrong.others)
        return
    yield from _hostfile(file)
    refuse_unknown(doctor.hosts, (host.name for host in file.hosts))
    try:
        launcher = launcher_setup.launcher_pod(resolved, environ, looks.role(), patience=0.0)
        to = launcher_setup.access(launcher)
        passed = asyncio.run(gate.probe_once(file.hosts, resolved.settings, to, doctor=doctor))
    except MpibootError:
        yield from asyncio.run(_names(doctor.select(file.hosts)))
        return
    yield from _passed(file.hosts, passed, place, doctor)
    if passed.unasked:
        raise KeyboardInterrupt


async def _names(hosts: Sequence[Host]) -> list[Finding]:
    resolver = Resolver(sockets=pacing.lookup_sockets(os_calls.most_open_files()))
    answers = await asyncio.gather(*(resolver.ask(host.name) for host in hosts))
    return [
        ok("names-unresolved", f"resolves to {', '.join(answer.addresses)}", host.name)
        if answer.addresses
        else failed("names-unresolved", answer.detail, host=host.name)
        for host, answer in zip(hosts, answers, strict=True)
    ]


_AGAIN: Final = 2  # questions beside the first one
# Connections wait here until the launcher has asked all hosts; the kernel takes its own bound.
_BACKLOG: Final = 4096
_NEVER: Final = (NoAddress.NXDOMAIN, NoAddress.NO_RECORD)


@contextlib.contextmanager
def listening(settings: Settings, environ: Mapping[str, str]) -> Iterator[LauncherPlace]:
    """Listen at this pod's control address while hosts try to reach it; no answer is sent."""
    name = socket.gethostname()
    api = environ.get(pod.API, "")
    address, _ = pod.control_address(settings.control_ifname, name, api=api)
    with contextlib.ExitStack() as open_sockets:
        free = _listen(address, range(1), open_sockets)
        first, _, last = settings.port_range.partition("-")
        # From its end: MPI's daemons take the first ones.
        ports = range(int(last), int(first) - 1, -1) if last else range(0)
        own = _listen(address, ports, open_sockets)
        yield LauncherPlace(name, address, free, own, settings.port_range)


def _listen(address: str, ports: range, open_sockets: contextlib.ExitStack) -> int:
    """Listen at the first of these ports that is free; 0 where none is."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for port in ports if address else ():
        with contextlib.suppress(OSError):
            server = socket.create_server((address, port), family=family, backlog=_BACKLOG)
            return int(open_sockets.enter_context(server).getsockname()[1])
    return 0


def questions(place: LauncherPlace) -> tuple[str, ...]:
    """Give what each host is asked beside the gate's question."""
    ports = [port for port in (place.port, place.range_port) if port]
    places = [(place.address, port) for port in ports]
    places += [(place.name, port) for port in ports[-1:]]
    return ("own_values", *host_shell.dials(place.seconds, places), "own_checks")


def reports_of(
    hosts: Sequence[Host],
    workers: Sequence[Worker],
    answers: Mapping[str, Attempt],
    names: Mapping[str, NameLook],
) -> tuple[HostReport, ...]:
    """Put together what is known of each host."""
    by_name = {worker.host.name: worker for worker in workers}
    found = []
    for host in hosts:
        attempt = answers.get(host.name)
        answer = host_shell.read(attempt.output if attempt else "")
        found.append(
            HostReport(
                host.name,
                by_name.get(host.name),
                names.get(host.name),
                dict(answer.values),
                _dials(answer),
                attempt.fingerprint if attempt else "",
                _own_checks(host.name, answer),
            )
        )
    return tuple(found)


def _own_checks(host: str, answer: HostAnswer) -> tuple[Finding, ...] | None:
    """Read what a worker's doctor has printed; None where it has none, or where it is broken."""
    try:
        findings = json.loads(answer.own_checks or "")["findings"]
        return tuple(_finding_of(host, item) for item in findings)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _finding_of(host: str, item: Json) -> Finding:
    found = replace(read_record(Finding, item, strict=False), host=host, hosts=())
    if found.check in table.GROUP_OF:
        return found
    # Its mpiboot is of another version.
    return replace(found, check="worker-checks", message=f"{found.check}: {found.message}")


def _dials(answer: HostAnswer) -> dict[tuple[str, int], Reached]:
    """Read a host's tries to connect to the launcher, by address or name and port."""
    return {
        (address, int(port)): WORDS[how]
        for address, port, how in answer.dials
        if port.isdecimal() and how in WORDS
    }


async def look_up(hosts: Sequence[Host]) -> dict[str, NameLook]:
    """Ask for each host's name: as every program does, then the nameservers themselves, twice."""
    # The system's answers are of both IP versions, whatever this pod's links have.
    each = max(1, pacing.lookup_sockets(os_calls.most_open_files()) // 2)
    system = Resolver(sockets=each)
    servers = Resolver(system=lambda _: (), families=("AAAA", "A"), sockets=each)
    listed = [host.name for host in hosts if not is_address(host.name)]
    looks = await asyncio.gather(*(_look_up(name, system, servers) for name in listed))
    return dict(zip(listed, looks, strict=True))


async def _look_up(name: str, system: Resolver, servers: Resolver) -> NameLook:
    began = time.monotonic()
    first = await system.ask(name)
    seconds = time.monotonic() - began
    if not first.addresses:
        return NameLook(unknown=first.reason in _NEVER)
    answers, found_as = [first.addresses], ""
    for _ in range(_AGAIN):
        again = await servers.ask(name)
        if again.addresses:
            answers.append(again.addresses)
            # Of /etc/hosts it is the name itself.
            found_as = again.searched[-1] if again.searched else ""
    return NameLook(tuple(answers), seconds, "" if found_as == name else found_as)


_TWO: Final = 2


def _measure(workers: Sequence[Worker], settings: Settings, access: SshAccess) -> Iterator[Finding]:
    """Announce the measurement, do it, and judge it."""
    if access.pods is not None:
        yield _unknown("hosts that kubectl enters can't measure the paths between them")
        return
    every = (
        worker_pairs.path_host(worker, worker_network.choose(worker, settings))
        for worker in workers
    )
    hosts = [host for host in every if host is not None]
    known = {host.name for host in hosts}
    unseen = [one.host.name for one in workers if one.host.name not in known]
    yield from _left_out(unseen, "its links are not known, as without mpiboot")
    chosen = worker_pairs.paths(hosts)
    if len(hosts) < _TWO:
        yield _unknown("there are no two hosts between which a path could be measured")
        return
    log.info("network", worker_pairs.announcement(chosen, len(hosts)))
    by_name = {one.host.name: one for one in workers}
    # Loaded where it is asked for: doctor has to report an image that lacks asyncssh.
    from mpiboot.hosts import pairs  # noqa: PLC0415

    seen, left_out = asyncio.run(pairs.measure_paths(hosts, by_name, chosen, settings, access))
    yield from _left_out(left_out, "another version of mpiboot, no free port, or no login")
    yield from judge_all(table.PATHS, {"paths": seen}, {})


def _left_out(names: Sequence[str], why: str) -> Iterator[Finding]:
    if names:
        yield _unknown(f"takes no part in the measurement: {why}", names)


def _unknown(message: str, names: Sequence[str] = ()) -> Finding:
    return finding(Level.UNKNOWN, "network-reach", message, hosts=names)
