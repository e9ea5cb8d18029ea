"""Ranks in the launcher's own pod, where mpirun's environment becomes that of all ranks. Pure.

What is true of this pod alone is taken out of mpirun's environment for the sake of the other hosts.
Hydra starts ranks on its own host without a launch agent, from that same environment (seen with
MPICH 4.0.2 and Intel MPI 2021.18.1: no HOME, no HOSTNAME). So each program is started by a few
words of a shell that read these variables back, on this host alone: another one may have such a
file, of a folder that pods share or from another user.
"""

from __future__ import annotations

from typing import Final

from mpiboot.core.model import PodFacts, Source
from mpiboot.core.wording import first_few
from mpiboot.job.plan_builder import LaunchPaths, PlanBuilder

FILE: Final = "own-ranks.env"
_READ: Final = (
    '[ "$1" != "$(read -r name < /proc/sys/kernel/hostname; echo "$name")" ] || [ ! -O "$0" ] '
    '|| . "$0"; shift; exec "$@"'
)


def before(
    builder: PlanBuilder, paths: LaunchPaths, own: PodFacts | None, *, local: bool, remote: bool
) -> tuple[str, ...]:
    """Give the words by which programs are started; none where no rank here would lack anything.

    Args:
        builder: the plan, in which the variables for launch agents alone are known.
        paths: the launcher's private files.
        own: this pod's facts.
        local: whether this pod is one of the hosts.
        remote: whether there are others.
    """
    if not (own and local and remote and builder.agent_env):
        return ()
    names = first_few(builder.agent_env)
    if builder.line.mpirun and any(app.program is None for app in builder.line.apps):
        said = (
            f"ranks in this pod lack {names}: it is not known where on the mpirun line the program "
            "begins"
        )
        builder.warn("usage", said)
        return ()
    file = f"{paths.launch_dir}/{FILE}"
    because = f"ranks in this pod get {names} there; {builder.row.title} would leave them out"
    builder.decide("own-ranks", file, Source.DETECTED, because)
    return ("/bin/sh", "-c", _READ, file, own.hostname)
