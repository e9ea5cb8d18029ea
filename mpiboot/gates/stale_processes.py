"""What an earlier launcher of this job left on the workers is ended before mpirun starts.

Only processes that carry a mark of this job are ended, and never those of a launcher that is still
there (``holders``); never by name. What can't be ended is said, and stops nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import socket
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mpiboot import log
from mpiboot.gates import host_command, other_launchers
from mpiboot.gates.pipeline import Access
from mpiboot.model import Worker
from mpiboot.observe import tcp
from mpiboot.observe.attempt import Limits, Outcome, Probe, Target
from mpiboot.parent.launch_spec import JOB_MARK
from mpiboot.settings import Settings

if TYPE_CHECKING:
    from mpiboot.observe.ssh import Prober

NAME: Final = JOB_MARK
_AT_ONCE: Final = 32
# Often at first: one that is just ending is gone in a moment.
_FIRST, _LAST = 0.2, 1.0
_SILENT: Final = 3  # looks
# TERM, up to five seconds for what it wants to save, then KILL.
_SCRIPT: Final = (
    'left() {{ for m in {marks}; do grep -l "MPIBOOT_JOB_MARK=$m" /proc/[0-9]*/environ '
    '2>/dev/null; done | sed "s|/proc/||; s|/environ||"; }}; '
    "nap() {{ sleep 0.1 2>/dev/null || sleep 1; }}; "
    "p=$(left); set -- $p; echo ended $#; kill -TERM $p 2>/dev/null; kill -CONT $p 2>/dev/null; "
    'i=0; while p=$(left); [ -n "$p" ] && [ $i -lt 50 ]; do nap; i=$((i+1)); done; '
    "kill -KILL $p 2>/dev/null; "
    'i=0; while p=$(left); [ -n "$p" ] && [ $i -lt 20 ]; do nap; i=$((i+1)); done; '
    "set -- $p; echo left $#; exit 0"
)


def job(public_key: str) -> str:
    """Name the job: all of its pods, and nobody else, have its key."""
    return hashlib.sha256(public_key.encode()).hexdigest()[:16]


def new_mark(public_key: str) -> str:
    """Make the mark of one launch of a job: which job, which launch, and who holds it since when.

    The time of day is told to people and compared with nothing.
    """
    host = re.sub(r"[^A-Za-z0-9.-]", "", socket.gethostname())
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return f"{job(public_key)}-{os.urandom(8).hex()}@{host}@{since}"


def _running(root: Path = Path("/proc")) -> set[str]:
    """Marks of launches that run in this pod, this one's own among them."""
    found = set()
    for path in root.glob("[0-9]*/environ"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:  # it has ended, or is another user's
            continue
        head = f"{NAME}=".encode()
        found |= {word[len(head) :].decode("ascii", "replace") for word in words if head in word}
    return found


def of_job(worker: Worker, public_key: str) -> tuple[str, ...]:
    """Give the marks of this job that a worker has; others could hold anything."""
    own = job(public_key) + "-"
    return tuple(m for m in worker.marks if m.startswith(own) and other_launchers.MARK.fullmatch(m))


def of_earlier(workers: Iterable[Worker], public_key: str) -> dict[str, tuple[str, ...]]:
    """Give, by host, the marks of this job whose launcher is not in this pod."""
    seen = {worker.host.name: of_job(worker, public_key) for worker in workers}
    if not any(seen.values()):
        return {}
    running = _running()
    kept = {host: tuple(m for m in marks if m not in running) for host, marks in seen.items()}
    return {host: marks for host, marks in kept.items() if marks}


def _say_beside(workers: Iterable[Worker], public_key: str) -> None:
    """Tell of other launches in this pod, as of a script; one inside another is part of it."""
    seen = {worker.host.name: set(of_job(worker, public_key)) for worker in workers}
    if not any(seen.values()):
        return
    beside = _running() - {os.environ.get(NAME, "")}
    hosts = [host for host, marks in seen.items() if beside & marks]
    if hosts:
        where = other_launchers.listed(hosts)
        said = f"another launch of this pod runs on {where}: this one is beside it"
        log.info("leftovers", said, hosts=len(hosts))


def script(marks: Sequence[str]) -> str:
    """Write the command that ends what carries one of these marks, and tells how many."""
    return f"exec /bin/sh -c '{_SCRIPT.format(marks=' '.join(marks))}'"


class _Asker:
    """Runs a command on workers that let us in before, some at once."""

    def __init__(self, access: Access, host_keys: str) -> None:
        self._access = access
        self._mode = host_keys
        self._limits = Limits()
        self._free = asyncio.Semaphore(_AT_ONCE)
        self._prober: Prober | None = None

    async def run(self, worker: Worker, command: str) -> str | None:
        """Give the command's output; None where the worker does not answer."""
        target = Target(worker.host.name, worker.address, worker.port, worker.user)
        async with self._free:
            opened = await tcp.connect(target, self._limits)
            if isinstance(opened, Probe):
                return None
            with opened.sock:
                prober = self._load()
                probe = await prober.log_in(target, opened.sock, opened.greeting, command)
        return probe.output if probe.outcome is Outcome.OK else None

    async def answers(self, address: str, port: int) -> bool:
        """Tell whether somebody is at an address: a refused connection is an answer too."""
        opened = await tcp.connect(Target("", address, port, ""), self._limits)
        if isinstance(opened, Probe):
            return opened.outcome not in (Outcome.TIMEOUT, Outcome.UNREACHABLE)
        opened.sock.close()
        return True

    def _load(self) -> Prober:
        if self._prober is None:
            from mpiboot.observe.ssh import Prober  # noqa: PLC0415 - loaded by the gate already

            self._prober = Prober(
                self._access.key,
                host_key=self._access.host_key,
                mode=self._mode,
                limits=self._limits,
            )
        return self._prober


async def end(
    workers: Sequence[Worker], public_key: str, settings: Settings, access: Access
) -> None:
    """End what is left; nothing is asked where the gate saw nothing.

    Args:
        workers: who passed the gate.
        public_key: the job's.
        settings: ``timeout`` is what is left of the one deadline; ``host_keys``, ``ssh_keepalive``.
        access: how to log in.

    Raises:
        MpibootError: ``workers-held``; another launcher has the workers.
    """
    _say_beside(workers, public_key)
    found = of_earlier(workers, public_key)
    if not found:
        return
    asker = _Asker(access, settings.host_keys)
    workers = [worker for worker in workers if worker.host.name in found]
    found = await _let_go(workers, found, public_key, settings, asker)

    async def one(worker: Worker, marks: tuple[str, ...]) -> None:
        output = await asker.run(worker, script(marks))
        if output is not None:
            _say(worker.host.name, output)

    await asyncio.gather(
        *(one(item, found[item.host.name]) for item in workers if item.host.name in found)
    )


async def _let_go(
    workers: Sequence[Worker],
    found: dict[str, tuple[str, ...]],
    public_key: str,
    settings: Settings,
    asker: _Asker,
) -> dict[str, tuple[str, ...]]:
    """Wait until no other launcher is connected; what it has left then.

    A pod that is being replaced still ends its job, and a node that vanished is missed by the
    workers only after their keep-alive.
    """
    started, told, pause = time.monotonic(), False, _FIRST
    silent: Counter[str] = Counter()
    patience = min(settings.timeout, other_launchers.patience(settings.ssh_keepalive))
    while True:
        held = other_launchers.of(workers, found)
        if not held:
            return found
        if not told:
            told = True
            log.info(
                "leftovers",
                f"{other_launchers.line(held)}: waiting for its end",
                launchers=len(held),
            )
        if time.monotonic() - started >= patience:
            for holder in held:
                if holder.proven or await asker.answers(holder.address, workers[0].port):
                    raise other_launchers.error_of(held, time.monotonic() - started)
            return found
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, _LAST)
        workers = await asyncio.gather(*(_again(item, silent, asker) for item in workers))
        found = of_earlier(workers, public_key)


async def _again(worker: Worker, silent: Counter[str], asker: _Asker) -> Worker:
    """Ask a worker once more who is there; one that is silent for good has nobody."""
    output = await asker.run(worker, host_command.LAUNCHES)
    if output is not None:
        silent[worker.host.name] = 0
        seen = host_command.notes(output)
        return replace(worker, marks=seen.marks, held=seen.held)
    silent[worker.host.name] += 1
    # It may have ended with the other launcher's job, and then mpirun's own end tells it.
    return replace(worker, marks=(), held=()) if silent[worker.host.name] >= _SILENT else worker


def _say(host: str, output: str) -> None:
    numbers = dict(re.findall(r"^(ended|left) (\d+)$", output, re.MULTILINE))
    count, rest = int(numbers.get("ended", 0)), int(numbers.get("left", 0))
    what = "process" if count == 1 else "processes"
    if count:
        said = f"{host}: ended {count} {what} left by an earlier launcher of this job"
        log.info("leftovers", said, host=host, processes=count)
    if rest:
        said = f"{host}: {rest} processes of an earlier launcher of this job can't be ended"
        log.warning("leftovers", said, host=host, processes=rest)
