"""``mpiboot doctor ranks``: the ranks of a job, their state by two samples, and what is proven.

A rank that is stopped, traced, in uninterruptible sleep or missing is reported. Nothing else proves
that one hangs: most MPIs poll, some ranks wait in a sleep, and a manager's ranks have other work
than its workers'. Outliers are only shown first. py-spy or gdb reads a stack, and gdb halts the
rank meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Final, TypeAlias

from mpiboot.core.addresses import short_names
from mpiboot.core.checks import MpibootError
from mpiboot.core.facts import Worker
from mpiboot.core.launch_spec import LAUNCH_ID
from mpiboot.core.model import Finding, Level, Role, read_record
from mpiboot.core.settings import Resolved
from mpiboot.core.wording import counted, first_few, grouped
from mpiboot.doctor import checks
from mpiboot.doctor.role import end, json_report, role_of
from mpiboot.hosts import host_shell
from mpiboot.job import render
from mpiboot.launcher import prepare
from mpiboot.launcher.setup import access, launcher_pod
from mpiboot.system import processes, programs
from mpiboot.system.processes import Activity, text
from mpiboot.worker.answer import NUMBERS


class RankState(str, Enum):
    """A rank's state, by two samples of proc_pid_stat(5)."""

    RUNNING = "running"
    SLEEPING = "sleeping"
    UNINTERRUPTIBLE = "uninterruptible (D)"
    STOPPED = "stopped (T)"
    TRACED = "traced (t)"
    ENDED = "ended (Z)"


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank and its state.

    ``job`` names the launch; ``size`` is its number of ranks (0: not known). ``cpu`` and
    ``cpu_avg`` are shares of one core, between the samples and since its start (None: not known).
    ``function`` is the kernel's in which it waits (wchan), ``stack`` Python's or C's. ``mpi`` is
    whether it has loaded MPI's library.
    """

    number: int
    host: str
    pid: int
    job: str = ""
    size: int = 0
    program: str = ""
    state: RankState = RankState.RUNNING
    cpu: float | None = None
    cpu_avg: float | None = None
    function: str = ""
    stack: tuple[str, ...] = ()
    parent: int = 0
    mpi: bool = False


@dataclass(frozen=True, slots=True)
class HostRanks:
    """The ranks of a host; ``others`` counts processes of other users, which can't be read."""

    host: str
    ranks: tuple[Rank, ...] = ()
    others: int = 0


# psutil's names of states that count where a process has them in both samples.
_STATES: Final = {
    "stopped": RankState.STOPPED,
    "tracing-stop": RankState.TRACED,
    "disk-sleep": RankState.UNINTERRUPTIBLE,
    "zombie": RankState.ENDED,
}
# A rank that sleeps in both samples counts as running above this share of a core.
_RUNNING_SHARE: Final = 0.05
_SIZES: Final = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "busybox"})
_NUMBER: Final = re.compile(r"\d{1,18}", re.ASCII)


def read(output: str, host: str) -> HostRanks | None:
    """Read the report of a worker's own ``mpiboot doctor ranks --json``; None where it is none.

    Args:
        output: what was printed; what a login shell prints before it is ignored.
        host: the name by which the launcher shows it.
    """
    try:
        (found,) = json.loads(output[output.index("{\n") :])["hosts"]
        ranks = read_record(HostRanks, found)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    named = tuple(replace(rank, host=host) for rank in ranks.ranks)
    return replace(ranks, host=host, ranks=named)


def _number_in(environ: Mapping[str, str], names: Iterable[str]) -> int | None:
    """Give the first of these variables that is a number."""
    found = filter(_NUMBER.fullmatch, (environ.get(name, "") for name in names))
    return next(map(int, found), None)


def one_process_a_rank(found: Iterable[Rank]) -> list[Rank]:
    """Choose one of each rank's processes: the first that has MPI, else the first that is no shell.

    A wrapper's child, a data loader and a shell all have the rank's number.
    """
    chosen = []
    for group in grouped(((item.job, item.number), item) for item in found).values():
        with_mpi = [item for item in group if item.mpi]
        left = with_mpi or [item for item in group if item.program not in _SHELLS] or group
        pids = {item.pid for item in left}
        tops = [item for item in left if item.parent not in pids]
        chosen.append(min(tops or left, key=lambda item: item.pid))
    return chosen


