"""``mpiboot doctor``: this pod and, on a launcher, every host; what is wrong and how to fix it.

It waits for nothing, starts nothing and writes nothing but its private folder.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

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
from mpiboot.core.model import Finding, Level, Role, values
from mpiboot.core.settings import Resolved
from mpiboot.core.wording import counted, first_few, grouped
from mpiboot.doctor import checks, job
from mpiboot.hosts import hostfiles
from mpiboot.job import platforms, render
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
