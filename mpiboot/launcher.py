"""The launcher: gates, plan, private files, then mpirun under the small parent.

``plan`` goes the same way up to the plan; only ``run`` acts on it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from mpiboot import facts, launch_spec, log, render
from mpiboot.act import files, keys, launch, process
from mpiboot.errors import MpibootError, error
from mpiboot.gates import again, gate, leftovers
from mpiboot.job import data, mpirun_line, names, platforms, sshconfig
from mpiboot.job import plan as plans
from mpiboot.model import Decision, Finding, Identity, Json, Level, Mpi, PodFacts
from mpiboot.network.cluster_view import HEADINGS
from mpiboot.observe import dns, hostfiles, pod, programs
from mpiboot.settings import Resolved, Settings

_KEY_LOOK_FIRST, _KEY_LOOK_LAST = 0.05, 1.0


@dataclass(frozen=True, slots=True)
class Ground:
    """What a launcher stands on before it asks anyone: itself, its folder, the job's key."""

    resolved: Resolved
    environ: Mapping[str, str]
    identity: Identity
    folder: Path
    key: keys.JobKey
    started: float


@dataclass(frozen=True, slots=True)
class Seen:
    """What was observed: the plan's input, and what the gate said on the way."""

    observed: plans.Observed
    passed: gate.GateResult
    warnings: tuple[Finding, ...]


def run(resolved: Resolved, program: tuple[str, ...], environ: Mapping[str, str]) -> int:
    """Wait, decide, and become the parent of mpirun; it never returns.

    Raises:
        MpibootError: a gate, a check or a file failed.
    """
    _end_on_signals(resolved)
    odd = mpirun_line.slip(program)
    if odd:
        log.finding(Finding("usage", Level.WARN, odd, hint="write one argument for each word"))
    ground = _ground(resolved, environ)
    seen = asyncio.run(_wait_and_observe(ground, program))
    paths = launch.paths(ground.folder, ground.key.path)
    made = plans.make(seen.observed, resolved, program, paths)
    _say(made.decisions)
    _say_data(made)
    for finding in (*seen.warnings, *made.findings):
        if finding.level is not Level.FAIL:
            log.finding(finding)
    plans.stop_on_failure(made)
    launch.write(made, seen.observed, seen.passed.host_keys, ground.key, resolved, paths)
    launch.start_client(made, seen.observed, seen.passed.host_keys, ground.key, resolved, paths)
    log.info("start", f"starting {render.command(made.argv)}", argv=list(render.masked(made.argv)))
    env = made.environment(environ) | {launch_spec.MARK: paths.launch_dir}
    # A launch inside a launch is part of it.
    env.setdefault(leftovers.NAME, leftovers.new_mark(ground.key.public))
    if resolved.settings.supervise == "off":
        process.replace(made.argv, env)
    let_go = _lets_go(resolved.settings.worker_exit, environ)
    launch.write_spec(made, seen.observed, resolved, paths, ground.started, let_go=let_go)
    process.replace(launch.parent(paths), env, blocked=sorted(launch_spec.SIGNALS))


def _lets_go(wanted: str, environ: Mapping[str, str]) -> bool:
    """Whether workers are told of a good end: where this is the whole job, not a part of it.

    A launcher beside others, as by ``kubectl exec`` or in a script, may be followed by the next.
    """
    if wanted == "never" or environ.get(leftovers.NAME):
        return False
    return wanted == "with-job" or os.getpid() == 1


def wait(resolved: Resolved, environ: Mapping[str, str]) -> int:
    """Pass the gates and nothing more."""
    _end_on_signals(resolved)
    asyncio.run(_pass_gates(_ground(resolved, environ)))
    return 0


def look(
    resolved: Resolved, program: tuple[str, ...], environ: Mapping[str, str]
) -> tuple[Seen, Ground]:
    """Look at every host once, for a program that is not started."""
    ground = _ground(resolved, environ)
    return asyncio.run(_look_and_observe(ground, program)), ground


def show_plan(
    resolved: Resolved, program: tuple[str, ...], environ: Mapping[str, str], *, as_json: bool
) -> int:
    """Print the plan; the code is the one that the launcher would stop with."""
    seen, ground = look(resolved, program, environ)
    made = plans.make(
        seen.observed, resolved, program, launch.paths(ground.folder, ground.key.path)
    )
    found = (*seen.warnings, *seen.passed.findings, *made.findings)
    bad = [item for item in found if item.level is Level.FAIL]
    write = render.plan_json if as_json else render.plan
    sys.stdout.write(
        write(
            made.decisions,
            found,
            made.argv,
            made.set_env,
            made.unset_env,
            rows=made.rows,
            per_host=made.per_host,
        )
    )
    return MpibootError(bad[0]).code if bad else 0


