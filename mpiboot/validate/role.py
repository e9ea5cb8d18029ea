"""``mpiboot validate``: runs nccl-tests and judges them, or measures between all hosts.

nccl-tests run under a launcher, a child process, whose exit code counts unless it is 0. ``pairs``
needs no mpirun: hosts pass a job's gate, whose SSH connections start the measuring programs, and
end them when they close.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import os
import signal
import sys
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from mpiboot.core import log
from mpiboot.core.checks import BY_REFERENCE, FOUND, ShownError, error
from mpiboot.core.facts import Worker
from mpiboot.core.launch_spec import BY_SIGNAL, TIMED
from mpiboot.core.model import AUTO, Level, Switch, WorkerExit
from mpiboot.core.settings import Resolved
from mpiboot.core.wording import counted, first_few, lasting
from mpiboot.hosts import host_shell
from mpiboot.job import render
from mpiboot.job.plan import stop_on_failure
from mpiboot.launcher import look, prepare
from mpiboot.launcher.role import flags
from mpiboot.launcher.setup import LauncherPod, access, launcher_pod
from mpiboot.network.records import RDMA, WorkerNetwork
from mpiboot.ssh.pool import Pool
from mpiboot.supervisor.signals import ENDING, SIGNALS
from mpiboot.system import files, process, spawn
from mpiboot.system.process import exit_status
from mpiboot.validate import nccl_tests, pairs
from mpiboot.validate.nccl_tests import Run, ToolOptions
from mpiboot.validate.pairs import TCP, TOOLS, End, Flow, Measured, PairTool

_KILL_S: Final = 30.0  # from the time limit to SIGKILL; ranks have 20 s (MPIBOOT_GRACE)
_CHUNK: Final = 1 << 16
_LAUNCH: Final = "from mpiboot.__main__ import main; main()"


def job(resolved: Resolved, environ: Mapping[str, str], options: ToolOptions) -> None:
    """Measure over all hosts.

    Raises:
        ShownError: it is too slow, wrong, or by another network than planned.
        SystemExit: the launcher's own exit code.
        MpibootError: ``usage`` or ``runtime-folder``.
    """
    text = nccl_tests.shell(options.tool, options.arguments)
    settings, uid = resolved.settings, os.getuid()
    own, temporary = f"validate-{os.getpid()}", environ.get("TMPDIR")
    folder = files.runtime_dir(settings.runtime_dir, uid, own, tmpdir=temporary)
    record = folder / "record.json"
    env = dict(environ)
    # As the container's first process this is the job, for whose end workers may wait. Under
    # `kubectl exec` it is not, and the container's termination message is not its own.
    if not process.is_containers_own():
        env["MPIBOOT_TERMINATION_LOG"] = os.devnull
    elif settings.worker_exit is AUTO:
        env["MPIBOOT_WORKER_EXIT"] = WorkerExit.AFTER_JOB.value
    env |= flags(resolved)
    # The record has what is judged; holding a failed launcher would only delay the verdict.
    env |= {"MPIBOOT_JOB_RECORD": str(record), "MPIBOOT_HOLD_ON_FAILURE": "0"}
    if settings.supervise is Switch.ON:  # otherwise mpirun itself gets the signal
        env[TIMED] = "1"
    argv = process.python(_LAUNCH, "launcher", "--", "mpirun", "sh", "-c", text, "sh")
    run = Run(options)
    try:
        _run_tool(argv, env, run, record)
    finally:
        files.remove_role(folder)
    _end(run, resolved)


def _end(run: Run, resolved: Resolved) -> None:
    """Judge a run, print the verdict below the tool's output, and exit."""
    judged = nccl_tests.judge(run)
    finding, code, ended = judged.finding, run.code, ""
    if run.signal:
        code = BY_SIGNAL + run.signal
        ended = f"interrupted by {signal.Signals(run.signal).name}: no verdict"
    elif code and not run.over:  # it counts, and the launcher has logged why
        ended = f"ended with {code}: no verdict" if judged.fit else ""
    else:
        code = 0 if judged.fit else BY_REFERENCE[finding.check].code
    began = run.started or run.missing
    if run.options.as_json:
        sys.stdout.write(render.as_json(nccl_tests.record(run, judged, code, complete=not ended)))
    elif began or not code:
        sys.stdout.write(nccl_tests.as_text(run, judged, ended))
    sys.stdout.flush()
    if began and not ended:
        reason = "" if judged.fit else render.termination(finding)
        log.write_termination(resolved.settings.termination_log, reason)
    if judged.fit or ended:
        sys.exit(code)
    raise ShownError(finding, code=code)


