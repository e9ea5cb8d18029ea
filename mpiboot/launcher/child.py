"""The parent's child: waits for the hosts, makes the plan and its files, and holds the connections.

It loads all of mpiboot, and stays beside mpirun with the hosts' connections: for the launch
agents' sessions, and to answer the parent's queries. If it fails, or the parent forwards a signal
that ends the launcher, it tells the workers that it has reached; the parent gives it a moment for
that, and then sends SIGKILL.

A command that is no launch (a script, ``horovodrun``, DeepSpeed's launcher) may call ``ssh`` by
the hostfile's names, and knows nothing of ports, keys and late hosts. Its ``ssh`` is
``libexec/ssh``, and the first that needs a host has the parent start ``serve_logins``: a gate
beside the command, which reports each host as soon as that is ready.
"""

from __future__ import annotations

import asyncio
import gc
import os
import select
import shutil
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from mpiboot.core import addresses, launch_names, launch_spec, log
from mpiboot.core.checks import MpibootError, error
from mpiboot.core.facts import Worker
from mpiboot.core.launch_spec import Failure
from mpiboot.core.model import Level
from mpiboot.core.settings import Resolved, resolve
from mpiboot.core.wording import counted
from mpiboot.hosts import error_report, host_shell, hostfiles
from mpiboot.hosts.access import PodAccess
from mpiboot.hosts.gate import GateResult
from mpiboot.hosts.remote_commands import RemoteCommands
from mpiboot.job import job_hosts, names, render
from mpiboot.job import plan as plans
from mpiboot.job.plan_input import LaunchPaths, Observed
from mpiboot.launcher import launch_folder, observation, shims
from mpiboot.launcher.launch_folder import Logins
from mpiboot.launcher.setup import LauncherPod, access, launcher_pod
from mpiboot.network import pod as own_pod
from mpiboot.ssh import config as sshconfig
from mpiboot.ssh.connections import Connections, PoolConfig
from mpiboot.supervisor.signals import ENDING, SIGNALS, by_signal
from mpiboot.system import files

if TYPE_CHECKING:
    from mpiboot.ssh.pool import AgentRequests, Pool
    from mpiboot.supervisor.host_commands import HostCommands


# New objects before the collector looks: hardly anything of a host is in a cycle, and of a thousand
# hosts' gate it took a tenth of the CPU time.
_OBJECTS: Final = 50_000


def main(resolved: Resolved, program: tuple[str, ...], attempt: str) -> NoReturn:
    """Prepare a launch, hand it or the failure to the parent, and end this process.

    The arguments are those of ``role.start_child``.
    """
    parent = os.getppid()
    os.set_inheritable(launch_names.PARENT, False)
    for number in SIGNALS - ENDING - {signal.SIGCHLD}:
        signal.signal(number, _leave_to_the_parent)
    loop, reached = ChildLoop(), ReachedWorkers()
    # It is never in a terminal's foreground group, and may write there.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    gc.freeze()
    gc.set_threshold(_OBJECTS)
    before = dict(os.environ)
    service: Service | None = None
    part = not attempt  # of a job, which may go on with other launches
    result: launch_spec.Result
    try:
        result, service = prepare_launch(
            resolved, program, before, parent, loop, reached, attempt=attempt
        )
    except EndedBySignal as ended:
        result = by_signal(ended.number)
    except MpibootError as wrong:
        result = _failure(wrong, reached)
    except Exception as wrong:  # noqa: BLE001 - the boundary of this process
        result = _failure(error_report.bug(wrong), reached)
    text = launch_spec.to_line(result)
    while text:
        text = text[os.write(launch_names.PARENT, text) :]
    if isinstance(result, launch_spec.Failure):
        loop.run_last(reached.tell(result, goes_on=part))
    for work in loop.afterwards:
        loop.run_last(work())
    if service is not None:
        loop.run_last(service.serve())
    # Ending takes CPU time, to free this process's memory.
    os._exit(0)


