"""What is said of an error that ends a process: in the log, and as the reason of its end."""

from __future__ import annotations

import platform
import traceback

from mpiboot import __version__, log, many_hosts, render
from mpiboot.errors import MpibootError, error


def bug(wrong: Exception) -> MpibootError:
    """Make an error of what nobody expected, with what a developer needs to find it."""
    versions = f"mpiboot {__version__}, Python {platform.python_version()}, {platform.platform()}"
    lines = "".join(traceback.format_exception(wrong)).rstrip().splitlines()
    return error("bug", f"{type(wrong).__name__}: {wrong}", evidence=(versions, *lines[-20:]))


def say(wrong: MpibootError) -> str:
    """Log an error with all that belongs to it; give the text of the termination message."""
    already_said = frozenset(wrong.finding.evidence)
    log.finding(wrong.finding)
    # Thousands of hosts may be missing: each is told once, as evidence.
    left = (item for item in wrong.others if f"{item.host}: {item.said}" not in already_said)
    for item in many_hosts.findings(left):
        log.finding(item)
    return render.termination(wrong.finding, wrong.others)
