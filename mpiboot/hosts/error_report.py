"""Reports an error that ends a process: to the log, and as the termination message."""

from __future__ import annotations

import errno
import platform
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from mpiboot import __version__
from mpiboot.core import log
from mpiboot.core.checks import MpibootError, error
from mpiboot.core.model import Finding
from mpiboot.core.wording import MAX_LINES, first_few, grouped
from mpiboot.job import render

# Errors of calls that reach a limit of this pod.
_LIMITS: Final = {
    errno.EMFILE: "this process may open no more files (ulimit -n)",
    errno.ENFILE: "the node may open no more files",
    errno.EAGAIN: "this pod may start no more processes (pids.max, ulimit -u)",
    errno.ENOMEM: "out of memory",
}


def bug(problem: Exception) -> MpibootError:
    """Turn an unexpected exception into an error with what a developer needs to find the cause.

    Reached limits of the pod and missing modules of other packages are reported as such.
    """
    if isinstance(problem, ModuleNotFoundError) and not (problem.name or "mpiboot").startswith(
        "mpiboot"
    ):
        message = f"Python {platform.python_version()} does not find {problem.name}"
        return error("python-modules", message)
    if isinstance(problem, OSError) and problem.errno in _LIMITS:
        return error("launcher-limits", f"{_LIMITS[problem.errno]}: {problem.strerror}")
    versions = f"mpiboot {__version__}, Python {platform.python_version()}, {platform.platform()}"
    lines = "".join(traceback.format_exception(problem)).rstrip().splitlines()
    return error("bug", f"{type(problem).__name__}: {problem}", evidence=(versions, *lines[-20:]))


def report(problem: MpibootError) -> str:
    """Log an error with its findings; give the text of the termination message."""
    logged = frozenset(problem.finding.evidence)
    log.finding(problem.finding)
    # Thousands of hosts may be missing: each is logged once, as evidence, or in a line of its kind.
    left = [item for item in problem.others if f"{item.host}: {item.message}" not in logged]
    return render.termination(problem.finding, report_findings(left, problem.finding.hint))


def report_findings(found: Sequence[Finding], logged_hint: str = "") -> tuple[Finding, ...]:
    """Log findings; those of very many hosts in one line of their kind, and each at debug.

    Args:
        found: the findings.
        logged_hint: a hint that was logged already.

    Returns:
        The findings that were logged.
    """
    logged = merge_findings(found)
    for item in logged:
        log.finding(replace(item, hint="") if item.hint == logged_hint else item)
    kinds = frozenset(logged)
    for item in found:
        if item not in kinds:
            log.debug(item.check, f"[{item.check}] {item.where}: {item.message}", host=item.host)
    return logged


def merge_findings(items: Iterable[Finding]) -> tuple[Finding, ...]:
    """Make one finding of those of one kind, where these are of more hosts than have a line each.

    A kind is a check, its level and what is to be done. The message of most of these hosts stands
    for all, with other ones and their hosts behind it.
    """
    kinds = grouped(
        ((item.check, item.level, item.hint, "" if item.host else id(item)), item) for item in items
    )
    found: list[Finding] = []
    for alike in kinds.values():
        found += alike if len(alike) <= MAX_LINES else [_one_of(alike)]
    return tuple(found)


def _one_of(alike: Sequence[Finding]) -> Finding:
    messages = grouped((item.message, item.host) for item in alike)
    (text, _), *others = sorted(messages.items(), key=lambda item: -len(item[1]))
    if others:
        text += f"; but {first_few(f'{first_few(hosts)}: {other}' for other, hosts in others)}"
    hosts = tuple(item.host for item in alike)
    return replace(alike[0], message=text, host="", hosts=hosts, evidence=())
