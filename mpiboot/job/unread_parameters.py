"""Open MPI's parameters that were written for another version, and what this one has instead. Pure.

An unknown parameter is ignored without a word, by 4.1 and 5.0 alike. By the parameters that
`ompi_info` and `prte_info` of 4.1.4 and 5.0.7 list; a test compares them with the installed ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from mpiboot.core.model import MpiFamily, Source
from mpiboot.job.dialects import (
    ALSO_AGENT,
    ALSO_AGENT_ARGS,
    ALSO_DAEMON_LINK,
    ALSO_DEFAULT_SLOTS,
    HOSTFILE_VARS,
)
from mpiboot.job.plan_builder import PlanBuilder

_OMPI: Final = "OMPI_MCA_"
_PRTE: Final = "PRTE_MCA_"
# Taken over from whichever version's name, or set anew.
_TAKEN_OVER: Final = frozenset(
    {*ALSO_AGENT, *ALSO_AGENT_ARGS, *ALSO_DAEMON_LINK, *ALSO_DEFAULT_SLOTS, *HOSTFILE_VARS}
)
NOTHING: Final = "it has no such parameter"
_UCX: Final = "it has no openib: UCX carries InfiniBand and RoCE (OMPI_MCA_pml=ucx)"
# What PRRTE of 5.0 kept of ORTE's parameters, by their names without `orte_` and `prte_`.
KEPT: Final = (
    *("allocation_required", "allowed_exit_without_sync", "assume_same_shell", "daemon_cores"),
    *("default_dash_host", "execute_quiet", "keep_fqdn_hostnames", "launch_agent"),
    *("local_tmpdir_base", "max_vm_size", "no_session_dirs", "remote_tmpdir_base"),
    *("report_child_jobs_separately", "report_silent_errors", "show_resolved_nodenames"),
    *("stat_history_size", "timeout_for_stack_trace", "tmpdir_base"),
)


@dataclass(frozen=True, slots=True)
class Unread:
    """A parameter of another version, by name or pattern, and what to write here.

    ``variable`` is the one that means the same, ``*`` standing for the same as in ``parameter``;
    ``instead`` are the words where there is none.
    """

    parameter: str
    variable: str = ""
    instead: str = NOTHING


# Names of 4.1 and older ones under 5.0; the first that fits counts.
OLDER: Final = (
    Unread("orte_tag_output", instead="`--output tag` on the mpirun line"),
    Unread("orte_timestamp_output", instead="`--output timestamp` on the mpirun line"),
    Unread("orte_display_alloc", instead="`--display allocation` on the mpirun line"),
    Unread("orte_startup_timeout", instead="MPIBOOT_LAUNCH_TIMEOUT"),
    Unread(
        "orte_abort_timeout",
        instead="MPIBOOT_LAUNCH_TIMEOUT for the start, MPIBOOT_GRACE for the end",
    ),
    Unread("orte_rsh_agent", f"{_PRTE}plm_ssh_agent"),
    *(Unread(f"orte_{name}", f"{_PRTE}prte_{name}") for name in KEPT),
    Unread("orte_*"),
    Unread("plm_rsh_force_rsh", f"{_PRTE}plm_ssh_force_ssh"),
    Unread("plm_rsh_*", f"{_PRTE}plm_ssh_*"),
    Unread("oob_tcp_if_exclude", f"{_PRTE}prte_if_exclude"),
    Unread("oob_tcp_*", f"{_PRTE}oob_tcp_*"),
    Unread("hwloc_base_binding_policy", f"{_PRTE}hwloc_default_binding_policy"),
    Unread("hwloc_base_report_bindings", instead="`--display bind` on the mpirun line"),
    Unread("rmaps_base_mapping_policy", f"{_PRTE}rmaps_default_mapping_policy"),
    Unread("rmaps_base_ranking_policy", f"{_PRTE}rmaps_default_ranking_policy"),
    Unread("rmaps_base_oversubscribe", instead="MPIBOOT_OVERSUBSCRIBE=true"),
    Unread("rmaps_base_display_map", instead="`--display map` on the mpirun line"),
    Unread("routed_radix", f"{_PRTE}rml_base_radix"),
    Unread("btl_openib_*", instead=_UCX),
)
# Names of 5.0 under 4.1.
NEWER: Final = (
    *(Unread(f"prte_{name}", f"{_OMPI}orte_{name}") for name in KEPT),
    Unread("prte_if_exclude", f"{_OMPI}oob_tcp_if_exclude"),
    Unread("plm_ssh_force_ssh", f"{_OMPI}plm_rsh_force_rsh"),
    Unread("plm_ssh_*", f"{_OMPI}plm_rsh_*"),
    Unread("oob_tcp_*", f"{_OMPI}oob_tcp_*"),
    Unread("hwloc_default_binding_policy", f"{_OMPI}hwloc_base_binding_policy"),
    Unread("rmaps_default_mapping_policy", f"{_OMPI}rmaps_base_mapping_policy"),
    Unread("rmaps_default_ranking_policy", f"{_OMPI}rmaps_base_ranking_policy"),
    Unread("rml_base_radix", f"{_OMPI}routed_radix"),
    Unread("*"),
)
# Of the older names PRRTE reads the others, where they have its prefix.
_RENAMED: Final = tuple(row for row in OLDER if row.parameter.startswith(("orte_", "plm_rsh_")))
# By MPI: names of which variables it ignores, and as which prefix they are.
_TABLES: Final = {
    MpiFamily.OPENMPI4: ((_PRTE, NEWER),),
    MpiFamily.OPENMPI5: ((_OMPI, OLDER), (_PRTE, _RENAMED)),
}
_OPENIB: Final = "openib"


def name_them(builder: PlanBuilder) -> None:
    """Name each parameter of the user's that this version ignores, with its new form."""
    row = builder.row
    found = [f"{name} ({instead})" for name, instead in _of_the_user(builder)]
    if found:
        builder.warn("usage", f"{row.title} ignores {', '.join(found)}")
    if row.family is MpiFamily.OPENMPI5:
        _no_openib(builder)


