"""``mpiboot doctor``: this pod and, on a launcher, every host; what is wrong and how to fix it.

It waits for nothing, starts nothing and writes nothing but its private folder. ``doctor ranks``
shows on a launcher the ranks of all hosts, in any other pod its own; it waits for the time between
its two samples, and sends no signals.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from mpiboot import __version__
from mpiboot.core import log
from mpiboot.core.addresses import short_names
from mpiboot.core.checks import (
    BY_REFERENCE,
    TABLE,
    ExitCode,
    MpibootError,
    ShownError,
    error,
    failed,
)
from mpiboot.core.facts import Worker
from mpiboot.core.model import Finding, Level, Role, values
from mpiboot.core.settings import Resolved
from mpiboot.core.wording import counted, first_few, grouped
from mpiboot.doctor import checks, job, observe
from mpiboot.doctor.ranks import HostRanks, Rank, differing_first, judge, read
from mpiboot.hosts import host_shell, hostfiles
from mpiboot.job import platforms, render
from mpiboot.launcher import prepare
from mpiboot.launcher.setup import access, launcher_pod
from mpiboot.worker.role import running_worker


def run(
    resolved: Resolved,
    environ: Mapping[str, str],
    *,
    only: Collection[str] = (),
    image: bool = False,
    as_json: bool = False,
) -> None:
    """Print every finding; after Ctrl-C those that are known.

    Args:
        resolved: the settings.
        environ: this process's environment.
        only: references of the checks that are wanted; none: all.
        image: whether this is an image's build, and no pod.
        as_json: whether a program reads it.

    Raises:
        ShownError: something fails; with the code 1.
        MpibootError: ``usage``; there is no such check.
        KeyboardInterrupt: it was interrupted, and has printed what it found.
    """
    unknown = [name for name in only if name not in BY_REFERENCE]
    if unknown:
        raise error(
            "usage", f"there is no check {unknown[0]!r}", hint="`mpiboot doctor` names those it ran"
        )
    role = role_of(resolved, environ)
    found: list[Finding] = []
    whole = False
    try:
        for item in _findings(resolved, environ, role, only, image=image):
            if item not in found:
                found.append(item)
        whole = True
    except KeyboardInterrupt:
        pass
    finally:
        checks.remove_folder(resolved.settings, environ)
    shown = [item for item in found if not only or item.check in only]
    if as_json:
        sys.stdout.write(report(shown, role, whole=whole))
    else:
        write(shown, whole=whole)
    if not whole:
        raise KeyboardInterrupt
    end(shown)


def _findings(
    resolved: Resolved,
    environ: Mapping[str, str],
    role: Role,
    only: Collection[str],
    *,
    image: bool,
) -> Iterator[Finding]:
    """Check this pod and, on a launcher, its hosts."""
    yield from (*resolved.warnings, *resolved.removed)
    worker = running_worker(resolved.settings.runtime_dir, environ)
    pod = checks.Pod(resolved, environ, worker)
    yield from checks.run(checks.chosen(role, only, at_build=image), pod, resolved.settings.timeout)
    if image:
        return
    if role is Role.WORKER and worker is None:
        hint = "start the container with `args: [worker]`, and read its log"
        yield failed(job.SERVER, "no SSH server of mpiboot's runs in this pod", hint=hint)
    if role is Role.LAUNCHER:
        yield from job.of_job(resolved, environ)


def role_of(resolved: Resolved, environ: Mapping[str, str]) -> Role:
    """Find the pod's role; where that fails a launcher's, so that its hosts are checked."""
    mounted = hostfiles.mounted(resolved, environ)
    try:
        return platforms.role(resolved, environ, (), mounted, os.uname().nodename)[0]
    except MpibootError:
        return Role.LAUNCHER


# --- findings to text: a table for a terminal, lines for a pipe, JSON with a version

# Raised when a field changes its meaning; new fields need no new version.
JSON_VERSION: Final = 2
HERE: Final = "this pod"
_WORST_FIRST: Final = (Level.FAIL, Level.WARN, Level.UNKNOWN, Level.OK)


def json_report(**fields: object) -> str:
    """Write a report as JSON: version, mpiboot's version, this pod, then these fields."""
    known = {"version": JSON_VERSION, "mpiboot": __version__, "host": os.uname().nodename}
    return render.as_json({**known, **fields})


def end(found: Iterable[Finding], *bad: Level) -> None:
    """End with the code 1 where a finding has one of these levels, by default FAIL.

    Raises:
        ShownError: one has; everything is printed already.
    """
    for item in found:
        if item.level in (bad or (Level.FAIL,)):
            raise ShownError(item, code=int(ExitCode.FOUND))


