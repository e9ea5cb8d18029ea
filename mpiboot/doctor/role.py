"""``mpiboot doctor``: this pod and, on a launcher, every host; what is wrong and how to fix it.

It waits for nothing, starts nothing and writes nothing but its private folder. ``doctor ranks``
shows on a launcher the ranks of all hosts, in any other pod its own; it waits for the time between
its two samples, and sends no signals.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
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
from mpiboot.core.facts import PodFacts
from mpiboot.core.model import Finding, Level, Role, values
from mpiboot.core.settings import Resolved
from mpiboot.core.wording import counted, first_few, grouped, lasting
from mpiboot.doctor import job, observe
from mpiboot.doctor.checks import LimitsPart, judge_all
from mpiboot.doctor.ranks import HostRanks, Rank, differing_first, judge, read
from mpiboot.hosts import host_shell, hostfiles
from mpiboot.hosts.pipeline import PORTS
from mpiboot.job import platforms, render
from mpiboot.launcher import prepare
from mpiboot.launcher.setup import access, launcher_pod
from mpiboot.network import pod
from mpiboot.system import processes
from mpiboot.worker import facts
from mpiboot.worker.role import WorkerState, running_worker


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
        observe.remove_folder(resolved.settings, environ)
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
    rows = job.chosen(role, only, at_build=image)
    needs = {name for row in rows for name in row.needs}
    worker = running_worker(resolved.settings.runtime_dir, environ)
    one = Subject(resolved, environ, worker)
    parts, unseen = gather(one, needs, resolved.settings.timeout)
    yield from judge_all(rows, parts, unseen)
    if INTERRUPTED in unseen.values():
        raise KeyboardInterrupt
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


# --- all parts of this pod at once, a thread each: where one hangs or fails its part is unknown


class Subject(NamedTuple):
    """This pod: settings, environment, and its worker where mpiboot runs as one."""

    resolved: Resolved
    environ: Mapping[str, str]
    worker: WorkerState | None = None


def _facts(one: Subject) -> PodFacts:
    sshd, pid = (one.worker.sshd, one.worker.pid) if one.worker else ("", 1)
    return facts.gather(one.resolved, one.environ, sshd=sshd, pid=pid, mpi=None)


def _limits(one: Subject) -> LimitsPart:
    if one.worker:
        return observe.limits(observe.process_of(one.worker.port) or one.worker.pid)
    # In a session of an SSH server that is not mpiboot's, this process has the session's limits.
    return observe.limits(os.getpid() if "SSH_CONNECTION" in one.environ else 0)


def _servers(one: Subject) -> tuple[str, ...]:
    """Find who listens at the ports that a launcher tries, where no worker runs."""
    named = one.resolved.settings.ssh_port
    return () if one.worker else observe.servers((named,) if named else PORTS)


PARTS: Final[Mapping[str, Callable[[Subject], object]]] = {
    "identity": lambda one: pod.identity(one.environ),
    "facts": _facts,
    "image": lambda one: observe.image(one.environ),
    "folder": lambda one: observe.folder(one.resolved.settings, one.environ),
    "key": lambda one: observe.key(one.resolved.settings, one.environ),
    "shims": lambda one: observe.shims(one.environ),
    "servers": _servers,
    "limits": _limits,
    "shm": lambda _: observe.shm(),
    "memory": lambda _: processes.memory_kills(),
}
INTERRUPTED: Final = "interrupted"


def gather(
    one: Subject, wanted: Collection[str], seconds: float
) -> tuple[dict[str, object], dict[str, str]]:
    """Observe the parts that are wanted, until Ctrl-C.

    Args:
        one: this pod.
        wanted: names of parts.
        seconds: how long they may take together.

    Returns:
        The parts by name, and by name why a part is unknown.
    """
    found: dict[str, object] = {"settings": one.resolved.settings, "environ": one.environ}
    unseen: dict[str, str] = {}

    def observe_part(name: str) -> None:
        try:
            found[name] = PARTS[name](one)
        except MpibootError as wrong:
            unseen[name] = wrong.finding.message
        except OSError as wrong:
            unseen[name] = wrong.strerror or str(wrong)
        except Exception as wrong:  # noqa: BLE001 - one that fails must not end the others
            unseen[name] = f"observing it failed: {type(wrong).__name__}: {wrong}"

    names = PARTS.keys() & set(wanted)
    threads = []
    deadline, why = time.monotonic() + seconds, f"no answer within {lasting(seconds)}"
    try:
        for name in names:
            # No executor, which would wait at exit for a thread that hangs in the kernel.
            thread = threading.Thread(target=observe_part, args=(name,), daemon=True)
            try:
                thread.start()
                threads.append(thread)
            except RuntimeError:  # the pod may start no more threads, which doctor is to report
                observe_part(name)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
    except KeyboardInterrupt:
        why = INTERRUPTED
    seen = dict(found)
    return seen, {**dict.fromkeys(names - seen.keys(), why), **unseen}


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
    session = {"session": observe.session()} if role is Role.WORKER else {}
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
_MAX_STACKS: Final = 4  # of outliers
_HEAD: Final = ("rank", "host", "pid", "state", "CPU", "avg CPU", "kernel function", "program")


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
        text = ranks_text(replies, found, log.width(1))
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
    hosts_of_file, passed = await prepare.probe_hosts(launcher)
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


def ranks_text(replies: Replies, found: Sequence[Finding], width: int | None) -> str:
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
    return "\n".join(filter(None, (*parts, f"{_ranks_summary(replies)}\n")))


def _ranks_summary(replies: Replies) -> str:
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