def _failure(wrong: MpibootError, reached: ReachedWorkers) -> launch_spec.Failure:
    """Log a failure, and give what the parent needs of it."""
    message = error_report.say(wrong)
    earlier = reached.say_attempt()
    message += f"{earlier}\n" if earlier else ""
    host = next((item.host for item in (wrong.finding, *wrong.others) if item.host), "")
    return launch_spec.Failure(wrong.code, wrong.finding.check, message, host=host)


def _leave_to_the_parent(_number: int, _frame: FrameType | None) -> None:
    """Ignore a signal; programs that this process starts have the default action."""


def _end_with_the_parent() -> NoReturn:
    """Wait until the parent is gone, and end without any cleanup."""
    gone = select.poll()
    gone.register(launch_names.PARENT, 0)
    gone.poll()
    os._exit(1)


def prepare_launch(
    resolved: Resolved,
    program: tuple[str, ...],
    before: Mapping[str, str],
    parent: int,
    loop: ChildLoop,
    reached: ReachedWorkers,
    *,
    attempt: str,
) -> tuple[launch_spec.LaunchSpec, Service]:
    """Wait, decide, and write the files of a launch.

    Returns:
        The launch, and what this process serves while that runs.

    Args:
        resolved: the settings.
        program: the user's line.
        before: the parent's environment; this process adds to its own.
        parent: the parent's process number.
        loop: runs what waits.
        reached: gets this pod, and the hosts that are ready.
        attempt: this launcher's name for workers; empty where it is a part of a job.

    Raises:
        MpibootError: a gate, a check or a file failed.
        EndedBySignal: a signal came meanwhile.
    """
    environ = os.environ
    pod = _own_pod(resolved, program, parent, loop, reached, attempt)
    seen = loop.run(observation.wait(pod, program, reached.workers))
    earlier = reached.say_attempt()
    paths = launch_folder.paths(pod.folder, parent)
    # In a thread: the loop meanwhile reads from workers that dial each other.
    made = loop.run(asyncio.to_thread(_decide, seen.observed, resolved, paths))
    for level, event, message, fields in render.log_lines(made, seen.observed):
        log.say(level, event, message, **fields)
    found = [
        finding
        for finding in (*seen.warnings, *made.findings)
        if finding.level is not Level.FAIL and finding not in seen.already_said
    ]
    error_report.say_findings(found)
    plans.stop_on_failure(made.findings)
    launch = launch_folder.Launch(
        *(made, seen.observed, seen.passed.host_keys, pod.key, resolved, paths, pod.pods),
        client=pod.client,
    )
    launch.write()
    if made.meeting:
        plans.stop_on_failure(loop.run(observation.master_port_taken(pod, seen, made.meeting)))
    _stop_on_pairs(loop, seen, made)
    env = made.environment(environ) | {launch_names.LAUNCH_DIR: paths.launch_dir}
    env.setdefault(launch_names.LAUNCH_ID, seen.launch_id)
    spec = launch.spec(before, env, attempt=attempt)
    spec = replace(spec, earlier=earlier, times=seen.passed.times)
    if launch_names.KEEP_KEY in environ and pod.key:
        launch.logins(pod.key).write_pool()
    service = Service(launch.pool_config(), seen.connections, pod.pods, paths.launch_dir, env)
    if launch.by_pool:
        service.listen()
    line, _, more = render.command(made.argv).partition("\n")  # a script's text has its own lines
    line += f" (and {counted(more.count(chr(10)) + 1, 'more line')})" if more else ""
    log.info("start", f"starting {line}", argv=list(made.argv))
    return spec, service


def _own_pod(
    resolved: Resolved,
    program: tuple[str, ...],
    parent: int,
    loop: ChildLoop,
    reached: ReachedWorkers,
    attempt: str = "",
) -> LauncherPod:
    """Set this pod up; ``program`` may name a hostfile, and is empty for logins alone."""
    environ = os.environ
    reached.launcher = launcher_pod(
        resolved,
        environ,
        pid=parent,
        # The launches of a command have its name.
        attempt=attempt or environ.get(launch_names.ATTEMPT, ""),
        may_disconnect=not attempt,
        needs_key=lambda patience: loop.run(
            observation.needs_key(resolved, environ, patience, program)
        ),
    )
    return reached.launcher