def state_of(before: str, now: str, cpu: float) -> RankState:
    """Give a rank's state by both samples and its share of a core between them."""
    running = "running" in (before, now) or cpu >= _RUNNING_SHARE
    usual = RankState.RUNNING if running else RankState.SLEEPING
    return _STATES.get(now, usual) if before == now else usual


_MAX_LINES: Final = 8  # of evidence
# By state: reference, message and hint.
_PROOFS: Final = {
    RankState.STOPPED: (
        "rank-stopped",
        "stopped by a signal",
        (
            "`kill -CONT PID` in that pod lets it go on; find who stopped it: SIGSTOP or SIGTSTP, "
            "a debugger, a shell's job control"
        ),
    ),
    RankState.TRACED: (
        "rank-traced",
        "held by a debugger",
        "detach the debugger (gdb, strace) from it",
    ),
    RankState.UNINTERRUPTIBLE: (
        "rank-in-kernel",
        "in uninterruptible sleep (D): no signal ends it",
        (
            "a file system or a device does not answer: check that volume and its server, and "
            "the node's kernel log"
        ),
    ),
}


def judge(hosts: Sequence[HostRanks], *, all_hosts: bool) -> Iterator[Finding]:
    """Report what is proven of each launch's ranks.

    Args:
        hosts: those that answered.
        all_hosts: whether every host of the job was queried, or this pod alone.
    """
    jobs = grouped((rank.job, rank) for host in hosts for rank in host.ranks).values()
    for ranks in jobs:
        yield from _stuck(ranks)
    for ranks in jobs if all_hosts else ():
        yield from _missing(ranks)


def differing_first(ranks: Iterable[Rank]) -> list[tuple[Rank, bool]]:
    """Order the ranks: first those whose state differs from that of most others, and whether."""
    listed = sorted(ranks, key=lambda item: (item.job, item.number))
    usual = {
        job: Counter(item.state for item in of_job).most_common(1)[0][0]
        for job, of_job in grouped((item.job, item) for item in listed).items()
    }
    pairs = [(item, item.state is not usual[item.job]) for item in listed]
    return sorted(pairs, key=lambda pair: not pair[1])


def _stuck(of_job: Sequence[Rank]) -> Iterator[Finding]:
    for state, (check, message, hint) in _PROOFS.items():
        if ranks := [item for item in of_job if item.state is state]:
            rows = [
                f"rank {item.number} on {item.host}: pid {item.pid}, in {item.function or '?'}"
                for item in ranks[:_MAX_LINES]
            ]
            verb = "is" if len(ranks) == 1 else "are"
            text = f"{_numbers(item.number for item in ranks)} {verb} {message}"
            hosts = list(dict.fromkeys(item.host for item in ranks))
            yield Finding(check, Level.FAIL, text, "", tuple(rows), hint).on(hosts)


def _numbers(of: Iterable[int]) -> str:
    listed = sorted(of)
    return f"rank{'s' * (len(listed) > 1)} {first_few(map(str, listed), _MAX_LINES)}"


def _missing(ranks: Sequence[Rank]) -> Iterator[Finding]:
    """Name the missing ranks of a launch."""
    size = max(item.size for item in ranks)
    if left := set(range(size)) - {item.number for item in ranks}:
        verb = "is" if len(left) == 1 else "are"
        message = f"{_numbers(left)} of {size} {verb} on none of the hosts that answered"
        hint = (
            "they have ended, or never began: read the launcher's log, and check whether that pod "
            "was out of memory"
        )
        yield Finding("rank-missing", Level.WARN, message, hint=hint)


# --- samples of this pod

_STACK_TIMEOUT_S: Final = 20.0
_MAX_STACK_LINES, _MAX_STACK_CHARACTERS = 30, 200
PROC: Final = Path("/proc")


def sample(host: str, seconds: float, *, gdb: bool = False) -> HostRanks:
    """Sample the ranks twice.

    Args:
        host: the name by which it is shown.
        seconds: between the samples.
        gdb: whether gdb reads C stacks.
    """
    every = {pid: processes.environ(pid) for pid in processes.pids()}
    environs = {
        pid: found for pid, found in every.items() if _number_in(found, NUMBERS) is not None
    }
    others = sum(not os.access(f"/proc/{pid}/cwd", os.F_OK) for pid in every)
    before = {pid: processes.activity(pid) for pid in environs}
    began = time.monotonic()
    time.sleep(seconds)
    after = {pid: processes.activity(pid) for pid in environs}
    passed = time.monotonic() - began
    found = [
        _rank(pid, host, environ, was, now, passed)
        for pid, environ in environs.items()
        if (was := before[pid]) and (now := after[pid])
    ]
    chosen = sorted(one_process_a_rank(found), key=lambda one: one.number)
    return HostRanks(host, tuple(_details(rank, gdb=gdb) for rank in chosen), others)