def _say(decisions: tuple[Decision, ...]) -> None:
    """Log the plan once: a table for people, a line for each decision as JSON."""
    if not log.is_json():
        log.info("plan", "the plan:\n" + render.decisions(decisions).rstrip("\n"))
        return
    for item in decisions:
        said = f"{item.name} = {item.value or '-'} ({item.because})"
        fields: dict[str, Json] = {"value": item.value, "source": item.source.value}
        log.info("plan", said, decision=item.name, **fields)


def _say_data(made: plans.Plan) -> None:
    """Log the data network, a worker each; nothing where there is none."""
    if made.rows and not log.is_json():
        log.info("data-network", "the data network:\n" + render.workers(made.rows).rstrip("\n"))
        return
    for row in made.rows:
        cells = dict(zip(HEADINGS, row.cells, strict=True))
        said = ", ".join(f"{name} {cell}" for name, cell in cells.items() if cell)
        log.info("data-network", said, **{name.lower(): cell for name, cell in cells.items()})


def _end_on_signals(resolved: Resolved) -> None:
    """End at once with 128+n: as PID 1 a signal without a handler would be ignored.

    Nothing is to be undone while hosts are being waited for, so the process simply ends.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        said = f"{name} while waiting for hosts: nothing was started"
        log.info("ended", said, signal=name)
        files.termination_message(resolved.settings.termination_log, f"signal: {said}\n")
        os._exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, end)


def _ground(resolved: Resolved, environ: Mapping[str, str]) -> Ground:
    started = time.monotonic()
    settings = resolved.settings
    identity = pod.identity(environ)
    folder = files.runtime_dir(
        settings.runtime_dir, identity.uid, "launcher", tmpdir=environ.get("TMPDIR", "")
    )
    # asyncssh asks for these names, and fails under a uid without a passwd entry.
    for name, value in pod.user_environment(identity, environ, folder).items():
        os.environ[name] = value
    deadline = started + settings.timeout
    mounted = _wait_for_key(
        settings.ssh_key, (identity.home, environ.get("HOME", "")), identity.uid, deadline
    )
    key = keys.load(mounted, folder, environ)
    odd = keys.trust(key, mounted)
    if odd:
        log.finding(odd)
    return Ground(resolved, environ, identity, folder, key, started)


def no_key(wanted: str, homes: tuple[str, ...], uid: int) -> MpibootError:
    """Say where the job's key was looked for."""
    places = wanted or ", ".join(str(item) for item in keys.folders(homes, uid))
    return error("ssh-key", f"no private SSH key in {places}")


def no_mpirun(environ: Mapping[str, str]) -> MpibootError:
    """Say where mpirun was looked for."""
    return error(
        "program-missing",
        f"no mpirun or mpiexec on PATH={environ.get('PATH', '')}",
        hint="install an MPI in the launcher's image, or put its bin folder on PATH",
    )


def _wait_for_key(wanted: str, homes: tuple[str, ...], uid: int, deadline: float) -> Path:
    """Wait for the key's volume: a Secret may be mounted a moment late."""
    look, told = _KEY_LOOK_FIRST, False
    while True:
        found = keys.find(wanted, homes, uid)
        if found:
            return found
        left = deadline - time.monotonic()
        if left <= 0:
            raise no_key(wanted, homes, uid)
        if not told:
            told = True
            log.info("ssh-key", "waiting for the job's SSH key to be mounted")
        time.sleep(min(look, left))
        look = min(look * 2, _KEY_LOOK_LAST)


async def _hostfile(
    ground: Ground, patience: float, program: tuple[str, ...] = (), mpi: Mpi | None = None
) -> hostfiles.Found:
    """Read the hostfile that the program's own mpirun line names, else the settings'."""
    settings = ground.resolved.settings
    path, given = settings.hostfile, str(ground.resolved.given["hostfile"])
    if mpi and program and mpirun_line.is_mpirun(program[0]):
        named = mpirun_line.read(program, mpi.family).hostfile
        path, given = (named, "the mpirun line") if named else (path, given)
    return await hostfiles.find(path, given, ground.environ, patience=patience)


