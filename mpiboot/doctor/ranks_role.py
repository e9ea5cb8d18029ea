"""``mpiboot doctor ranks``: on a launcher the ranks of all hosts, in any other pod its own.

It waits for nothing but the time between its two looks, signals nobody, and writes nothing.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mpiboot.core import log
from mpiboot.core.addresses import short_names
from mpiboot.core.checks import MpibootError
from mpiboot.core.model import Finding, Level, Role
from mpiboot.core.settings import Resolved
from mpiboot.core.wording import counted, first_few, size_of
from mpiboot.doctor import looks, ranks_judge
from mpiboot.doctor.ranks_answer import Activity, HostRanks, MpiStage, Rank, read
from mpiboot.doctor.role import end, json_report, role_of
from mpiboot.hosts import host_shell
from mpiboot.hosts.remote_commands import RemoteCommands
from mpiboot.job import render
from mpiboot.launcher import observation
from mpiboot.ssh.attempt import LoginTimeouts
from mpiboot.system import programs

_OUTLIER: Final = (Level.FAIL, Level.WARN)


def run(
    resolved: Resolved, environ: Mapping[str, str], *, seconds: int, as_json: bool = False
) -> None:
    """Print what the ranks do, the outliers first.

    Args:
        resolved: the settings.
        environ: this process's environment.
        seconds: between the two looks.
        as_json: whether a program reads it.

    Raises:
        ShownError: there is an outlier; with the code 1.
    """
    answers = _answers(resolved, environ, seconds)
    hosts = answers.hosts
    found = ranks_judge.judge(hosts, all_hosts=answers.all_hosts, unasked=answers.unasked)
    found = (*found, *answers.wrong, *_not_readable(answers.hosts))
    write = as_json_text(answers, found) if as_json else as_text(answers, found, log.width(1))
    sys.stdout.write(write)
    end(found, *_OUTLIER)


def _answers(resolved: Resolved, environ: Mapping[str, str], seconds: int) -> Replies:
    if role_of(resolved, environ) is not Role.LAUNCHER:
        return this_pod(seconds)
    try:
        return job(resolved, environ, seconds)
    except MpibootError as wrong:
        here = this_pod(seconds)
        why = (wrong.finding, *wrong.others)
        if any(host.ranks for host in here.hosts):  # a pod whose role is not set
            why = tuple(replace(item, level=Level.UNKNOWN) for item in why)
        return replace(here, wrong=why)


def _not_readable(hosts: Iterable[HostRanks]) -> Iterable[Finding]:
    """Say what this user may not read, and which right that takes."""
    listed = list(hosts)
    blind = [host.host for host in listed if "fd" in host.closed]
    if blind:
        message = f"what ranks have open can't be read on {first_few(blind)}"
        yield _unknown(message, "run it as the ranks' user and with their capabilities, or as root")
    calls = [
        host.host
        for host in listed
        if "syscall" in host.closed and any(item.activity is Activity.WAITS for item in host.ranks)
    ]
    if calls:
        message = f"in which system call ranks wait can't be read on {first_few(calls)}"
        hint = "capabilities: {add: [SYS_PTRACE]}, or kernel.yama.ptrace_scope=0 on the node"
        yield _unknown(message, hint)
    others = [host for host in listed if host.others and not host.ranks]
    if others:
        count = counted(sum(host.others for host in others), "process", "processes")
        message = f"{count} of other users on {first_few(item.host for item in others)}"
        yield _unknown(
            f"{message} can't be told from ranks", "run it as the ranks' user, or as root"
        )
    python = [
        item
        for host in listed
        for item in host.ranks
        if item.program.startswith("python") and not item.stack
    ]
    if python:
        message = f"no stack of {counted(len(python), 'Python rank')}: py-spy is not on PATH there"
        yield _unknown(message, "pip install py-spy in the image; it needs SYS_PTRACE in most pods")


def _unknown(message: str, hint: str) -> Finding:
    return Finding("not-readable", Level.UNKNOWN, message, hint=hint)


# Seconds beyond those between the two looks; py-spy alone may need five for each Python rank.
_READING: Final = 60.0


@dataclass(frozen=True, slots=True)
class Replies:
    """What the hosts said, and why those that are missing said nothing; ``all_hosts``: of a job."""

    hosts: tuple[HostRanks, ...]
    all_hosts: bool = False
    wrong: tuple[Finding, ...] = ()
    unasked: tuple[str, ...] = ()


def this_pod(seconds: int) -> Replies:
    """Ask this pod alone.

    Args:
        seconds: between the two looks.
    """
    return Replies((asyncio.run(_here(os.uname().nodename, seconds)),))


def job(resolved: Resolved, environ: Mapping[str, str], seconds: int) -> Replies:
    """Ask every host of the hostfile, and this pod; arguments as for doctor.

    Raises:
        MpibootError: there is no hostfile, or nothing to log in with.
    """
    try:
        return asyncio.run(_job(resolved, environ, seconds))
    finally:
        looks.remove_folder(resolved.settings, environ)


async def _job(resolved: Resolved, environ: Mapping[str, str], seconds: int) -> Replies:
    hosts_of_file, to, passed = await observation.probe_hosts(resolved, environ, looks.role())
    limits = LoginTimeouts(command=seconds + _READING)
    commands = RemoteCommands(to, resolved.settings.host_keys, limits)
    command = host_shell.ranks(seconds)
    own = next((host.name for host in passed.local), os.uname().nodename)
    asked = asyncio.gather(*(commands.run(worker, command) for worker in passed.workers))
    here, outputs = await asyncio.gather(_here(own, seconds), asked)
    hosts = [here] if here.ranks or passed.local else []
    unasked = {item.host: item for item in passed.findings if item.host}
    reached = {host.name for host in passed.local}
    for worker, output in zip(passed.workers, outputs, strict=True):
        name = worker.host.name
        found = read(output, name, worker.address) if output else None
        if found is not None:
            hosts.append(found)
            reached.add(name)
    missing = tuple(host.name for host in hosts_of_file if host.name not in reached)
    return Replies(
        tuple(hosts), True, tuple(unasked.get(name) or _silent(name) for name in missing), missing
    )


def _silent(name: str) -> Finding:
    message = "it let us in, and did not answer what its ranks do"
    hint = "try again; look at that pod's load"
    return Finding("workers-unreachable", Level.FAIL, message, name, hint=hint)


async def _here(name: str, seconds: int) -> HostRanks:
    text = await programs.shell(host_shell.ranks(seconds), seconds + _READING)
    return read(text, name) or HostRanks(name)


_RANKS: Final = 64  # that a terminal shows; a pipe gets all
_HEAD: Final = ("rank", "host", "pid", "does", "MPI", "CPU", "ever", "memory", "threads", "in")
_STAGES: Final = {
    MpiStage.BEFORE: "before",
    MpiStage.INSIDE: "in",
    MpiStage.LEFT: "left",
    MpiStage.UNKNOWN: "?",
}


def as_json_text(answers: Replies, found: Sequence[Finding]) -> str:
    """Write the ranks as docs/how-to/job-hangs.md has it."""
    hosts = [
        {
            "host": host.host,
            "seconds": round(host.seconds, 2),
            "not_readable": sorted(host.closed),
            "other_users_processes": host.others,
            "links": host.links,
            "ranks": host.ranks,
        }
        for host in answers.hosts
    ]
    return json_report(
        all_hosts=answers.all_hosts, not_asked=answers.unasked, findings=found, hosts=hosts
    )


def as_text(answers: Replies, found: Sequence[Finding], width: int | None) -> str:
    """Write the outliers, one line each with its hint, then all ranks, then what the links moved.

    Args:
        answers: of the hosts.
        found: the outliers.
        width: a terminal's; without one nothing is broken or left out.
    """
    ranks = [rank for host in answers.hosts for rank in host.ranks]
    parts = ["".join(_finding(item, width) for item in found)]
    parts += [_ranks(ranks, width), _links(answers.hosts)] if ranks else []
    parts.append(summary(ranks, answers, found) + "\n")
    return "\n".join(filter(None, parts))


def summary(ranks: Sequence[Rank], answers: Replies, found: Sequence[Finding]) -> str:
    """Count the ranks by what they do, in one line."""
    if not ranks:
        return "no rank runs on these hosts" if answers.all_hosts else "no rank runs in this pod"
    does = Counter(item.activity for item in ranks)
    message = ", ".join(f"{count} {_word(kind)}" for kind, count in does.most_common())
    hosts = counted(len({item.host for item in ranks}), "host")
    outliers = sum(item.level in _OUTLIER for item in found)
    rest = f"{outliers} odd" if outliers else "none stands out; look again a minute later"
    return f"{counted(len(ranks), 'rank')} on {hosts}: {message}; {rest}"


def _word(kind: Activity) -> str:
    return "waiting" if kind is Activity.WAITS else kind.value


def _finding(item: Finding, width: int | None) -> str:
    head = f"{render.MARKS[item.level].ljust(4)}  "
    where = f"{item.host}: " if item.host and item.host not in item.message else ""
    text = render.indented(head, f"{where}{item.message}", width)
    text += "".join(f"{' ' * len(head)}  {line}\n" for line in item.evidence)
    return text + (render.indented(f"{' ' * len(head)}-> ", item.hint, width) if item.hint else "")


def _ranks(ranks: Sequence[Rank], width: int | None) -> str:
    ordered = sorted(ranks, key=lambda item: (item.job, item.number))
    shown = ordered
    if width is not None and len(ordered) > _RANKS:
        # What is busy in MPI is the rule: others are shown before those.
        first = [item for item in ordered if item.activity is not Activity.BUSY]
        rest = [item for item in ordered if item.activity is Activity.BUSY]
        shown = [*first, *rest][:_RANKS]
    short = short_names(list(dict.fromkeys(item.host for item in ordered)))
    text = render.table((*_HEAD, "program"), (_row(item, short[item.host]) for item in shown))
    left = len(ordered) - len(shown)
    return text + (f"and {left} more; all of them: mpiboot doctor ranks | cat\n" if left else "")


def _row(rank: Rank, host: str) -> tuple[str, ...]:
    waits = " ".join(filter(None, (rank.call, rank.file))) or rank.place
    held = f"; holds {first_few(rank.devices)}" if rank.devices else ""
    return (
        str(rank.number),
        host,
        str(rank.pid),
        _word(rank.activity),
        _STAGES[rank.stage],
        _share(rank.cpu),
        _share(rank.cpu_since),
        size_of(rank.memory),
        f"{rank.running}/{rank.threads}",
        waits or "-",
        f"{rank.program}{held}",
    )


def _share(of: float | None) -> str:
    return "?" if of is None else f"{of:.0%}"


def _links(hosts: Iterable[HostRanks]) -> str:
    listed = list(hosts)
    short = short_names([host.host for host in listed])
    rows = [
        (short[host.host], link.name, _rate(link.sent), _rate(link.received), link.state or "-")
        for host in listed
        for link in sorted(host.links, key=lambda link: link.name)
    ]
    return render.table(("host", "link or port", "sent", "received", "state"), rows)


def _rate(rate: float | None) -> str:
    return "?" if rate is None else f"{rate / 1e6:.3f} MB/s"
