"""What of the user's own changes how mpirun is watched, starts agents, or ends a job. Pure."""

from __future__ import annotations

from typing import Final

from mpiboot.core.setting_types import Switch
from mpiboot.core.settings import Resolved
from mpiboot.job.dialect import parameter
from mpiboot.job.mpirun_options import OptionKind
from mpiboot.job.plan_builder import PlanBuilder

# Options and parameters with which a job goes on without a rank that ended badly, or takes its time
# to end: recovery, restarts, fault tolerance (ULFM), orte_abort_on_non_zero_status (4.1),
# state_base_error_non_zero_exit and runtime options (5.0), the time that ranks get to end; Hydra's
# own word for leaving the other ranks alone.
_GOING_ON: Final = (
    "recover",
    "restart",
    "continuous",
    "with-ft",
    "_ft",
    "non_zero",
    "runtime-options",
    "sigkill_timeout",
    "disable-auto-cleanup",
)


# What mpiboot's parent does for every MPI; more is in the MPI's row.
_LOST_WITHOUT_PARENT: Final = (
    "nobody to see that a host gets no daemon",
    "no word to the workers that the job ended well",
    "no search for the cause of a failure, and no hold after it",
)


def supervised(builder: PlanBuilder, resolved: Resolved) -> bool:
    """Tell whether mpiboot stays as mpirun's parent, and what is lost where it does not."""
    if resolved.settings.supervise is Switch.ON:
        return True
    given = resolved.given["supervise"]
    lost = "; ".join((*_LOST_WITHOUT_PARENT, *builder.row.lost_without_parent))
    builder.decide(
        "supervise",
        "off",
        given.source,
        f"{given}: mpirun runs without mpiboot, and so with {lost}",
    )
    return False


def obstacles(builder: PlanBuilder) -> tuple[tuple[str, str], ...]:
    """List what of the user's could keep mpirun from starting agents."""
    found = []
    for key in ("plm", "plm_rsh_agent", "plm_ssh_agent", "orte_launch_agent", "prte_launch_agent"):
        if key in builder.line.mca:
            found.append((f"--mca {key} {builder.line.mca[key]}", "given on the mpirun line"))
        found += [
            (f"{prefix}{key}", f"{prefix}{key}={builder.environ[prefix + key]}")
            for prefix in ("OMPI_MCA_", "PRTE_MCA_")
            if builder.environ.get(prefix + key) and prefix + key not in builder.set_env
        ]
    if builder.line.unknown:
        found.append((builder.line.unknown, "an option that mpiboot does not know"))
    return tuple(found)


def may_tell_ranks(builder: PlanBuilder) -> bool:
    """Tell whether 4.1's line can give ranks a value of their own: not beside a list of names."""
    row, line = builder.row, builder.line
    listed = parameter(row.export_var) in line.mca or row.export_var in (
        builder.environ.keys() | builder.set_env.keys()
    )
    return (
        row.messages_var != ""
        and row.messages_var not in builder.environ
        and not line.apps[1:]
        and not line.unknown
        and not listed
    )


def goes_on(builder: PlanBuilder) -> bool:
    """Tell whether the user may have asked mpirun to go on without a rank that ended badly."""
    # Parameters may also stand in a file that the line names.
    if builder.line.unknown or OptionKind.FILE in builder.line.kinds:
        return True
    variables = (name for name in builder.environ if "_MCA_" in name)
    named = (*builder.line.given, *builder.line.mca, *variables)
    return any(word in name.lower() for name in named for word in _GOING_ON)