def _access(ground: Ground) -> gate.Access:
    settings = ground.resolved.settings
    hostname = socket.gethostname()
    return gate.Access(
        user=settings.ssh_user or ground.identity.user,
        key=ground.key.path,
        hostname=hostname,
        host_key=ground.key.public,
        fqdns=pod.own_names(hostname),
    )


def _long_form(ground: Ground) -> Callable[[str], str | None]:
    settings = ground.resolved.settings
    search = dns.read_resolv_conf().search
    domain = settings.cluster_domain or names.cluster_domain(search) or "cluster.local"
    return lambda name: names.long_form(name, domain)


def _mpi(ground: Ground) -> Mpi:
    """Ask mpirun what it is.

    Raises:
        MpibootError: ``program-missing``; there is none.
    """
    found = programs.detect_mpi(ground.environ)
    if found is None:
        raise no_mpirun(ground.environ)
    wanted = ground.resolved.settings.mpi
    return found if wanted == "auto" else Mpi(wanted, found.version, found.path, found.said)


def _rest(ground: Ground) -> Settings:
    """Give the settings with what is left of the one deadline."""
    settings = ground.resolved.settings
    left = ground.started + settings.timeout - time.monotonic()
    return dataclasses.replace(settings, timeout=max(0.0, left))


async def _pass_gates(ground: Ground) -> None:
    found = await _hostfile(ground, _rest(ground).timeout)
    for item in found.warnings:
        log.finding(item)
    passed = await gate.wait(
        found.hostfile.hosts, _rest(ground), _access(ground), long_form=_long_form(ground)
    )
    count, seconds = len(found.hostfile.hosts), time.monotonic() - ground.started
    log.info(
        "ready",
        f"all {count} hosts ready after {seconds:.1f} s",
        hosts=count,
        seconds=round(seconds, 3),
        names=round(passed.durations["names"], 3),
    )


async def _wait_and_observe(ground: Ground, program: tuple[str, ...]) -> Seen:
    """Wait for everything; what needs no host is found out meanwhile."""
    own = asyncio.ensure_future(asyncio.to_thread(_own_facts, ground))
    # Before the rest: the family says how the program's own line is to be read.
    mpi = await asyncio.to_thread(_mpi, ground)
    found = await _hostfile(ground, _rest(ground).timeout, program, mpi)
    passed = await gate.wait(
        found.hostfile.hosts,
        _rest(ground),
        _access(ground),
        long_form=_long_form(ground),
        also=own,
    )
    mode = ground.resolved.settings.host_keys
    await leftovers.end(passed.workers, ground.key.public, mode, _access(ground))
    workers = await again.settled(
        passed.workers,
        lambda some: data.pending(some, ground.resolved.settings),
        _rest(ground),
        _access(ground),
    )
    return _seen(ground, found, dataclasses.replace(passed, workers=workers), mpi, own.result())


async def _look_and_observe(ground: Ground, program: tuple[str, ...]) -> Seen:
    """Look once at everything."""
    settings = ground.resolved.settings
    mpi = _mpi(ground)
    own = await asyncio.to_thread(_own_facts, ground)
    found = await _hostfile(ground, 0.0, program, mpi)
    passed = await gate.look(
        found.hostfile.hosts, settings, _access(ground), long_form=_long_form(ground)
    )
    return _seen(ground, found, passed, mpi, own)


def _own_facts(ground: Ground) -> PodFacts:
    return facts.gather(ground.resolved, ground.environ, sshd="", pid=os.getpid(), mpi=None)


def _seen(
    ground: Ground,
    found: hostfiles.Found,
    passed: gate.GateResult,
    mpi: Mpi,
    own: PodFacts,
) -> Seen:
    platform, _ = platforms.recognise(ground.environ)
    observed = plans.Observed(
        hostfile=found.hostfile,
        local=passed.local,
        workers=passed.workers,
        renamed=passed.renamed,
        mpi=mpi,
        links=own.links,
        identity=ground.identity,
        platform=platform,
        environ=ground.environ,
        own=own,
        ssh_client=sshconfig.client(
            ground.resolved.settings.ssh_client,
            ground.resolved.given["ssh_client"].source,
            process.find("ssh", ground.environ.get("PATH", "")) or "",
            ground.identity,
        ),
    )
    return Seen(observed, passed, found.warnings)
