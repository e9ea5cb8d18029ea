"""What is left to do after mpirun: end what it left on this pod, and tell how the job ended.

It decides nothing about the job; the verdict is given to it.
"""

# pathlib, and what it imports, costs the parent a megabyte for nothing.
# ruff: noqa: PTH110, PTH115, PTH208
from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from mpiboot import log, termination
from mpiboot.parent.events import Verdict
from mpiboot.parent.launch_spec import JOB_MARK, KEY, MARK, Failure, LaunchSpec
from mpiboot.parent.os_calls import process_handle
from mpiboot.parent.watch import Processes

if TYPE_CHECKING:
    from mpiboot.model import Finding

_PATIENCE: Final = 2.0
_STEP: Final = 0.02


def survivors(child: int, folder: str, *, reaped: bool, mark: str = "") -> list[int]:
    """Find what mpirun started on this pod and what is still there.

    That is what stands below it in the process tree, and, once it is gone and its children
    belong to somebody else, whatever was started with this launch's own mark in its environment
    and lives in this pod (two pods that share a process table don't share a mount namespace).
    With the job's ``mark`` a later launch in the same folder is told apart.
    """
    table = Processes()
    found = [] if reaped else list(table.descendants(child))
    wanted = {f"{MARK}={folder}"} | ({f"{JOB_MARK}={mark}"} if mark else set())
    own = _mounts("self")
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) in (os.getpid(), child):
            continue
        if wanted.issubset(table.environment(int(name))) and _mounts(name) == own:
            found.append(int(name))
    return list(dict.fromkeys(found))


def _mounts(pid: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return ""


def send(pids: list[int], number: int) -> None:
    """Send a signal to processes, those of them that are still there."""
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, number)


def end_all(child: int, folder: str, *, patience: float = _PATIENCE, mark: str = "") -> int:
    """End what mpirun left here: SIGTERM, and after some time SIGKILL; give their number."""
    left = survivors(child, folder, reaped=True, mark=mark)
    if not left:
        return 0
    count = len(left)
    for number in (signal.SIGTERM, signal.SIGKILL):
        send(left, number)
        wait_gone(left, patience)
        # Those that were ended may have started others; a zombie has no environment any more.
        left = survivors(child, folder, reaped=True, mark=mark)
        if not left:
            break
    return count


def wait_gone(pids: list[int], patience: float = _PATIENCE) -> None:
    """Wait until processes are gone, whoever their parent is; our own are reaped."""
    deadline = time.monotonic() + patience
    poll, handles, unseen = select.poll(), [], []
    for pid in pids:
        with suppress(ProcessLookupError):
            handle = process_handle(pid)
            if handle is None:
                unseen.append(pid)
                continue
            handles.append(handle)
            poll.register(handle, select.POLLIN)
    alive = set(handles)
    while alive and (left := deadline - time.monotonic()) > 0:
        for handle, _ in poll.poll(left * 1000):
            poll.unregister(handle)
            alive.discard(handle)
    for handle in handles:
        os.close(handle)
    reap()
    while time.monotonic() < deadline and any(os.path.exists(f"/proc/{pid}") for pid in unseen):
        time.sleep(_STEP)
        reap()


def reap() -> list[tuple[int, int]]:
    """Take every child that has ended off the process table: (pid, wait status)."""
    found: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        found.append((pid, status))


def _finding(verdict: Verdict) -> Finding:
    """Write a verdict as a finding; a code of the program's own has no row, and no hint."""
    # Loaded now, and not kept in memory for as long as the job runs.
    from mpiboot.checks import BY_REFERENCE  # noqa: PLC0415
    from mpiboot.model import Finding, Level  # noqa: PLC0415

    row = BY_REFERENCE.get(verdict.reference)
    name = verdict.reference or ("signal" if verdict.by_signal else "program")
    hint = row.hint if row else ""
    return Finding(name, Level.FAIL, verdict.said, verdict.host, verdict.evidence, hint)


def tell(
    verdict: Verdict,
    spec: LaunchSpec,
    seconds: float,
    termination_log: str,
    evidence: tuple[str, ...] = (),
) -> str:
    """Say how the job ended in one record: the reason once, below it evidence and what to do.

    Returns:
        Why it failed, for the next attempt; empty after a good end.

    Args:
        verdict: how it ended.
        spec: what was started.
        seconds: how long it all took, from the launcher's start.
        termination_log: where the kubelet looks for the reason of a failure.
        evidence: what was found out about it elsewhere, the first cause first.
    """
    item = _finding(verdict)
    where = f"{item.host}: " if item.host else ""
    first = f"; {evidence[0]}" if evidence else ""
    # A launcher that was told to end did not fail.
    failed = bool(verdict.code) and not verdict.by_signal
    mark = f"[{item.check}] " if failed else ""
    if verdict.code:
        log.fresh_line()  # mpirun or a rank may have left a line without its end
        lines = (*evidence, *item.evidence)
        text = f"{item.check}: {where}{item.said}\n"
        text += f"-> {item.hint}\n" if item.hint else ""
        lines = (*lines, spec.earlier) if spec.earlier else lines
        termination.write(termination_log, text + "".join(f"{line}\n" for line in lines))
    hosts = "1 host" if spec.hosts == 1 else f"{spec.hosts} hosts"
    ranks = "" if spec.ranks is None else f", {spec.ranks} rank" + "s" * (spec.ranks != 1)
    what = f"{seconds:.1f} s, {hosts}{ranks}, exit {verdict.code}"
    say = log.error if failed else log.info
    say(
        "ended",
        f"{mark}job ended: {what}: {where}{item.said}{first}",
        seconds=round(seconds, 3),
        hosts=spec.hosts,
        ranks=spec.ranks,
        exit=verdict.code,
        reference=item.check if verdict.code else "",
        host=verdict.host,
        rank=verdict.rank,
        signal=verdict.signal,
        cause=evidence[0] if evidence else item.said,
        said=item.said,
        hint=item.hint,
        evidence=[*evidence[1:], *item.evidence],
    )
    return f"{item.check}: {where}{item.said}{first}, exit {verdict.code}" if verdict.code else ""


def tell_not_started(failure: Failure, seconds: float, termination_log: str) -> None:
    """Say that the job ended before mpirun was started: why is in the log already.

    Args:
        failure: what came instead.
        seconds: how long it all took, from the launcher's start.
        termination_log: where the kubelet looks for the reason of a failure.
    """
    termination.write(termination_log, failure.message)
    say = log.error if failure.held else log.info  # not held: it was told to end
    say(
        "ended",
        f"job did not start: {seconds:.1f} s, exit {failure.code} ({failure.reference})",
        seconds=round(seconds, 3),
        exit=failure.code,
        reference=failure.reference,
    )


def remove_key(folder: str) -> None:
    """Remove a launch's copy of the job's key: no agent logs in any more."""
    with suppress(OSError):
        os.unlink(f"{folder}/{KEY}")  # noqa: PTH108 - pathlib costs a megabyte