def _run_tool(argv: Sequence[str], environ: Mapping[str, str], run: Run, record: Path) -> None:
    """Run a launcher to its end, and show its output.

    Args:
        argv: the launcher.
        environ: its environment.
        run: what is known of it; the time limit begins when a host starts the tool.
        record: the file of the job's record.

    Raises:
        MpibootError: ``program-missing``; it can't be started.
        OSError: its output can't be shown; it is ended then.
    """
    until = math.inf
    status: int | None = None
    ends = signal.SIGHUP if TIMED in environ else signal.SIGTERM
    shown = sys.stderr if run.options.as_json else sys.stdout
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    loop = process.SignalLoop(SIGNALS)
    pid = process.start(argv, environ, streams={0: None, 1: writer}, own_session=True)
    os.close(writer)

    def send(number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    def read() -> None:
        with suppress(BlockingIOError):
            while data := os.read(reader, _CHUNK):
                shown.write(run.feed(data))
                shown.flush()
            loop.off(reader)

    loop.on(reader, read, vital=True)
    try:
        while status is None:
            for number in set(loop.wait(until - time.monotonic())) - {signal.SIGCHLD}:
                run.signal = run.signal or (number if number in ENDING else 0)
                # A SIGHUP from outside is not the time limit's.
                send(signal.SIGTERM if number == ends else number)
            status = dict(spawn.reap()).get(pid)
            if until == math.inf and run.started:
                until = time.monotonic() + run.options.seconds
            elif time.monotonic() >= until:
                send(signal.SIGKILL if run.over else ends)
                run.over, until = True, time.monotonic() + _KILL_S
        read()
        shown.write(run.feed(b"\n" if run.rest else b""))
    finally:
        if status is None:
            send(signal.SIGTERM)
        loop.close()
    run.code = exit_status(status)
    with suppress(OSError, ValueError):  # with MPIBOOT_SUPERVISE=off there is none
        run.record = json.loads(record.read_text("utf-8"))


# --- pairs

_PASSES: Final = 2  # through all rounds, to see scatter
_ROUNDS_SHARE: Final = 2 / 3  # of the time; the rest is for flows that are measured again alone
_MAX_S: Final = 4.0  # of one measurement
_MARGIN_S: Final = 20.0  # beyond a measurement's time, at least
_QUERY_TIMEOUT_S: Final = 50.0  # a login on a busy node, and the command
_LISTENS: Final = "mpiboot-listens"  # worker/probe.py
_PORTS: Final = "18515-18578"  # perftest's own, and those behind it


def measure_pairs(resolved: Resolved, environ: Mapping[str, str], options: ToolOptions) -> None:
    """Measure, and print the results; after a signal those so far.

    Raises:
        ShownError: something is too slow, or could not be measured.
        SystemExit: 128+n after a signal.
        MpibootError: ``usage``, ``not-measured``, ``program-missing``, or a launcher's gate's.
    """
    if options.tool and options.tool not in TOOLS:
        raise error("usage", f"--tool is {options.tool!r}: expected one of {', '.join(TOOLS)}")
    look.end_on_signals(resolved)
    launcher = launcher_pod(resolved, environ, f"validate-{os.getpid()}")
    seen = Measured(TCP)
    try:
        number = asyncio.run(_until_signal(_measure_hosts(launcher, options, seen)))
    finally:
        files.remove_role(launcher.folder)
    # asyncio has restored the default, which PID 1 ignores.
    look.end_on_signals(resolved, "before the end of the measurement")
    found, whole = pairs.judge(seen, options.fraction or pairs.FRACTION), not number
    if whole and len(seen.hosts) < 2:  # noqa: PLR2004 - a pair
        message = "fewer than two hosts besides this pod"
        found.append(pairs.finding("not-measured", message, ()))
    if options.as_json:
        sys.stdout.write(render.as_json(pairs.record(seen, found, whole=whole)))
    else:
        sys.stdout.write(pairs.as_text(seen, found, whole=whole))
    sys.stdout.flush()
    if number:
        signal.raise_signal(number)
    for item in found:
        if item.level is Level.FAIL:
            log.write_termination(resolved.settings.termination_log, render.termination(item))
            raise ShownError(item, code=FOUND)


async def _until_signal(work: Coroutine[None, None, None]) -> int:
    """Do this work; return the number of the signal that ended it, 0 for none."""
    task, got = asyncio.ensure_future(work), list[int]()

    def end(number: int) -> None:
        if not got:
            task.cancel()
        got.append(number)

    for number in ENDING:
        asyncio.get_running_loop().add_signal_handler(number, end, number)
    with suppress(asyncio.CancelledError):
        await task
    return got[0] if got else 0


async def _measure_hosts(launcher: LauncherPod, options: ToolOptions, seen: Measured) -> None:
    """Bring the hosts through the gate, and measure between them."""
    job_hosts = await prepare.find_job(launcher)
    if launcher.pods is not None:
        raise error("usage", "pairs needs SSH to the hosts; these are reached by kubectl exec")
    workers, data = await prepare.pass_gates_with_networks(launcher, job_hosts)
    stop_on_failure(data.findings)  # no job of these hosts would start
    for item in data.findings:
        log.finding(item)
    if not workers:  # then there may be no key either
        return
    by_name = {worker.host.name: worker for worker in workers}
    if busy := [name for name, worker in by_name.items() if worker.answer.launches]:
        log.warning("network", f"a job runs on {first_few(busy)}: each slows the other down")
    pool = access(launcher).pool
    try:
        networks = {one.host: one for one in data.networks}
        seen.tool, ends = await _choose(pool, options.tool, by_name, networks)
        seen.select(ends, by_name)
        await _Measuring(pool, launcher.resolved.settings.port_range, ends, seen).run(options)
    finally:
        await pool.close()


async def _choose(
    pool: Pool, named: str, workers: Mapping[str, Worker], networks: Mapping[str, WorkerNetwork]
) -> tuple[PairTool, Mapping[str, Sequence[End]]]:
    """Choose the tool that is named, else the one that all hosts have, and the ends it uses."""
    tool, over_tcp = TOOLS[named or "ib_write_bw"], (TCP, pairs.link_ends(workers, networks))
    rdma = any(network.transport in RDMA for network in networks.values())
    if tool is TCP or not (rdma or named):
        return over_tcp
    code, why, hint = "not-measured", "no RDMA port for perftest on", "run `mpiboot doctor` there"
    rails, without = pairs.common_rails(workers, networks)
    if not without:
        code, why = "program-missing", f"{tool.name} is not on PATH of a session on"
        hint = "install perftest"
        query = f"command -v {tool.name}"
        ends = await asyncio.gather(*(pool.run(host, query, _QUERY_TIMEOUT_S) for host in rails))
        without = [host for host, end in zip(rails, ends, strict=True) if end.status]
    if not without:
        return tool, rails
    message = f"{why} {first_few(without)}"
    if named:
        raise error(code, message, hint=hint)
    log.warning("network", f"measuring TCP, not RDMA: {message}; {hint}")
    return over_tcp


class _Measuring:
    """Measurements between the ends of hosts, within a time limit."""

    def __init__(
        self, pool: Pool, port_range: str, ends: Mapping[str, Sequence[End]], seen: Measured
    ) -> None:
        self._pool, self._ends, self._seen = pool, ends, seen
        first, last = (port_range or _PORTS).split("-")
        # From its end: MPI's daemons take the first ones.
        self._ports = itertools.cycle(range(int(last), int(first) - 1, -1))
        self._seconds = self._limit = 0.0

    async def run(self, options: ToolOptions) -> None:
        """Measure in rounds, then the slow flows alone."""
        seen, whole, loop = self._seen, options.seconds, asyncio.get_running_loop()
        turns = 2 * max(1, len(seen.hosts)) * _PASSES
        seconds = whole * _ROUNDS_SHARE / turns - seen.tool.min_s
        self._seconds = min(max(seconds, seen.tool.min_s), _MAX_S)
        self._limit = self._seconds + max(_MARGIN_S, whole / 3)
        hosts = counted(len(seen.hosts), "host")
        log.info("network", f"measuring {hosts} with {seen.tool.title}: at most {lasting(whole)}")
        last_start = loop.time() + whole - self._seconds - seen.tool.min_s
        rounds = (flows for _ in range(_PASSES) for flows in pairs.rounds(seen.hosts))
        for matches in rounds:
            late = loop.time() > last_start - whole * (1 - _ROUNDS_SHARE)
            if late and (seen.values or seen.failed):
                break
            flows = [Flow(rail, *flow) for flow in matches for rail, _ in enumerate(seen.rails)]
            await asyncio.gather(*(self._one(flow, seen.values) for flow in flows))
            log.debug("network", f"{counted(len(seen.values), 'flow')} measured")
        slow = pairs.suspects(seen, options.fraction or pairs.FRACTION)
        for _ in range(2):  # a busy node may be slow once
            for flow in dict.fromkeys(flow for one in slow for flow in one.flows):
                if loop.time() <= last_start:
                    await self._one(flow, seen.alone)
            slow = [one for one in slow if one.speed_alone(seen) is not None]

    async def _one(self, flow: Flow, into: dict[Flow, list[float]]) -> None:
        """Measure one direction, and record its value or why it failed."""
        try:
            result = await asyncio.wait_for(self._flow(flow), self._limit)
        except asyncio.TimeoutError:
            result = f"timed out after {lasting(self._limit)}"
        if isinstance(result, str):
            self._seen.failed[flow] = result
        else:
            into.setdefault(flow, []).append(result)

    async def _flow(self, flow: Flow) -> float | str:
        """Run the server on one host and the client on the other; the value, or the error."""
        tool, port, source, target = self._seen.tool, next(self._ports), *flow[1:]
        peer = self._ends[target][flow.rail].address

        async def run(host: str, listens: int, command: str) -> list[str]:
            args = self._ends[host][flow.rail].args
            words = command.format(args=args, port=port, seconds=self._seconds, peer=peer)
            order = host_shell.measure(listens, words)
            try:
                program = await self._pool.start(host, order, _QUERY_TIMEOUT_S)
            except Exception as exc:  # noqa: BLE001 - asyncssh's, which is not loaded here
                return [str(exc)]
            started.callback(program.write, "end")  # which ends what runs there
            lines: list[str] = []
            while lines[-1:] != [_LISTENS] and (line := await program.line()) is not None:
                lines.append(line)
            return lines

        with ExitStack() as started:
            output = await run(target, port, tool.server)
            if output[-1:] != [_LISTENS]:
                return f"{target}: {pairs.error_line(output)}"
            output = await run(source, 0, tool.client)
        value = tool.bandwidth(output)
        return f"{source}: {pairs.error_line(output)}" if value is None else value
