"""How the pods differ from usual ones (users, folders, ports): what was done, in one line each.

Pure. What is as usual gets no line.
"""

from __future__ import annotations

from typing import Final

from mpiboot.core.model import Source, SshKind
from mpiboot.core.settings import Resolved
from mpiboot.core.wording import first_few
from mpiboot.job import launcher_size
from mpiboot.job.plan_builder import LaunchPaths, Observed, PlanBuilder

_SSH: Final = 22
# Where private files go when nothing stands against it (``system.files.runtime_dir``).
_FIRST: Final = "/run/mpiboot"
_REFUSED: Final = f"{_FIRST} can't be used"


def launcher(
    builder: PlanBuilder, observed: Observed, resolved: Resolved, paths: LaunchPaths
) -> None:
    """Tell what was done about the launcher's own pod."""
    if observed.identity.own_users:
        builder.decide("users", "the pod's own", Source.DETECTED, "no user here is one of the node")
    folder = paths.launch_dir.rpartition("/")[0]
    if observed.environ.get("HOME") == folder:
        builder.decide("home", folder, Source.DETECTED, "this user has no home that can be used")
    folder = paths.named or folder
    temporary = observed.environ.get("TMPDIR", "")
    if temporary.rpartition("/")[0] == folder:
        builder.decide("tmpdir", temporary, Source.DETECTED, "MPI can't write its session to /tmp")
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
    builder.decide("private-folder", folder, source, because)


def room(builder: PlanBuilder, observed: Observed, user_agent: str, hosts: int) -> int:
    """Tell which of the launcher's limits are too small for its hosts; decide on open files.

    Args:
        builder: gets both.
        observed: has this pod's limits; nothing is told where they are not known.
        user_agent: the user's own launch agent, which counts as ssh; empty where there is none.
        hosts: how many have a launch agent.

    Returns:
        The soft limit of open files with which mpirun is to start; 0: it stays as it is.
    """
    limits, client = observed.limits, observed.client
    if limits is None:
        return 0
    way = SshKind.OPENSSH.value if user_agent or client is None else client.value
    builder.findings += launcher_size.findings(limits, way, hosts)
    decision = launcher_size.open_files(limits, way, hosts)
    if decision is None:
        return 0
    builder.decisions.append(decision)
    return int(decision.value)


def workers(builder: PlanBuilder, observed: Observed) -> None:
    """Tell which workers' SSH servers are not sshd on port 22, and why; a line for each reason."""
    reasons: dict[str, list[str]] = {}
    ports: dict[int, list[str]] = {}
    for worker in observed.workers:
        if worker.facts and worker.facts.sshd == SshKind.EMBEDDED:
            because = worker.facts.sshd_because or "the worker did not say why"
            reasons.setdefault(because, []).append(worker.host.name)
        if worker.port not in (_SSH, 0):  # kubectl uses none
            ports.setdefault(worker.port, []).append(worker.host.name)
    for because, names in reasons.items():
        builder.decide(
            "ssh-server", SshKind.EMBEDDED.value, Source.DETECTED, f"{because}: {first_few(names)}"
        )
    for port, names in ports.items():
        builder.decide(
            "ssh-port",
            str(port),
            Source.DETECTED,
            f"the job's sshd answers there: {first_few(names)}",
        )