def _decide(observed: Observed, resolved: Resolved, paths: LaunchPaths) -> plans.Plan:
    """Make the plan without the cyclic garbage collector, as nothing here makes cycles.

    With thousands of workers it would take a third of the time.
    """
    gc.disable()
    try:
        return plans.make(observed, resolved, paths)
    finally:
        gc.enable()


@dataclass(slots=True, eq=False)
class Service:
    """What this process does while mpirun runs; without ``config`` no host is reached by SSH.

    ``folder`` is the launch folder, ``environ`` mpirun's environment.
    """

    config: PoolConfig | None
    connections: Connections | None
    pods: PodAccess | None
    folder: str
    environ: Mapping[str, str]
    requests: AgentRequests | None = None

    def listen(self) -> None:
        """Let launch agents come from now on; they wait until it serves.

        Raises:
            MpibootError: ``runtime-folder``.
        """
        from mpiboot.ssh.pool import AgentRequests  # noqa: PLC0415 - the gate has loaded asyncssh

        names = [host.name for host in self.config.hosts] if self.config else []
        with files.writing():
            self.requests = AgentRequests(Path(self.folder), names)

    async def serve(self) -> None:
        """Serve until the parent closes its socket."""
        # Loaded while mpirun starts.
        from mpiboot.supervisor.answers import Answers  # noqa: PLC0415
        from mpiboot.supervisor.host_commands import HostCommands  # noqa: PLC0415

        pool: Pool | None = None
        if self.config and self.connections:
            from mpiboot.ssh.pool import Pool  # noqa: PLC0415

            pool = Pool(self.config, self.connections)
            if self.requests:
                self.requests.serve(pool)
        commands = HostCommands(pool, self.pods, self.environ)
        await Answers(commands, self.folder, self.environ, launch_names.PARENT).serve()


def _stop_on_pairs(loop: ChildLoop, seen: observation.Observation, made: plans.Plan) -> None:
    """Log what the workers found when they dialled each other.

    Raises:
        MpibootError: ``worker-pairs`` or ``worker-address``; MPI would hang.
    """
    if seen.pairs is None:
        return
    dialled = loop.run(seen.pairs.results())
    loop.afterwards.append(seen.pairs.close)
    found = plans.pair_findings(made, seen.observed, dialled)
    plans.stop_on_failure(found)
    for finding in found:
        log.finding(finding)


T = TypeVar("T")

# Seconds that cancelled work may take to clean up.
_TIDY: Final = 0.5


class EndedBySignal(Exception):  # noqa: N818 - no error
    """A signal ends the launcher; its number."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class ChildLoop:
    """Runs coroutines one after the other; tasks left in it end with this process."""

    def __init__(self) -> None:
        """Handle signals from now on; only in the main thread."""
        # Not asyncio.run: it waits for every thread, even one blocked by a dead nameserver.
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._signal: asyncio.Future[int] = self._loop.create_future()
        self._started: list[asyncio.Task[None]] = []
        # What can wait until mpirun has started.
        self.afterwards: list[Callable[[], Coroutine[Any, Any, None]]] = []
        for number in ENDING:
            self._loop.add_signal_handler(number, self._note, number)

    def _note(self, number: int) -> None:
        if not self._signal.done():
            self._signal.set_result(number)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work to its end.

        Raises:
            EndedBySignal: a signal came first.
        """
        task = self._loop.create_task(work)
        either: set[asyncio.Future[Any]] = {task, self._signal}
        self._loop.run_until_complete(asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED))
        if task.done():
            return task.result()
        task.cancel()
        self._loop.run_until_complete(asyncio.wait({task}, timeout=_TIDY))
        raise EndedBySignal(self._signal.result())

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Start work that goes on beside what is run."""
        self._started.append(self._loop.create_task(work))

    def run_last(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the last steps of this process, whatever signal has come."""
        self._loop.run_until_complete(work)


# Seconds; one worker that has got the message is enough for the next launcher.
_TELLING: Final = 2.0


