"""On what terms the pods run (users, folders, ports), and what was done about it; one line each.

Pure. What is as usual gets no line.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mpiboot.job.plan_builder import Making, Observed, Paths
from mpiboot.model import Source
from mpiboot.settings import Resolved

_SSH: Final = 22
# Where private files go when nothing stands against it (``system.files.runtime_dir``).
_FIRST: Final = "/run/mpiboot"
_REFUSED: Final = f"{_FIRST} can't be used"
_MOST: Final = 4


def named(names: Iterable[str]) -> str:
    """List names, cut to a few."""
    listed = list(names)
    more = f" and {len(listed) - _MOST} more" if len(listed) > _MOST else ""
    return ", ".join(listed[:_MOST]) + more


def launcher(making: Making, observed: Observed, resolved: Resolved, paths: Paths) -> None:
    """Tell what was done about the launcher's own pod."""
    if observed.identity.own_users:
        making.decide("users", "the pod's own", Source.DETECTED, "no user here is one of the node")
    folder = paths.launch_dir.rpartition("/")[0]
    if observed.environ.get("HOME") == folder:
        making.decide("home", folder, Source.DETECTED, "this user has no home that can be used")
    temporary = observed.environ.get("TMPDIR", "")
    if temporary.rpartition("/")[0] == folder:
        making.decide("tmpdir", temporary, Source.DETECTED, "MPI can't write its session to /tmp")
    if folder.startswith(f"{_FIRST}/"):
        return
    given = resolved.settings.runtime_dir
    if given:
        named_by = resolved.given["runtime_dir"]
        source, because = named_by.source, f"named by {named_by}"
    elif temporary.startswith("/") and folder.startswith(f"{temporary.rstrip('/')}/"):
        source, because = Source.ENVIRONMENT, f"TMPDIR; {_REFUSED}"
    else:
        source, because = Source.DETECTED, _REFUSED
    making.decide("private-folder", folder, source, because)


def workers(making: Making, observed: Observed) -> None:
    """Tell which workers' SSH servers are not sshd on port 22, and why; a line for each reason."""
    reasons: dict[str, list[str]] = {}
    ports: dict[int, list[str]] = {}
    for worker in observed.workers:
        if worker.facts and worker.facts.sshd == "embedded":
            because = worker.facts.sshd_because or "the worker did not say why"
            reasons.setdefault(because, []).append(worker.host.name)
        if worker.port != _SSH:
            ports.setdefault(worker.port, []).append(worker.host.name)
    for because, names in reasons.items():
        making.decide("ssh-server", "embedded", Source.DETECTED, f"{because}: {named(names)}")
    for port, names in ports.items():
        making.decide(
            "ssh-port", str(port), Source.DETECTED, f"the job's sshd answers there: {named(names)}"
        )