def _rank(
    pid: int,
    host: str,
    environ: Mapping[str, str],
    before: Activity,
    now: Activity,
    seconds: float,
) -> Rank:
    cpu = (now.cpu - before.cpu) / seconds
    return Rank(
        _number_in(environ, NUMBERS) or 0,
        host,
        pid,
        " ".join(filter(None, (environ.get(LAUNCH_ID), environ.get("PMIX_NAMESPACE")))),
        _number_in(environ, _SIZES) or 0,
        processes.program(pid).rpartition("/")[2],
        state_of(before.state, now.state, cpu),
        cpu,
        now.cpu / now.age if now.age > 0 else None,
        parent=now.parent,
        mpi="libmpi" in text(PROC / str(pid) / "maps"),
    )


def _details(rank: Rank, *, gdb: bool) -> Rank:
    """Add the kernel function that it waits in, and its stack."""
    process = PROC / str(rank.pid)
    # Of the thread in uninterruptible sleep, or else of the first one.
    stuck = (task for task in process.glob("task/*") if ") D " in text(task / "stat"))
    function = text(next(stuck, process) / "wchan").removeprefix("0")
    return replace(rank, function=function, stack=_stack(rank, gdb=gdb))


def _stack(rank: Rank, *, gdb: bool) -> tuple[str, ...]:
    """Read its stack by a program that is installed: py-spy does not halt the rank, gdb does."""
    pid = str(rank.pid)
    if rank.program.startswith("python") and shutil.which("py-spy"):
        done = programs.run(("py-spy", "dump", "--nonblocking", "--pid", pid), _STACK_TIMEOUT_S)
        lines = (done.stdout + done.stderr).splitlines() if done else []
    elif gdb and shutil.which("gdb"):
        done = programs.run(("gdb", "-nx", "-batch", "-p", pid, "-ex", "bt"), _STACK_TIMEOUT_S)
        lines = [line for line in done.stdout.splitlines() if line[:1] == "#"] if done else []
    else:
        return ()
    return tuple(line[:_MAX_STACK_CHARACTERS] for line in lines[:_MAX_STACK_LINES])


# --- the command

# Beyond the time between the samples; a stack alone may take 20 s.
_READ_TIMEOUT_S: Final = 60.0
_MAX_RANKS: Final = 64  # on a terminal; a pipe gets all
_HEAD: Final = ("rank", "host", "pid", "state", "CPU", "avg CPU", "kernel function", "program")


# The hosts' answers, whether these are all hosts of a job, and the findings of hosts without one.
Replies: TypeAlias = tuple[Sequence[HostRanks], bool, Sequence[Finding]]


def run(
    resolved: Resolved,
    environ: Mapping[str, str],
    *,
    seconds: int,
    gdb: bool = False,
    as_json: bool = False,
) -> None:
    """Print the ranks' states, outliers first.

    Args:
        resolved: the settings.
        environ: this process's environment.
        seconds: between the two samples.
        gdb: whether gdb reads C stacks, which halts each rank meanwhile.
        as_json: print JSON.

    Raises:
        ShownError: a rank is stopped, traced, in uninterruptible sleep or missing; code 1.
    """
    hosts, all_hosts, wrong = _replies(resolved, environ, seconds, gdb=gdb)
    found = (*judge(hosts, all_hosts=all_hosts), *wrong, *_not_readable(hosts))
    if as_json:
        text = json_report(all_hosts=all_hosts, findings=found, hosts=hosts)
    else:
        text = as_text(hosts, found, terminal=os.isatty(1))
    sys.stdout.write(text)
    end(found, Level.FAIL, Level.WARN)


def _replies(resolved: Resolved, environ: Mapping[str, str], seconds: int, *, gdb: bool) -> Replies:
    wrong: tuple[Finding, ...] = ()
    if role_of(resolved, environ) is Role.LAUNCHER:
        try:
            return asyncio.run(_job(resolved, environ, seconds, gdb=gdb))
        except MpibootError as exc:
            wrong = (exc.finding, *exc.others)
        finally:
            checks.remove_folder(resolved.settings, environ)
    here = sample(os.uname().nodename, seconds, gdb=gdb)
    if here.ranks:  # a pod whose role is not set
        wrong = tuple(replace(item, level=Level.UNKNOWN) for item in wrong)
    return (here,), False, wrong


