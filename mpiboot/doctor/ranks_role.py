"""``mpiboot doctor ranks``: on a launcher the ranks of all hosts, in any other pod its own.

It waits only for the time between its two samples, sends no signals, and writes nothing.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from mpiboot.core import log
from mpiboot.core.addresses import short_names
from mpiboot.core.checks import MpibootError
from mpiboot.core.model import Finding, Level, Role
from mpiboot.core.settings import Resolved
from mpiboot.core.wording import counted, first_few
from mpiboot.doctor import observe
from mpiboot.doctor.ranks import HostRanks, Rank, differing_first, judge, read
from mpiboot.doctor.role import end, json_report, role_of
from mpiboot.hosts import host_shell
from mpiboot.job import render
from mpiboot.launcher import observation
from mpiboot.launcher.setup import access, launcher_pod

# Beyond the time between the samples; a stack alone may take 20 s.
_READ_TIMEOUT_S: Final = 60.0
_MAX_RANKS: Final = 64  # on a terminal; a pipe gets all
_MAX_STACKS: Final = 4  # of outliers
_HEAD: Final = (
    *("rank", "host", "pid", "state", "CPU", "avg CPU", "kernel function"),
    "program",
)


class Replies(NamedTuple):
    """The hosts' answers, and the findings of hosts without one; ``all_hosts``: of a job."""

    hosts: tuple[HostRanks, ...]
    all_hosts: bool = False
    wrong: tuple[Finding, ...] = ()
    unasked: tuple[str, ...] = ()

    @property
    def ranks(self) -> list[tuple[Rank, bool]]:
        """All ranks, each with whether it is an outlier; outliers first."""
        return differing_first(rank for host in self.hosts for rank in host.ranks)


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
    replies = _replies(resolved, environ, seconds, gdb=gdb)
    found = judge(replies.hosts, all_hosts=replies.all_hosts, unasked=replies.unasked)
    found = (*found, *replies.wrong, *_not_readable(replies.hosts))
    if as_json:
        text = json_report(
            all_hosts=replies.all_hosts,
            not_asked=replies.unasked,
            findings=found,
            hosts=replies.hosts,
        )
    else:
        text = as_text(replies, found, log.width(1))
    sys.stdout.write(text)
    end(found, Level.FAIL, Level.WARN)


def _replies(resolved: Resolved, environ: Mapping[str, str], seconds: int, *, gdb: bool) -> Replies:
    if role_of(resolved, environ) is Role.LAUNCHER:
        try:
            return asyncio.run(_job(resolved, environ, seconds, gdb=gdb))
        except MpibootError as error:
            wrong = (error.finding, *error.others)
        finally:
            observe.remove_folder(resolved.settings, environ)
    else:
        wrong = ()
    here = observe.ranks(os.uname().nodename, seconds, gdb=gdb)
    if here.ranks:  # a pod whose role is not set
        wrong = tuple(replace(item, level=Level.UNKNOWN) for item in wrong)
    return Replies((here,), wrong=wrong)


async def _job(
    resolved: Resolved, environ: Mapping[str, str], seconds: int, *, gdb: bool
) -> Replies:
    """Query every host of the hostfile, and this pod.

    Raises:
        MpibootError: there is no hostfile, or nothing to log in with.
    """
    launcher = launcher_pod(resolved, environ, observe.role())
    hosts_of_file, passed = await observation.probe_hosts(launcher)
    pool = access(launcher).pool
    own = next((host.name for host in passed.local), os.uname().nodename)
    names = [worker.host.name for worker in passed.workers]
    query, limit = host_shell.doctor_ranks(seconds, gdb=gdb), seconds + _READ_TIMEOUT_S
    running = asyncio.gather(*(pool.run(name, query, limit) for name in names))
    sampling = asyncio.to_thread(observe.ranks, own, seconds, gdb=gdb)
    here, ends = await asyncio.gather(sampling, running)
    await pool.close()
    answers = (read(end.answer or "", name) for name, end in zip(names, ends, strict=True))
    hosts = [*([here] if here.ranks or passed.local else []), *filter(None, answers)]
    reached = {*(host.name for host in passed.local), *(host.host for host in hosts)}
    why = {item.host: item for item in passed.findings if item.host}
    missing = tuple(host.name for host in hosts_of_file if host.name not in reached)
    plain = {worker.host.name for worker in passed.workers if not worker.runs_mpiboot}
    wrong = tuple(why.get(name) or _unanswered(name, plain) for name in missing)
    return Replies(tuple(hosts), True, wrong, missing)


def _unanswered(name: str, plain: Container[str]) -> Finding:
    if name in plain:
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
        hint = "run it as the ranks' user, or as root"
        yield Finding("not-readable", Level.UNKNOWN, message, hint=hint)


def as_text(replies: Replies, found: Sequence[Finding], width: int | None) -> str:
    """Write the findings, a row for each rank, and the stacks of outliers.

    ``width`` is a terminal's; without one nothing is wrapped or left out.
    """
    ranks = replies.ranks
    parts = [render.findings(found, width)]
    if ranks:
        shown = ranks if width is None else ranks[:_MAX_RANKS]
        short = short_names(list(dict.fromkeys(rank.host for rank, _ in ranks)))
        table = render.table(_HEAD, (_row(rank, short[rank.host]) for rank, _ in shown))
        left = len(ranks) - len(shown)
        more = f"and {left} more; all of them: mpiboot doctor ranks | cat\n" if left else ""
        parts.append(table + more)
        stacks = [rank for rank, differs in ranks if rank.stack and (differs or width is None)]
        parts += [
            "".join(f"{line}\n" for line in (f"rank {rank.number} on {rank.host}:", *rank.stack))
            for rank in (stacks if width is None else stacks[:_MAX_STACKS])
        ]
    return "\n".join(filter(None, (*parts, f"{_summary(replies)}\n")))


def _summary(replies: Replies) -> str:
    """Count the ranks by state, in one line."""
    ranks = [rank for rank, _ in replies.ranks]
    if not ranks:
        return "no rank runs on these hosts" if replies.all_hosts else "no rank runs in this pod"
    states = Counter(item.state.value for item in ranks)
    message = ", ".join(f"{count} {state}" for state, count in states.most_common())
    return f"{counted(len(ranks), 'rank')} on {counted(len(replies.hosts), 'host')}: {message}"


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
