"""``mpiboot doctor ranks``: on a launcher the ranks of all hosts, in any other pod its own.

It waits for nothing but the time between its two looks, signals nobody, and writes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace

from mpiboot.core import log
from mpiboot.core.errors import MpibootError, ShownError
from mpiboot.core.exit_codes import ExitCode
from mpiboot.core.model import Finding, Level, Role
from mpiboot.core.settings import Resolved
from mpiboot.core.wording import counted, first_few
from mpiboot.doctor.ranks import ask, judge, text
from mpiboot.doctor.ranks.ask import Answers
from mpiboot.doctor.ranks.records import Activity, HostRanks
from mpiboot.doctor.role import role_of

_ODD = (Level.FAIL, Level.WARN)


def run(
    resolved: Resolved, environ: Mapping[str, str], *, seconds: int, as_json: bool = False
) -> None:
    """Print what the ranks do, the odd ones first.

    Args:
        resolved: the settings.
        environ: this process's environment.
        seconds: between the two looks.
        as_json: whether a program reads it.

    Raises:
        ShownError: something is odd; with the code 1.
    """
    answers = _answers(resolved, environ, seconds)
    odd = judge.judge(answers.hosts, all_hosts=answers.all_hosts, unasked=answers.unasked)
    found = (*odd, *answers.wrong, *_not_readable(answers.hosts))
    write = text.as_json(answers, found) if as_json else text.as_text(answers, found, log.width(1))
    sys.stdout.write(write)
    for item in found:
        if item.level in _ODD:
            raise ShownError(item, code=int(ExitCode.FOUND))


def _answers(resolved: Resolved, environ: Mapping[str, str], seconds: int) -> Answers:
    if role_of(resolved, environ) is not Role.LAUNCHER:
        return ask.this_pod(seconds)
    try:
        return ask.job(resolved, environ, seconds)
    except MpibootError as wrong:
        here = ask.this_pod(seconds)
        why = (wrong.finding, *wrong.others)
        if any(host.ranks for host in here.hosts):  # a pod that nobody told its role
            why = tuple(replace(item, level=Level.UNKNOWN) for item in why)
        return replace(here, wrong=why)


def _not_readable(hosts: Iterable[HostRanks]) -> Iterable[Finding]:
    """Say what this user may not read, and which right that takes."""
    listed = list(hosts)
    blind = [host.host for host in listed if "fd" in host.closed]
    if blind:
        said = f"what ranks have open can't be read on {first_few(blind)}"
        yield _unknown(said, "run it as the ranks' user and with their capabilities, or as root")
    calls = [
        host.host
        for host in listed
        if "syscall" in host.closed and any(item.activity is Activity.WAITS for item in host.ranks)
    ]
    if calls:
        said = f"in which system call ranks wait can't be read on {first_few(calls)}"
        hint = "capabilities: {add: [SYS_PTRACE]}, or kernel.yama.ptrace_scope=0 on the node"
        yield _unknown(said, hint)
    others = [host for host in listed if host.others and not host.ranks]
    if others:
        count = counted(sum(host.others for host in others), "process", "processes")
        said = f"{count} of other users on {first_few(item.host for item in others)}"
        yield _unknown(f"{said} can't be told from ranks", "run it as the ranks' user, or as root")
    python = [
        item
        for host in listed
        for item in host.ranks
        if item.program.startswith("python") and not item.stack
    ]
    if python:
        said = f"no stack of {counted(len(python), 'Python rank')}: py-spy is not on PATH there"
        yield _unknown(said, "pip install py-spy in the image; it needs SYS_PTRACE in most pods")


def _unknown(said: str, hint: str) -> Finding:
    return Finding("not-readable", Level.UNKNOWN, said, hint=hint)