async def _job(
    resolved: Resolved, environ: Mapping[str, str], seconds: int, *, gdb: bool
) -> Replies:
    """Query every host of the hostfile, and this pod.

    Raises:
        MpibootError: there is no hostfile, or nothing to log in with.
    """
    launcher = launcher_pod(resolved, environ, checks.role_name(), waits=False)
    passed = await prepare.probe_hosts(launcher)
    pool = access(launcher).pool
    local_name = next((host.name for host in passed.local), os.uname().nodename)
    query, limit = host_shell.doctor_ranks(seconds, gdb=gdb), seconds + _READ_TIMEOUT_S
    running = asyncio.gather(*(pool.run(one.host.name, query, limit) for one in passed.workers))
    sampling = asyncio.to_thread(sample, local_name, seconds, gdb=gdb)
    here, ends = await asyncio.gather(sampling, running)
    await pool.close()
    hosts = [here] if here.ranks or passed.local else []
    reached = [worker.host.name for worker in passed.workers]
    wrong = [item for item in passed.findings if item.host not in reached]
    for worker, ended in zip(passed.workers, ends, strict=True):
        if found := read(ended.answer or "", worker.host.name):
            hosts.append(found)
        else:
            wrong.append(_unanswered(worker))
    return hosts, True, wrong


def _unanswered(worker: Worker) -> Finding:
    name = worker.host.name
    if not worker.runs_mpiboot:
        hint = "run mpiboot on the workers (`args: [worker]`), or py-spy and gdb in that pod"
        message = "its ranks are unknown: it does not run mpiboot"
        return Finding("not-readable", Level.UNKNOWN, message, name, hint=hint)
    message = "login succeeded, and the query for its ranks got no answer"
    hint = "try again; check that pod's load"
    return Finding("workers-unreachable", Level.FAIL, message, name, hint=hint)


def _not_readable(hosts: Sequence[HostRanks]) -> Iterable[Finding]:
    """Report hosts where processes of other users hide whether they are ranks."""
    others = [host for host in hosts if host.others and not host.ranks]
    if others:
        count = counted(sum(host.others for host in others), "process", "processes")
        where = first_few(item.host for item in others)
        message = f"{count} of other users on {where}: whether they are ranks can't be read"
        hint = "run it as the ranks' user"
        yield Finding("not-readable", Level.UNKNOWN, message, hint=hint)


def as_text(hosts: Sequence[HostRanks], found: Sequence[Finding], *, terminal: bool) -> str:
    """Write the findings, a row for each rank, the stacks, and a summary.

    A terminal gets no more than a screen of rows, and the stacks of outliers.
    """
    ranks = differing_first(rank for host in hosts for rank in host.ranks)
    parts = [render.findings(found)]
    if ranks:
        shown = ranks[:_MAX_RANKS] if terminal else ranks
        short = short_names(list(dict.fromkeys(rank.host for rank, _ in ranks)))
        parts.append(render.table(_HEAD, (_row(rank, short[rank.host]) for rank, _ in shown)))
        if len(ranks) > len(shown):
            left = len(ranks) - len(shown)
            parts.append(f"and {left} more; all of them: mpiboot doctor ranks | cat\n")
        parts += [
            "".join(f"{line}\n" for line in (f"rank {rank.number} on {rank.host}:", *rank.stack))
            for rank, differs in shown
            if rank.stack and (differs or not terminal)
        ]
    states = Counter(rank.state.value for rank, _ in ranks)
    counts = ", ".join(f"{count} {state}" for state, count in states.most_common())
    ranks_on = f"{counted(len(ranks), 'rank')} on {counted(len(hosts), 'host')}"
    summary = f"{ranks_on}: {counts}" if ranks else "no rank runs here"
    return "\n".join(filter(None, (*parts, f"{summary}\n")))


def _row(rank: Rank, host: str) -> tuple[str, ...]:
    return (
        str(rank.number),
        host,
        str(rank.pid),
        rank.state.value,
        _share(rank.cpu),
        _share(rank.cpu_avg),
        rank.function or "-",
        rank.program,
    )


def _share(of: float | None) -> str:
    return "?" if of is None else f"{of:.0%}"
