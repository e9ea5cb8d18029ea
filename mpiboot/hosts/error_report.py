"""What is said of an error that ends a process: in the log, and as the reason of its end."""

from __future__ import annotations

import errno
import platform
import traceback
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from mpiboot import __version__
from mpiboot.core import log
from mpiboot.core.checks import ExitCode, failed
from mpiboot.core.errors import MpibootError, error
from mpiboot.core.model import Finding
from mpiboot.job import render
from mpiboot.network import many_hosts

# What a call fails with where this pod may have no more of something.
_LIMITS: Final = {
    errno.EMFILE: "this process may open no more files (ulimit -n)",
    errno.ENFILE: "the node may open no more files",
    errno.EAGAIN: "this pod may start no more processes (pids.max, ulimit -u)",
    errno.ENOMEM: "there is no more memory",
}


def bug(wrong: Exception) -> MpibootError:
    """Make an error of what nobody expected, with what a developer needs to find it.

    A limit of the pod that was reached is told as that, and so is a Python module of others that
    is not installed.
    """
    if isinstance(wrong, ModuleNotFoundError) and not (wrong.name or "mpiboot").startswith(
        "mpiboot"
    ):
        message = f"Python {platform.python_version()} does not find {wrong.name}"
        return MpibootError(failed("python-modules", message), code=ExitCode.PROGRAM_MISSING)
    if isinstance(wrong, OSError) and wrong.errno in _LIMITS:
        return error("launcher-limits", f"{_LIMITS[wrong.errno]}: {wrong.strerror}")
    versions = f"mpiboot {__version__}, Python {platform.python_version()}, {platform.platform()}"
    lines = "".join(traceback.format_exception(wrong)).rstrip().splitlines()
    return error("bug", f"{type(wrong).__name__}: {wrong}", evidence=(versions, *lines[-20:]))


def say(wrong: MpibootError) -> str:
    """Log an error with all that belongs to it; give the text of the termination message."""
    already_said = frozenset(wrong.finding.evidence)
    log.finding(wrong.finding)
    # Thousands of hosts may be missing: each is told once, as evidence, or all of a kind in a line.
    left = [item for item in wrong.others if f"{item.host}: {item.message}" not in already_said]
    return render.termination(wrong.finding, say_findings(left, wrong.finding.hint))


def say_findings(found: Sequence[Finding], said_hint: str = "") -> tuple[Finding, ...]:
    """Log findings, of very many hosts in one line a kind; each of those is told at debug.

    Args:
        found: the findings.
        said_hint: what to do, where that was said already.

    Returns:
        Those that were told.
    """
    told = many_hosts.findings(found)
    for item in told:
        log.finding(replace(item, hint="") if item.hint == said_hint else item)
    kinds = frozenset(told)
    for item in found:
        if item not in kinds:
            log.debug(item.check, f"[{item.check}] {item.where}: {item.message}", host=item.host)
    return told
