"""``mpiboot validate pairs``: have every host measure the path to every other one, judge, end.

The hosts pass the same gate as a job's, and each measures over a login of its own, with which all
that runs there ends. No mpirun is needed.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

from mpiboot.core import log
from mpiboot.core.checks import ExitCode, MpibootError, ShownError, error
from mpiboot.core.facts import Worker
from mpiboot.core.model import Level
from mpiboot.core.settings import Resolved
from mpiboot.core.wording import counted, first_few, lasting
from mpiboot.hosts import host_shell
from mpiboot.hosts.pairs import MeasuringHosts
from mpiboot.job import render
from mpiboot.launcher import look, observation
from mpiboot.launcher.setup import LauncherPod, access
from mpiboot.network.records import RDMA, WorkerNetwork
from mpiboot.network.worker_pairs import WHY, PathEnd, PathHost, path, path_host
from mpiboot.supervisor.signals import ENDING
from mpiboot.system import files
from mpiboot.validate import pairs
from mpiboot.validate.pairs import TCP, TOOLS, Flow, Measured, PairTool, RailEnd
from mpiboot.validate.verdict import ToolOptions

_PASSES: Final = 2  # of all rounds: what differs by chance shows
_FOR_ROUNDS: Final = 2 / 3  # of the time; the rest is for what is measured again alone
_GUARD: Final = 20.0  # for one measurement beside its own time; more where more time is given
# A job is refused below this fraction: for half a link, but not where pods share a node's cores
# (six streams over two of them differed by a third).
_REFUSED: Final = 0.6
_NODE: Final = "cat /proc/sys/kernel/random/boot_id"  # pods of one node have one kernel
_PORTS: Final = "18515-18578"  # perftest's own, and those behind it


def run(resolved: Resolved, environ: Mapping[str, str], asked: ToolOptions) -> None:
    """Print what was measured; after a signal that which was measured so far.

    Raises:
        ShownError: something is too slow, or could not be measured.
        SystemExit: 128+n after a signal.
        MpibootError: ``usage``, ``program-missing``, or what a launcher's gate would say.
    """
    if asked.tool and asked.tool not in TOOLS:
        hint = "perftest's other programs measure two hosts by hand"
        message = f"--tool is {asked.tool!r}: expected one of {', '.join(TOOLS)}"
        raise error("usage", message, hint=hint)
    look.end_on_signals(resolved)
    launcher = look.waiting_pod(resolved, environ, f"validate-{os.getpid()}")
    measuring = _Measuring(launcher, asked)
    try:
        number = asyncio.run(measuring.until_signal())
    finally:
        files.remove_role(launcher.folder)
    # asyncio has put the default in its place, which PID 1 ignores.
    look.end_on_signals(resolved, "before the end of the measurement")
    seen, whole = measuring.seen, not number
    found = pairs.judge(seen, asked.fraction or pairs.FRACTION)
    if asked.before_job:  # a guess refuses no job, nor does what was not measured
        sure = [item for item in pairs.judge(seen, _REFUSED) if item.check != "not-measured"]
        found = tuple(
            replace(item, level=Level.WARN)
            if item.level is Level.FAIL and item not in sure
            else item
            for item in found
        )
    elif whole and not seen.values and not any(item.level is Level.FAIL for item in found):
        message = "there are no two hosts to be measured beside this pod"
        found = (*found, pairs.finding("not-measured", message, ()))
    out = sys.stderr if asked.before_job else sys.stdout
    if asked.as_json:
        out.write(render.as_json(pairs.record(seen, found, whole=whole)))
    elif seen.values or found or not asked.before_job:
        out.write(pairs.as_text(seen, found, log.width(out.fileno()), whole=whole))
    out.flush()
    if number:
        signal.raise_signal(number)
    for item in found:
        if item.level is Level.FAIL:
            log.write_termination(resolved.settings.termination_log, render.termination(item))
            raise ShownError(item, code=int(ExitCode.FOUND))


class _Measuring:
    """One run: who takes part, by what it is measured, and what was measured so far."""

    def __init__(self, launcher: LauncherPod, asked: ToolOptions) -> None:
        self._launcher, self._asked = launcher, asked
        self._settings = launcher.resolved.settings
        self._workers: dict[str, Worker] = {}
        self._tcp: dict[str, PathHost] = {}
        self._rdma: dict[str, tuple[RailEnd, ...]] = {}
        self._seconds = self._limit = 0.0
        first, _, last = (self._settings.port_range or _PORTS).partition("-")
        # From its end: MPI's daemons take the first ones.
        self._ports = itertools.cycle(range(int(last), int(first) - 1, -1))
        self.seen = Measured(TCP)

    async def until_signal(self) -> int:
        """Measure; the number of the signal that ended it, 0 for none."""
        task, got = asyncio.ensure_future(self._work()), list[int]()

        def end(number: int) -> None:
            if not got:
                task.cancel()
            got.append(number)

        for number in ENDING:
            asyncio.get_running_loop().add_signal_handler(number, end, number)
        await asyncio.wait((task,))
        if not task.cancelled():
            task.result()
        return got[0] if got else 0

    async def _work(self) -> None:
        if self._launcher.pods is not None:
            raise error("usage", "hosts that kubectl enters can't measure the paths between them")
        workers, data = await observation.pass_gates_with_networks(self._launcher)
        for item in data.findings:
            if item.level is Level.FAIL:  # no job of these hosts would start
                raise MpibootError(item)
            log.finding(item)
        if not workers:  # and perhaps no key
            return
        self._hosts = MeasuringHosts(self._settings, access(self._launcher))
        self._workers = {worker.host.name: worker for worker in workers}
        if busy := [worker.host.name for worker in workers if worker.launches]:
            log.warning("network", f"a job runs on {first_few(busy)}: each slows the other down")
        try:
            await asyncio.gather(*map(self._hosts.log_in, workers))
            self.seen.tool = await self._choose({one.host: one for one in data.networks})
            ends = self._rdma if self.seen.tool is not TCP else await self._probes(data.networks)
            self._take_part(ends)
            await asyncio.gather(*map(self._find_node, self.seen.hosts))
            await self._measure()
        finally:
            await self._hosts.close()

    async def _choose(self, networks: Mapping[str, WorkerNetwork]) -> PairTool:
        """Choose by what the hosts have, unless a tool is named."""
        wanted = TOOLS[self._asked.tool or "ib_write_bw"]
        rdma = any(network.transport in RDMA for network in networks.values())
        if wanted is TCP or not (rdma or self._asked.tool):
            return TCP
        why, hint = "no RDMA port that perftest can use on", "`mpiboot doctor` there looks for it"
        self._rdma, without = pairs.common_rails(networks)
        if not without:
            why, hint = f"{wanted.name} is not on PATH of a session on", "install perftest there"
            lacking = await asyncio.gather(*(self._lacks(host, wanted.name) for host in networks))
            without = list(itertools.compress(networks, lacking))
        if not without:
            return wanted
        message = f"{why} {first_few(without)}"
        if self._asked.tool:
            raise error("program-missing", message, hint=hint)
        log.warning("network", f"TCP is measured and not RDMA: {message}; {hint}")
        return TCP

    async def _lacks(self, host: str, program: str) -> bool:
        connection = self._hosts.connections.get(host)
        question = host_shell.ask(*host_shell.lacks(program, "", ""))
        answer = await connection.start(question) if connection else None
        return answer is not None and bool(await answer.line())

    async def _find_node(self, host: str) -> None:
        program = await self._hosts.connections[host].start(_NODE)
        boot_id = await program.line() if program else ""
        self.seen.nodes |= {host: boot_id} if boot_id else {}

    async def _probes(self, networks: Iterable[WorkerNetwork]) -> Mapping[str, Sequence[PathEnd]]:
        """Start what measures TCP: on the data links, on the control link where one has none."""
        hosts = [*filter(None, (path_host(self._workers[one.host], one) for one in networks))]
        await asyncio.gather(*map(self._hosts.start_probe, hosts))
        measured = slice(1, None) if all(len(host.ends) > 1 for host in hosts) else slice(1)
        for host in hosts:
            if host.name in self._hosts.probes:
                self._tcp[host.name] = replace(host, ends=host.ends[measured])
        return {name: host.ends for name, host in self._tcp.items()}

    def _take_part(self, ends: Mapping[str, Sequence[RailEnd] | Sequence[PathEnd]]) -> None:
        """Note who is measured, on which rails, and what each of these carries."""
        seen = self.seen
        seen.hosts = tuple(host for host in ends if host in self._hosts.connections)
        seen.left_out = tuple(host for host in self._workers if host not in seen.hosts)
        rails = list(zip(*(ends[host] for host in seen.hosts), strict=False))
        seen.rails = tuple(first_few(dict.fromkeys(end.name for end in of), 2) for of in rails)
        if seen.tool is not TCP:
            rates = ([end.limit for end in self._rdma[host]] for host in seen.hosts)
            seen.limits = tuple(map(min, zip(*rates, strict=False)))

    async def _measure(self) -> None:
        """Measure in rounds, then alone what was slow there, until the time is over."""
        seen, loop, tcp = self.seen, asyncio.get_running_loop(), self.seen.tool is TCP
        least, most, start = (0.3, 2.0, 0.2) if tcp else (1.0, 4.0, 1.0)
        turns = 2 * len(seen.hosts) * (len(seen.rails) if tcp else 1) * _PASSES
        whole, hosts = self._asked.seconds, counted(len(seen.hosts), "host")
        self._seconds = min(max(whole * _FOR_ROUNDS / max(1, turns) - start, least), most)
        self._limit = self._seconds + max(_GUARD, whole / 3)
        log.info("network", f"measures {hosts} by {seen.tool.what}: {lasting(whole)} at most")
        began = loop.time()

        async def measure(flows: Iterable[Flow], into: dict[Flow, list[float]]) -> float:
            started = loop.time()
            await asyncio.gather(*(self._one(flow, into) for flow in flows))
            log.debug("network", f"{counted(len(seen.values), 'flow')} measured")
            return loop.time() - started

        last = 0.0
        for matches in itertools.chain(*(pairs.rounds(seen.hosts) for _ in range(_PASSES))):
            if loop.time() + last > began + whole * _FOR_ROUNDS:
                break
            flows = [Flow(rail, *flow) for flow in matches for rail, _ in enumerate(seen.rails)]
            last = await measure(flows, seen.values)
        slow = pairs.suspects(seen, self._asked.fraction or pairs.FRACTION)
        for _ in range(2):  # a busy node is slow for a moment
            for flow in dict.fromkeys(flow for one in slow for flow in one.flows):
                if loop.time() + last > began + whole:
                    break
                last = await measure((flow,), seen.alone)
            slow = [one for one in slow if one.speed_alone(seen) is not None]

    async def _one(self, flow: Flow, into: dict[Flow, list[float]]) -> None:
        """Measure one direction: its value, or why there is none."""
        work = self._stream(flow) if self.seen.tool is TCP else self._perftest(flow)
        try:
            result = await asyncio.wait_for(work, self._limit)
        except asyncio.TimeoutError:
            result = f"no end within {self._limit:.0f} s"
            self._hosts.probes.pop(flow.source, None)  # its answer may still come
        if isinstance(result, str):
            self.seen.failed[flow] = result
        else:
            into.setdefault(flow, []).append(result)

    async def _stream(self, flow: Flow) -> float | str:
        """Have a host send by TCP."""
        source, target = (self._tcp[host] for host in flow[1:])
        dial = path(source, target, flow.rail, self._seconds)
        done = await self._hosts.measure(dial)
        if done.rate is None:
            return WHY.get(done.reached, f"{done.reached.value}: no answer")
        return done.rate * 8e-9

    async def _perftest(self, flow: Flow) -> float | str:
        """Have a host write to or read from a server on the other one."""
        tool, port = self.seen.tool, next(self._ports)
        far = self._workers[flow.target].address

        async def run(host: str, listens: int, to: str = "") -> list[str]:
            words = tool.command(self._rdma[host][flow.rail], port, self._seconds)
            command = host_shell.measure(listens, self._limit, words + to)
            program = await self._hosts.connections[host].start(command)
            if program is None:
                return ["its SSH server takes no further session"]
            started.callback(program.end)
            lines: list[str] = []
            while line := await program.line():
                lines.append(line.removeprefix(">").strip())
                if lines[-1].startswith("mpiboot-listens" if listens else "mpiboot-status"):
                    break
            return lines

        with ExitStack() as started:
            said = await run(flow.target, port)
            if said[-1:] != ["mpiboot-listens"]:
                return f"{flow.target}: {pairs.complaint(said)}"
            said = await run(flow.source, 0, f" {far}")
        value = pairs.bandwidth(said)
        return f"{flow.source}: {pairs.complaint(said)}" if value is None else value