def of_environment(environ: Mapping[str, str], family: MpiFamily) -> Iterator[tuple[str, str]]:
    """Give each variable that this MPI ignores, with what to write instead."""
    for prefix, table in _TABLES.get(family, ()):
        for name in sorted(environ):
            parameter = name.removeprefix(prefix)
            if parameter == name or name in _TAKEN_OVER or not environ[name]:
                continue
            instead = _instead(environ, parameter, table)
            if instead and instead[0] != name:
                yield name, instead[1]


def _of_the_user(builder: PlanBuilder) -> Iterator[tuple[str, str]]:
    for name, instead in of_environment(builder.environ, builder.row.family):
        if builder.set_by(name)[0] not in (Source.PLATFORM, Source.FILE):
            yield name, instead
    for prefix, table in _TABLES.get(builder.row.family, ()):
        # Of its line 5.0 understands the names for its daemons; the rest goes to the ranks.
        for parameter in builder.line.mca if prefix == _OMPI else ():
            if parameter.startswith("btl_"):
                said = _instead(builder.environ, parameter, table)
                if said:
                    yield f"--mca {parameter}", said[1]


def _instead(
    environ: Mapping[str, str], parameter: str, table: tuple[Unread, ...]
) -> tuple[str, str] | None:
    """Give the variable that means the same, if any, and what to tell; None where it is set."""
    row = next((row for row in table if fnmatchcase(parameter, row.parameter)), None)
    if row is None:
        return None
    same = parameter.removeprefix(row.parameter.removesuffix("*"))
    variable = row.variable.replace("*", same)
    if variable and environ.get(variable):
        return None
    return variable, f"write {variable}" if variable else row.instead


def _no_openib(builder: PlanBuilder) -> None:
    """Say what becomes of a list of transports that names the one that is gone.

    That a file of the image leaves it out (Debian's does) is nothing to tell.
    """
    given = {"--mca btl": builder.line.mca.get("btl", "")}
    given[f"{_OMPI}btl"] = builder.environ.get(f"{_OMPI}btl", "")
    for name, value in given.items():
        out = value.startswith("^")
        if _OPENIB not in value.lstrip("^").split(",") or (out and name in builder.of_files):
            continue
        then = "it may be left out" if out else "MPI ends over a transport that it does not have"
        said = f"{name}={value}: {builder.row.title} has no openib, and {then}"
        hint = "" if out else "take it out: UCX carries InfiniBand and RoCE (OMPI_MCA_pml=ucx)"
        builder.warn("usage", said, hint)
