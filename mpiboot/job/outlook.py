"""What of the user's own changes how mpirun is watched, starts agents, or ends a job. Pure."""

from __future__ import annotations

from typing import Final

from mpiboot.job.dialects import parameter
from mpiboot.job.plan_builder import Making
from mpiboot.settings import Resolved

# Options and parameters with which a job goes on without a rank that ended badly, or takes its time
# to end: recovery, restarts, fault tolerance (ULFM), orte_abort_on_non_zero_status (4.1),
# state_base_error_non_zero_exit and runtime options (5.0), the time that ranks get to end.
_GOING_ON: Final = (
    "recover",
    "restart",
    "continuous",
    "with-ft",
    "_ft",
    "non_zero",
    "runtime-options",
    "sigkill_timeout",
)


# What mpiboot's parent does for every MPI; more is in the MPI's row.
_LOST_WITHOUT_PARENT: Final = (
    "nobody to see that a host gets no daemon",
    "no word to the workers that the job ended well",
    "no search for the cause of a failure, and no hold after it",
)


def supervised(making: Making, resolved: Resolved) -> bool:
    """Tell whether mpiboot stays as mpirun's parent, and what is lost where it does not."""
    if resolved.settings.supervise != "off":
        return True
    given = resolved.given["supervise"]
    lost = "; ".join((*_LOST_WITHOUT_PARENT, *making.row.lost_without_parent))
    making.decide("supervise", "off", given.source, f"{given}: mpirun is all there is, with {lost}")
    return False


def suspects(making: Making) -> tuple[tuple[str, str], ...]:
    """List what of the user's could keep mpirun from starting agents."""
    found = []
    for key in ("plm", "plm_rsh_agent", "plm_ssh_agent", "orte_launch_agent", "prte_launch_agent"):
        if key in making.line.mca:
            found.append((f"--mca {key} {making.line.mca[key]}", "given on the mpirun line"))
        found += [
            (f"{prefix}{key}", f"{prefix}{key}={making.environ[prefix + key]}")
            for prefix in ("OMPI_MCA_", "PRTE_MCA_")
            if making.environ.get(prefix + key) and prefix + key not in making.set_env
        ]
    if making.line.unknown:
        found.append((making.line.unknown, "an option that mpiboot does not know"))
    return tuple(found)


def may_tell_ranks(making: Making) -> bool:
    """Tell whether 4.1's line can give ranks a value of their own: not beside a list of names."""
    row, line = making.row, making.line
    listed = parameter(row.export_var) in line.mca or row.export_var in (
        making.environ.keys() | making.set_env.keys()
    )
    return (
        row.own_words_var != ""
        and row.own_words_var not in making.environ
        and not line.apps[1:]
        and not line.unknown
        and not listed
    )


def goes_on(making: Making) -> bool:
    """Tell whether the user may have asked mpirun to go on without a rank that ended badly."""
    # Parameters may also stand in a file that the line names.
    if making.line.unknown or {"tune", "am", "app"}.intersection(making.line.given):
        return True
    variables = (name for name in making.environ if "_MCA_" in name)
    named = (*making.line.given, *making.line.mca, *variables)
    return any(word in name.lower() for name in named for word in _GOING_ON)