@dataclass(slots=True, eq=False)
class ReachedWorkers:
    """The workers that are ready so far, and the line about earlier attempts.

    ``launcher`` is None before it is set up; ``earlier`` is empty at the first attempt.
    """

    launcher: LauncherPod | None = None
    workers: list[Worker] = field(default_factory=list)
    earlier: str = ""

    def say_attempt(self) -> str:
        """Log once which attempt this is, and how the last one ended; empty for the first one."""
        name = self.launcher.attempt if self.launcher else ""
        before = None if self.earlier else job_hosts.earlier(self.workers, name)
        if before:
            self.earlier = before.message
            log.info("attempt", before.message, attempt=before.number + 1, ended=before.ended)
        return self.earlier

    async def tell(self, failure: Failure, *, goes_on: bool) -> None:
        """Tell the workers why mpirun is not started, within a time limit.

        Args:
            failure: why.
            goes_on: whether this launch is below a command, which may go on.
        """
        workers = [worker for worker in self.workers if worker.runs_mpiboot]
        if self.launcher is None or not self.launcher.attempt or not workers:
            return
        settings = self.launcher.resolved.settings
        hold = settings.hold_on_failure if failure.held else 0.0
        why = f"{failure.message.partition(chr(10))[0]}, exit {failure.code}"
        order = host_shell.job_failed(self.launcher.attempt, None if goes_on else hold, why)
        if goes_on:
            _leave_logins(self.launcher, workers)
        commands = RemoteCommands(access(self.launcher), settings.host_keys)
        runs = (commands.run(worker, order) for worker in workers)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.gather(*runs, return_exceptions=True), _TELLING)


def _leave_logins(launcher: LauncherPod, workers: Sequence[Worker]) -> None:
    """Write the logins with which the workers are told of the command's end.

    A launch that was started has written them already, with more hosts.
    """
    if any(launcher.folder.glob("launch-*")):
        return
    if launcher.key is None:  # hosts reached by kubectl don't run mpiboot's worker
        return
    folder = Path(launch_folder.paths(launcher.folder, launcher.pid).launch_dir)
    hosts = {worker.host.name: worker for worker in workers}
    logins = Logins(folder, hosts, {}, launcher.key, launcher.resolved.settings)
    with suppress(MpibootError):  # as on a full disk; the launch's failure is logged already
        logins.make_folder()
        logins.write_pool()
        logins.write_baselines(workers)


# Of a host's number, by which it differs from the others.
_DIGITS: Final = 4


def by_every_name(workers: Sequence[Worker], renamed: Mapping[str, str]) -> dict[str, Worker]:
    """Map each name that a program may use for a host to it: long, short, and address.

    Args:
        workers: who passed the gate.
        renamed: the long names of those that need one, by the hostfile's.
    """
    found = {worker.host.name: worker for worker in workers}
    others = [
        (name, worker)
        for worker in workers
        for name in {
            renamed.get(worker.host.name, worker.host.name),
            names.short(worker.host.name),
            worker.address,
        }
    ]
    # Two hosts may share a first label, and on the node's network an address.
    count = Counter(name for name, _ in others)
    return {name: worker for name, worker in others if count[name] == 1} | found


def that_may_join(
    workers: Sequence[Worker], renamed: Mapping[str, str]
) -> tuple[sshconfig.LaunchHost, ...]:
    """Give patterns for names of hosts that may join: those of the job with another number.

    An elastic job gets more hosts while it runs, and its program logs in to them. They are reached
    like the others, with the same host key; if these differ from each other there is no pattern.
    """
    found: dict[str, set[sshconfig.LaunchHost]] = {}
    for worker in workers:
        whole = renamed.get(worker.host.name, worker.host.name)
        label = names.short(worker.host.name)
        stem = label.rstrip("0123456789")
        if stem in ("", label) or addresses.is_address(worker.host.name):
            continue
        for name in {label, worker.host.name, whole}:
            pattern = f"{stem}*{name[len(label) :]}"
            lacks = whole[len(name) :] if whole.startswith(name) else ""
            entry = sshconfig.LaunchHost(pattern, f"%h{lacks}", worker.port, worker.user)
            found.setdefault(pattern, set()).add(entry)
    # ssh takes the first match, and the shortest pattern also matches longer names.
    patterns = sorted(found, key=len, reverse=True)
    return tuple(next(iter(found[name])) for name in patterns if len(found[name]) == 1)


