"""``mpiboot doctor``: this pod and, on a launcher, every host; what is wrong and how to mend it.

It waits for nothing, starts nothing and writes nothing but its private folder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mpiboot.core.errors import MpibootError, error
from mpiboot.core.model import Finding, Role
from mpiboot.core.settings import Resolved
from mpiboot.doctor import checks, gather, job, looks, table, text
from mpiboot.hosts import hostfiles
from mpiboot.hosts.gate import is_one_of
from mpiboot.job import platforms


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked for: which checks and hosts (none: all), an image alone, JSON.

    ``network`` has the hosts measure the ways between them; ``login`` is false where a launcher
    asks, which has just logged in to this worker itself.
    """

    checks: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    image: bool = False
    as_json: bool = False
    login: bool = True
    network: bool = False


def run(resolved: Resolved, environ: Mapping[str, str], asked: Asked = Asked()) -> None:
    """Print every finding; after Ctrl-C those that are known.

    Raises:
        ShownError: something fails; with the code 1.
        MpibootError: ``usage``; a check or host that does not exist is asked for.
        KeyboardInterrupt: it was interrupted, and has said what it knows.
    """
    unknown = [name for name in asked.checks if name not in table.GROUP_OF]
    if unknown:
        raise error("usage", f"no check {unknown[0]!r}", hint="`mpiboot doctor --list` lists them")
    role = role_of(resolved, environ)
    if asked.network and role is not Role.LAUNCHER:
        raise error("usage", "--network is for a launcher: its hosts measure the ways between them")
    found: list[Finding] = []
    whole = False
    try:
        for item in _look(resolved, environ, role, asked):
            if item not in found:
                found.append(item)
        whole = True
    except KeyboardInterrupt:
        pass
    finally:
        looks.remove_folder(resolved.settings, environ)
    shown = _selected(found, asked, whole=whole)
    if asked.as_json:
        sys.stdout.write(text.as_json(shown, role, whole=whole))
    else:
        text.write(shown, whole=whole)
    if not whole:
        raise KeyboardInterrupt
    text.end(shown)


def _selected(found: list[Finding], asked: Asked, *, whole: bool) -> list[Finding]:
    """Leave what is asked for; where it was cut off, a host may not have been looked at yet."""
    names = {name for item in found for name in (item.host, *item.hosts) if name}
    if whole:
        job.refuse_unknown(asked.hosts, sorted(names))
    return [
        item
        for item in found
        if (not asked.checks or item.check in asked.checks)
        and (not asked.hosts or any(is_one_of(name, asked.hosts) for name in _whose(item)))
    ]


def _whose(item: Finding) -> tuple[str, ...]:
    return item.hosts or (item.host or os.uname().nodename,)


def _look(
    resolved: Resolved, environ: Mapping[str, str], role: Role, asked: Asked
) -> Iterator[Finding]:
    """Look at this pod and, on a launcher, at its hosts."""
    yield from resolved.warnings
    rows = table.chosen(role, asked.checks, at_build=asked.image)
    one = gather.subject(resolved, environ)
    needs = {name for row in rows for name in row.needs}
    report = gather.gather(one, needs, resolved.settings.timeout)
    yield from checks.judge_all(rows, report.parts, report.unseen)
    if gather.INTERRUPTED in report.unseen.values():
        raise KeyboardInterrupt
    if asked.image:
        return
    if role is Role.WORKER and asked.login and job.SERVER in (asked.checks or (job.SERVER,)):
        yield job.own_server(resolved, environ)
    here = os.uname().nodename
    others = [name for name in asked.hosts if not is_one_of(here, (name,))]
    if role is Role.LAUNCHER and (others or not asked.hosts):
        yield from job.of_job(resolved, environ, others, measures=asked.network)


def role_of(resolved: Resolved, environ: Mapping[str, str]) -> Role:
    """Tell the pod's role; where nothing says it, a launcher's: to look at a hostfile's hosts."""
    mounted = _mounted(resolved, environ)
    try:
        role, _ = platforms.role(resolved, environ, (), mounted, os.uname().nodename)
    except MpibootError:
        return Role.LAUNCHER
    return role


def _mounted(resolved: Resolved, environ: Mapping[str, str]) -> str:
    given = str(resolved.given["hostfile"])
    named = hostfiles.candidates(resolved.settings.hostfile, given, environ)
    return next((item.path for item in named if os.path.exists(item.path)), "")  # noqa: PTH110