def report(found: Sequence[Finding], role: Role, *, whole: bool) -> str:
    """Write the findings as JSON, as docs/reference/errors.md has it."""
    here = os.uname().nodename
    findings = [
        {
            "group": BY_REFERENCE[item.check].group,
            **values(item),
            "host": item.host or ("" if item.hosts else here),
        }
        for item in found
    ]
    # A launcher compares its hosts by it.
    session = {"session": checks.session()} if role is Role.WORKER else {}
    return json_report(role=role, complete=whole, findings=findings, **session)


def write(found: Sequence[Finding], *, whole: bool) -> None:
    """Print the findings: on a terminal a table, and below it what is wrong."""
    width = log.width(1)
    shown = found
    if width is not None:
        sys.stdout.write(f"{_by_host(found)}\n")
        shown = [item for item in found if item.level is not Level.OK]
    sys.stdout.write(f"{render.findings(shown, width)}\n{summary(found, whole=whole)}\n")


def summary(found: Iterable[Finding], *, whole: bool) -> str:
    """Count the findings, in one line."""
    levels = [item.level for item in found]
    bad, warnings, unknown = (
        levels.count(level) for level in (Level.FAIL, Level.WARN, Level.UNKNOWN)
    )
    more = f", {unknown} not known" if unknown else ""
    message = f"{counted(len(levels), 'check')}: {bad} failed, {counted(warnings, 'warning')}{more}"
    return message if whole else f"{message}; interrupted: the rest was not checked"


def cell(levels: Sequence[Level]) -> str:
    """Write a cell: the worst level, with a count unless it is OK."""
    worst = next((level for level in _WORST_FIRST if level in levels), None)
    if worst is None:
        return ""
    count = levels.count(worst)
    return f"{render.MARKS[worst]}{f' {count}' if count > 1 and worst is not Level.OK else ''}"


def _by_host(found: Sequence[Finding]) -> str:
    """Lay the levels out: hosts that are alike are a row, groups of checks are the columns."""
    rows: dict[str, dict[str, list[Level]]] = {}
    for item in found:
        for host in item.hosts or (item.host or HERE,):
            levels = rows.setdefault(host, {})
            levels.setdefault(BY_REFERENCE[item.check].group, []).append(item.level)
    groups = [name for name in TABLE if any(name in row for row in rows.values())]
    short = short_names([name for name in rows if name != HERE])
    alike = grouped(
        (tuple(cell(row.get(name, ())) for name in groups), short.get(host, host))
        for host, row in rows.items()
    )
    return render.table(("", *groups), ((first_few(of, 3), *line) for line, of in alike.items()))


# --- ranks

# Beyond the time between the samples; a stack alone may take 20 s.
_READ_TIMEOUT_S: Final = 60.0
_MAX_RANKS: Final = 64  # on a terminal; a pipe gets all
_HEAD: Final = ("rank", "host", "pid", "state", "CPU", "avg CPU", "kernel function", "program")


class Replies(NamedTuple):
    """The hosts' answers, and the findings of hosts without one; ``all_hosts``: of a job."""

    hosts: tuple[HostRanks, ...]
    all_hosts: bool = False
    wrong: tuple[Finding, ...] = ()


def run_ranks(
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
        text = ranks_text(hosts, found, log.width(1))
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
    launcher = launcher_pod(resolved, environ, checks.role_name(), waits=False)
    passed = await prepare.probe_hosts(launcher)
    pool = access(launcher).pool
    own = next((host.name for host in passed.local), os.uname().nodename)
    query, limit = host_shell.doctor_ranks(seconds, gdb=gdb), seconds + _READ_TIMEOUT_S
    running = asyncio.gather(*(pool.run(one.host.name, query, limit) for one in passed.workers))
    sampling = asyncio.to_thread(observe.ranks, own, seconds, gdb=gdb)
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
    return Replies(tuple(hosts), True, tuple(wrong))


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
        hint = "run it as the ranks' user, or as root"
        yield Finding("not-readable", Level.UNKNOWN, message, hint=hint)


def ranks_text(hosts: Sequence[HostRanks], found: Sequence[Finding], width: int | None) -> str:
    """Write the findings, a row for each rank, the stacks, and a summary.

    ``width`` is a terminal's: it gets no more than a screen of rows, and the stacks of outliers.
    """
    ranks = differing_first(rank for host in hosts for rank in host.ranks)
    parts = [render.findings(found, width)]
    if ranks:
        shown = ranks if width is None else ranks[:_MAX_RANKS]
        short = short_names(list(dict.fromkeys(rank.host for rank, _ in ranks)))
        parts.append(render.table(_HEAD, (_row(rank, short[rank.host]) for rank, _ in shown)))
        if len(ranks) > len(shown):
            left = len(ranks) - len(shown)
            parts.append(f"and {left} more; all of them: mpiboot doctor ranks | cat\n")
        parts += [
            "".join(f"{line}\n" for line in (f"rank {rank.number} on {rank.host}:", *rank.stack))
            for rank, differs in shown
            if rank.stack and (differs or width is None)
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