def serve_logins(path: str) -> NoReturn:
    """Run the gate beside a command, whose ssh has asked for a host, and stay until its end.

    The command goes on whatever comes of it: its ssh reads why a host was not ready.

    Args:
        path: the command's private folder.
    """
    os.set_inheritable(launch_names.PARENT, False)
    loop, parent, folder, why = ChildLoop(), os.getppid(), Path(path), ""
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    os.environ["PATH"] = shims.cleared(os.environ)
    written = CommandLogins(folder, os.environ["PATH"])
    loop.start(written.serve())
    try:
        resolved = resolve({}, os.environ)
        settings = resolved.settings
        log.configure(level=settings.log_level, form=settings.log_format, role="launcher")
        prepare_logins(resolved, written, parent, loop)
    except EndedBySignal:
        os._exit(1)
    except MpibootError as wrong:
        why = error_report.say(wrong)
    except Exception as wrong:  # noqa: BLE001 - the boundary of this process
        why = error_report.say(error_report.bug(wrong))
    files.write_private(folder / launch_names.OVER, why)
    loop.run_last(asyncio.sleep(float("inf")))  # the thread ends this process
    os._exit(0)


def prepare_logins(
    resolved: Resolved, written: CommandLogins, parent: int, loop: ChildLoop
) -> None:
    """Wait for the hosts, and write what a command's ssh reads as soon as each is ready.

    Args:
        resolved: the settings.
        written: gets what has to be written.
        parent: the process beside the command.
        loop: runs what waits.

    Raises:
        MpibootError: the gate or a file failed.
        EndedBySignal: the command is over.
    """
    environ, reached = dict(os.environ), ReachedWorkers()
    if not _hosts_are_named(resolved, environ):
        written.begin(())
        return
    found = loop.run(hostfiles.of_job(resolved, environ, resolved.settings.timeout))
    own = socket.gethostname()
    fqdns = own_pod.own_names(own)
    named = (host.name for host in found.hostfile.hosts)
    written.begin([name for name in named if not names.is_local(name, own, fqdns)])
    if not written.expected:
        return
    pod = _own_pod(resolved, (), parent, loop, reached)
    if pod.chosen is not None:
        raise error(
            "settings-conflict",
            f"ssh can't reach the job's hosts, which mpirun reaches by kubectl exec: "
            f"{pod.chosen.reason}",
            hint="mount the job's key Secret, and let the hosts run sshd (`mpiboot worker`)",
        )
    written.pod = pod
    written.connections = Connections(sshconfig.patience(resolved.settings.ssh_keepalive))
    try:
        gate = observation.pass_gates(pod, reached.workers, written.update, written.connections)
        written.ready = loop.run(gate)
        written.expected = ()  # who is not among them is this pod itself
    finally:
        loop.run_last(written.finish())
        files.write_private(written.folder / launch_names.EARLIER, reached.say_attempt())


def _hosts_are_named(resolved: Resolved, environ: Mapping[str, str]) -> bool:
    """Tell whether there is a hostfile to wait for: one that is named, or that is there.

    A pipe is left to the launch below the command.
    """
    given = str(resolved.given["hostfile"])
    first = hostfiles.candidates(resolved.settings.hostfile, given, environ)[0]
    if hostfiles.is_pipe(first.path):
        return False
    # os.path: Path.exists raises where this user may not enter a folder on the way.
    if not first.is_default or os.path.exists(first.path):  # noqa: PTH110
        return True
    if hostfiles.hosts_by_setting(resolved, environ):
        return True
    return hostfiles.hosts_by_platform(environ, socket.gethostname()) is not None


