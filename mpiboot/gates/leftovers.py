"""What an earlier launcher of this job left on the workers is ended before mpirun starts.

Only processes that carry a mark of this job are ended, and never those of a launcher that still
runs in this pod; never by name. What can't be ended is said, and stops nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from mpiboot import log
from mpiboot.gates.pipeline import Access
from mpiboot.model import Worker
from mpiboot.observe import tcp
from mpiboot.observe.attempt import Limits, Outcome, Probe, Target

NAME: Final = "MPIBOOT_JOB_MARK"
_MARK: Final = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}")
_AT_ONCE: Final = 32
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
    """Make the mark of one launch of a job."""
    return f"{job(public_key)}-{os.urandom(8).hex()}"


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


def of_earlier(workers: Iterable[Worker], public_key: str) -> dict[str, tuple[str, ...]]:
    """Give, by host, the marks of this job whose launcher is not here any more."""
    own = job(public_key) + "-"
    seen = {
        worker.host.name: tuple(
            mark for mark in worker.marks if _MARK.fullmatch(mark) and mark.startswith(own)
        )
        for worker in workers
    }
    if not any(seen.values()):
        return {}
    running = _running()
    kept = {host: tuple(m for m in marks if m not in running) for host, marks in seen.items()}
    return {host: marks for host, marks in kept.items() if marks}


def script(marks: Sequence[str]) -> str:
    """Write the command that ends what carries one of these marks, and tells how many."""
    return f"exec /bin/sh -c '{_SCRIPT.format(marks=' '.join(marks))}'"


async def end(workers: Sequence[Worker], public_key: str, host_keys: str, access: Access) -> None:
    """End what is left; nothing is asked where the gate saw nothing.

    Args:
        workers: who passed the gate.
        public_key: the job's.
        host_keys: the setting of that name.
        access: how to log in.
    """
    found = of_earlier(workers, public_key)
    if not found:
        return
    from mpiboot.observe.ssh import Prober  # noqa: PLC0415 - loaded by the gate already

    limits, free = Limits(), asyncio.Semaphore(_AT_ONCE)
    prober = Prober(access.key, host_key=access.host_key, mode=host_keys, limits=limits)

    async def one(worker: Worker, marks: tuple[str, ...]) -> None:
        name = worker.host.name
        target = Target(name, worker.address, worker.port, worker.user)
        command = script(marks)
        async with free:
            opened = await tcp.connect(target, limits)
            if isinstance(opened, Probe):
                return
            with opened.sock:
                probe = await prober.log_in(target, opened.sock, opened.greeting, command)
        if probe.outcome is Outcome.OK:
            _say(name, probe.output)

    await asyncio.gather(
        *(one(item, found[item.host.name]) for item in workers if item.host.name in found)
    )


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