@dataclass(slots=True, eq=False)
class CommandLogins:
    """What a command's ssh reads, written anew whenever another host is ready.

    Where no ssh can run here, its ``ssh`` has its sessions over the gate's connections. ``path`` is
    its PATH; ``expected`` are the names of hosts that may still get ready; ``ready`` is the gate's
    last report.
    """

    folder: Path
    path: str
    expected: Sequence[str] = ()
    pod: LauncherPod | None = None
    ready: GateResult | None = None
    connections: Connections = field(default_factory=lambda: Connections(sshconfig.patience(0)))
    pool: Pool | None = None
    commands: HostCommands | None = None

    def begin(self, listed: Sequence[str]) -> None:
        """Report which hosts are the job's, before any of them is ready."""
        count = Counter(map(names.short, listed))
        short = [label for label, number in count.items() if number == 1]
        self.expected = tuple(dict.fromkeys((*listed, *short)))
        with files.writing():
            (self.folder / "ready").mkdir(mode=0o700)
        self._write(self.expected)

    def update(self, ready: GateResult) -> None:
        """Write the logins to the hosts that are ready so far."""
        self.ready = ready
        if self.pod:
            self._write_logins(self.pod, ready, over=False)

    async def finish(self) -> None:
        """Write the logins to all that were ready, once nobody else gets ready."""
        if self.pod and self.ready:
            self._write_logins(self.pod, self.ready, over=not self.expected)

    async def serve(self) -> None:
        """Answer the queries of the process beside the command."""
        from mpiboot.supervisor.answers import Answers  # noqa: PLC0415 - as for a launch
        from mpiboot.supervisor.host_commands import HostCommands  # noqa: PLC0415

        self.commands = HostCommands(None, None, os.environ)
        await Answers(self.commands, self._logins, os.environ, launch_names.PARENT).serve()

    @property
    def _logins(self) -> str:
        return str(self.folder / launch_names.LOGINS)

    def _write_logins(self, pod: LauncherPod, ready: GateResult, *, over: bool) -> None:
        if pod.key is None:  # this pod is the only host
            self._write(())
            return
        ssh = shutil.which("ssh", path=self.path) or ""
        why = sshconfig.unusable(ssh, pod.identity)
        hosts = by_every_name(ready.workers, ready.renamed)
        logins = Logins(
            *(Path(self._logins), hosts, ready.host_keys, pod.key, pod.resolved.settings),
            client=pod.client,
        )
        if not logins.folder.exists():
            logins.make_folder()
        # The pool, and hosts with keys of their own, need each address and key.
        later: tuple[sshconfig.LaunchHost, ...] = ()
        if over and not why and not ready.host_keys:
            later = that_may_join(ready.workers, ready.renamed)
        logins.write(ssh=ssh, per_host={}, later=later)
        logins.write_baselines(ready.workers)
        self._use_pool(logins.pool_config(len(ready.workers) if why else 0), why)
        numbers = ("[0-9]" * digits for digits in range(1, _DIGITS + 1))
        joining = (item.name.replace("*", one) for one in numbers for item in later)
        words = "" if why else f"{ssh} {logins.pins}"
        self._write((*self.expected, *hosts, *joining), ssh=words)
        with files.writing():
            for name in hosts:
                (self.folder / "ready" / name).touch()

    def _use_pool(self, config: PoolConfig, why: str) -> None:
        """Let the pool know the hosts; ``why`` no ssh can run here, empty where one can."""
        from mpiboot.ssh.pool import AgentRequests, Pool  # noqa: PLC0415 - loaded by the gate

        if self.pool is None:
            self.pool = Pool(config, self.connections)
            if why:
                log.info("command", f"its ssh uses mpiboot's connections: {why}")
                with files.writing():
                    AgentRequests(Path(self._logins), ()).serve(self.pool)
        self.pool.know(config.hosts)
        if self.commands:
            self.commands.pool = self.pool

    def _write(self, hosts: Iterable[str], ssh: str = "") -> None:
        plain = shutil.which("ssh", path=self.path) or ""
        values = {"plain": plain, "hosts": " ".join(hosts), "dir": self._logins, "ssh": ssh}
        shims.write_ssh(self.folder, values)
