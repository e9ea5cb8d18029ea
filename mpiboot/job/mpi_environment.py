"""What mpirun gets in its environment: constants, binding, forwarded names, nothing unsafe. Pure.

Each function settles one intent for the MPI at hand by the columns of its row in ``dialects``. An
unknown parameter is ignored without a word, by Open MPI 4.1 and 5.0 alike: the tables of names of
other versions are by the parameters that `ompi_info` and `prte_info` of 4.1.4 and 5.0.7 list, and a
test compares them with the installed ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Final

from mpiboot.core import masking
from mpiboot.core.checks import failed
from mpiboot.core.facts import Host, PodFacts
from mpiboot.core.model import Level, MpiFamily, Source
from mpiboot.core.settings import ROWS, Given, Settings
from mpiboot.core.wording import first_few
from mpiboot.job import forward
from mpiboot.job.dialects import (
    ALSO_AGENT,
    ALSO_AGENT_ARGS,
    ALSO_DAEMON_LINK,
    ALSO_DEFAULT_SLOTS,
    HOSTFILE_VARS,
    Export,
    parameter,
)
from mpiboot.job.mpirun_options import OptionKind
from mpiboot.job.plan_builder import Observed, PlanBuilder


def decide_binding(builder: PlanBuilder, oversubscribe: Given | None) -> None:
    """Turn binding off where pods share their CPUs and the user does not settle it.

    A value of mpiboot's beside what the user says of mapping, ranking, binding or CPUs ends mpirun
    (4.1: "Prior policy: BYSLOT"), or takes away the binding that was asked for.

    Args:
        builder: the plan.
        oversubscribe: what asked for more ranks than slots, None where nothing did.
    """
    row, line = builder.row, builder.line
    variables = _pinning_variables(builder)
    if line.mapped_by:
        builder.decide("mapping", line.mapped_by, Source.FLAG, "given on the mpirun line")
    if line.bind_to:
        builder.decide("binding", line.bind_to, Source.FLAG, "given on the mpirun line")
    elif line.pinned_by:
        message = f"{', '.join(line.pinned_by)} on the mpirun line"
        builder.decide("binding", "left to mpirun", Source.FLAG, message)
    for name, (value, source, message) in variables.items():
        builder.decide(name, value, source, message)
    if oversubscribe and row.oversubscribes_by_mapping and not _mapped(builder, variables):
        reason = (
            f"asked for by {oversubscribe}: without a mapping beside it {row.title} starts all "
            "ranks on the first host"
        )
        builder.force(row.map_var, row.oversubscribe_value, reason, oversubscribe.source)
    if line.pinned_by or variables or not row.bind_var:
        return
    shared = _why_not_bound(_pods_of_ranks(builder.observed))
    if shared:
        reason = f"ranks are not bound: {shared}"
        builder.variable(row.bind_var, row.bind_value, reason, Source.DETECTED)
    else:
        message = "each pod has CPUs of its own, and a core for each slot"
        builder.decide("binding", "left to mpirun", Source.DETECTED, message)


def _pinning_variables(builder: PlanBuilder) -> Mapping[str, tuple[str, Source, str]]:
    """Find the user's variables and parameters that settle it, with value, source and reason."""
    patterns = builder.row.pinning_vars
    found = {
        name: (value, builder.set_by(name)[0], f"{builder.set_by(name)[1]}, and kept")
        for name, value in builder.environ.items()
        if value and any(fnmatchcase(name, item) for item in patterns)
    }
    # -genv reaches mpirun's proxies, too; what -x sets ranks alone have.
    hydra = builder.row.export is Export.ALL
    for name, value in builder.line.export_values.items() if hydra else ():
        if any(fnmatchcase(name, item) for item in patterns):
            found[name] = (value, Source.FLAG, "given on the mpirun line")
    for name, value in builder.line.mca.items():
        if any(fnmatchcase(name, parameter(item)) for item in patterns):
            found[f"--mca {name}"] = (value, Source.FLAG, "given on the mpirun line")
    return found


def _mapped(builder: PlanBuilder, variables: Mapping[str, object]) -> bool:
    """Whether a mapping is given, beside which the MPI would not take another."""
    line = builder.line
    mapped = bool(line.policy) or OptionKind.PINS_RANKS in line.kinds
    return mapped or any("rmaps" in name for name in variables)


def _pods_of_ranks(observed: Observed) -> dict[Host, PodFacts | None]:
    """Give the pods of ranks, as far as they are known."""
    found = {worker.host: worker.facts for worker in observed.workers}
    return found | dict.fromkeys(observed.local, observed.own)


def _why_not_bound(pods: Mapping[Host, PodFacts | None]) -> str:
    """Return why mpirun's own binding would do harm; empty where each pod has CPUs of its own."""
    known = {host: facts.cpus for host, facts in pods.items() if facts and facts.cpus}
    shared = [host.name for host, cpus in known.items() if not cpus.exclusive]
    if shared:
        return (
            f"other pods of the node may use the CPUs of {first_few(shared)}, too, and mpirun "
            "would bind ranks of several pods to the same ones"
        )
    unknown = [host.name for host in pods if host not in known]
    if unknown or not pods:
        return f"whether {first_few(unknown) or 'a pod'} has CPUs of its own is not known"
    few = [host.name for host, cpus in known.items() if cpus.cores < host.slots]
    return f"{first_few(few)} has fewer cores than slots, where mpirun may refuse" if few else ""


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
# Names of 4.1 and older ones under 5.0, and what to write here: the variable that means the same,
# ``*`` standing for the same in both, or words. The first name or pattern that fits counts.
OLDER: Final = {
    "orte_tag_output": "`--output tag` on the mpirun line",
    "orte_timestamp_output": "`--output timestamp` on the mpirun line",
    "orte_display_alloc": "`--display allocation` on the mpirun line",
    "orte_startup_timeout": "MPIBOOT_LAUNCH_TIMEOUT",
    "orte_abort_timeout": "MPIBOOT_LAUNCH_TIMEOUT for the start, MPIBOOT_GRACE for the end",
    "orte_rsh_agent": f"{_PRTE}plm_ssh_agent",
    **{f"orte_{name}": f"{_PRTE}prte_{name}" for name in KEPT},
    "orte_*": NOTHING,
    "plm_rsh_force_rsh": f"{_PRTE}plm_ssh_force_ssh",
    "plm_rsh_*": f"{_PRTE}plm_ssh_*",
    "oob_tcp_if_exclude": f"{_PRTE}prte_if_exclude",
    "oob_tcp_*": f"{_PRTE}oob_tcp_*",
    "hwloc_base_binding_policy": f"{_PRTE}hwloc_default_binding_policy",
    "hwloc_base_report_bindings": "`--display bind` on the mpirun line",
    "rmaps_base_mapping_policy": f"{_PRTE}rmaps_default_mapping_policy",
    "rmaps_base_ranking_policy": f"{_PRTE}rmaps_default_ranking_policy",
    "rmaps_base_oversubscribe": "MPIBOOT_OVERSUBSCRIBE=true",
    "rmaps_base_display_map": "`--display map` on the mpirun line",
    "routed_radix": f"{_PRTE}rml_base_radix",
    "btl_openib_*": _UCX,
}
# Names of 5.0 under 4.1.
NEWER: Final = {
    **{f"prte_{name}": f"{_OMPI}orte_{name}" for name in KEPT},
    "prte_if_exclude": f"{_OMPI}oob_tcp_if_exclude",
    "plm_ssh_force_ssh": f"{_OMPI}plm_rsh_force_rsh",
    "plm_ssh_*": f"{_OMPI}plm_rsh_*",
    "oob_tcp_*": f"{_OMPI}oob_tcp_*",
    "hwloc_default_binding_policy": f"{_OMPI}hwloc_base_binding_policy",
    "rmaps_default_mapping_policy": f"{_OMPI}rmaps_base_mapping_policy",
    "rmaps_default_ranking_policy": f"{_OMPI}rmaps_base_ranking_policy",
    "rml_base_radix": f"{_OMPI}routed_radix",
    "*": NOTHING,
}
# Of the older names PRRTE reads the others, where they have its prefix.
_RENAMED: Final = {
    name: instead for name, instead in OLDER.items() if name.startswith(("orte_", "plm_rsh_"))
}
# By MPI: names of which variables it ignores, and as which prefix they are.
_TABLES: Final = {
    MpiFamily.OPENMPI4: ((_PRTE, NEWER),),
    MpiFamily.OPENMPI5: ((_OMPI, OLDER), (_PRTE, _RENAMED)),
}
_OPENIB: Final = "openib"


def name_unread_parameters(builder: PlanBuilder) -> None:
    """Warn of the user's parameters that this version ignores, with their new forms."""
    row = builder.row
    found = [f"{name} ({instead})" for name, instead in _of_the_user(builder)]
    if found:
        builder.warn("usage", f"{row.title} ignores {', '.join(found)}")
    if row.family is MpiFamily.OPENMPI5:
        _no_openib(builder)


def unread_parameters(environ: Mapping[str, str], family: MpiFamily) -> Iterator[tuple[str, str]]:
    """Yield each variable that this MPI ignores, with what to write instead."""
    for prefix, table in _TABLES.get(family, ()):
        for name in sorted(environ):
            parameter = name.removeprefix(prefix)
            if parameter == name or name in _TAKEN_OVER or not environ[name]:
                continue
            instead = _instead(environ, parameter, table)
            if instead and instead[0] != name:
                yield name, instead[1]


def _of_the_user(builder: PlanBuilder) -> Iterator[tuple[str, str]]:
    for name, instead in unread_parameters(builder.environ, builder.row.family):
        if builder.set_by(name)[0] not in (Source.PLATFORM, Source.FILE):
            yield name, instead
    for prefix, table in _TABLES.get(builder.row.family, ()):
        # Of its line 5.0 understands the names for its daemons; the rest goes to the ranks.
        for name in builder.line.mca if prefix == _OMPI else ():
            if name.startswith("btl_") and (same := _instead(builder.environ, name, table)):
                yield f"--mca {name}", same[1]


def _instead(
    environ: Mapping[str, str], parameter: str, table: Mapping[str, str]
) -> tuple[str, str] | None:
    """Give the variable that means the same, if any, and what to tell; None where it is set."""
    pattern = next((item for item in table if fnmatchcase(parameter, item)), None)
    if pattern is None:
        return None
    if not table[pattern].startswith((_OMPI, _PRTE)):
        return "", table[pattern]
    variable = table[pattern].replace("*", parameter.removeprefix(pattern.removesuffix("*")))
    return None if environ.get(variable) else (variable, f"write {variable}")


def _no_openib(builder: PlanBuilder) -> None:
    """Warn of a list of transports that names openib, which is gone.

    That a file of the image leaves it out (Debian's does) is nothing to tell.
    """
    given = {"--mca btl": builder.line.mca.get("btl", "")}
    given[f"{_OMPI}btl"] = builder.environ.get(f"{_OMPI}btl", "")
    for name, value in given.items():
        out = value.startswith("^")
        if _OPENIB not in value.lstrip("^").split(",") or (out and name in builder.of_files):
            continue
        then = "it may be left out" if out else "MPI ends over a transport that it does not have"
        message = f"{name}={value}: {builder.row.title} has no openib, and {then}"
        hint = "" if out else "remove it: UCX carries InfiniBand and RoCE (OMPI_MCA_pml=ucx)"
        builder.warn("usage", message, hint)


# The decision that names what ranks don't get.
NOT_FORWARDED: Final = "not-forwarded"


def set_constants(builder: PlanBuilder, *, oversubscribe: Given | None) -> None:
    """Set the variables that this MPI always gets: transports, root, binding, the user.

    ``oversubscribe`` is what asked for more ranks than slots, None where nothing did.
    """
    observed = builder.observed
    row = builder.row
    builder.add(*row.constants)
    if observed.identity.uid == 0:
        builder.add(*row.root)
    _copy_once(builder)
    if oversubscribe and row.oversubscribe_var != row.map_var:
        builder.variable(
            row.oversubscribe_var,
            row.oversubscribe_value,
            f"asked for by {oversubscribe}",
            oversubscribe.source,
        )
    decide_binding(builder, oversubscribe)
    for name, value in (
        ("HOME", observed.identity.home),
        ("USER", observed.identity.user),
        ("LOGNAME", observed.identity.user),
    ):
        if not builder.environ.get(name):
            apart = row.export is Export.ALL and observed.workers
            (builder.agent_env if apart else builder.set_env)[name] = value


def _copy_once(builder: PlanBuilder) -> None:
    """Keep ranks of one host from reading each other's memory where that is refused."""
    item = builder.row.no_single_copy
    pods = _pods_of_ranks(builder.observed)
    found = {
        host.name: pod.memory_refused for host, pod in pods.items() if pod and pod.memory_refused
    }
    if item and found:
        message = "; ".join(dict.fromkeys(found.values()))
        reason = f"process_vm_readv is refused ({message}) on {first_few(found)}: {item.reason}"
        builder.add(replace(item, reason=reason, source=Source.DETECTED))


def offer_debug_files(builder: PlanBuilder) -> None:
    """Suggest a file for NCCL's debug output, which every rank writes to the job's output."""
    values = {**builder.environ, **builder.line.export_values}
    level = values.get("NCCL_DEBUG", "")
    if level.upper() in ("INFO", "TRACE") and not values.get("NCCL_DEBUG_FILE"):
        reason = (
            "every rank writes to the job's output; NCCL_DEBUG_FILE=/tmp/nccl.%h.%p would give "
            "each a file on its host"
        )
        builder.decide("NCCL_DEBUG", level, Source.ENVIRONMENT, reason)


def listed(builder: PlanBuilder) -> tuple[str, ...]:
    """List the names in the user's own list of variables, where this MPI has such a list."""
    name = builder.row.export_var
    theirs = (
        (builder.environ.get(name, ""), builder.line.mca.get(parameter(name), "")) if name else ()
    )
    return tuple(item.partition("=")[0] for text in theirs for item in text.split(";") if item)


def _stays(unknown: tuple[str, ...], observed: Observed) -> tuple[str, ...]:
    """Leave out what ranks have from their own pods, and what a platform sets.

    A worker tells the names that its own pod sets, most of which are the image's; one without
    mpiboot tells none, and its ranks begin with none.
    """
    theirs = [set(item.facts.environment) if item.facts else set() for item in observed.workers]
    known = set.intersection(*theirs) if theirs else set(observed.environ)  # all ranks run here
    known |= {older for setting in ROWS for older in setting.older}
    platform, environ = observed.platform, observed.environ
    names = (name for name in unknown if name not in known)
    return tuple(name for name in names if not platform.has_set(name, environ.get(name, "")))


def choose_forwarded(builder: PlanBuilder, added: Mapping[str, str]) -> tuple[str, ...]:
    """Choose the variables that ranks get; returns the names that go by ``-x``.

    ``added`` are variables that mpirun's environment will have beside the pod's own.
    """
    observed = builder.observed
    row, settings = builder.row, builder.settings
    kept, removed = forward.scrub(observed.environ, observed.platform.managers)
    for name, why in removed:
        builder.remove(name, why)
    empty = [name for name, value in kept.items() if not value]
    for name in (name for name in empty if row.never_empty and name.startswith(row.never_empty)):
        del kept[name]
        builder.remove(name, f"it is empty, which crashes {row.title}")
    if row.export is Export.ALL and observed.workers:
        _take_out(builder, kept, settings)
    theirs = builder.environ.get(row.export_var, "") if row.export_var else ""
    given = (*builder.line.exports, *listed(builder))
    left = _search_paths(builder, settings.forward, given)
    chosen = forward.select(
        {name: value for name, value in {**kept, **added}.items() if name not in left},
        settings.forward,
        settings.no_forward,
        by_itself=row.by_itself,
        given=given,
    )
    for name, why in chosen.withheld.items():
        builder.stays.setdefault(name, why)
        if name in settings.forward:
            builder.warn("usage", f"{name} is not forwarded: {why}")
    stays = _stays(chosen.unknown, observed)
    if stays:
        reason = "ranks don't get these; MPIBOOT_FORWARD=NAME,... or `-x NAME` hands them on"
        builder.decide(NOT_FORWARDED, " ".join(stays), Source.DETECTED, reason)
    reasons, names = chosen.names, list(chosen.names)
    # What mpiboot sets for this MPI goes the same way.
    own = forward.select(builder.set_env, by_itself=row.by_itself)
    builder.forwarded = {**chosen.by_itself, **own.by_itself}
    builder.forwarded |= {name: "your mpirun line or list has it" for name in given if name in kept}
    if row.export is Export.ALL:
        _hand_on_all(builder, kept, given)
    else:
        message = ", ".join(names) or "none of the known variables is set"
        builder.decide("forwarded", str(len(names)), Source.DEFAULT, message)
    if names and row.export_var and parameter(row.export_var) in builder.line.mca:
        if row.export is Export.VARIABLE:
            builder.forwarded |= reasons
            return tuple(names)  # the line's own list hides the environment's, but takes -x
        if added.keys() >= set(names):
            return ()
        message = f"--mca {parameter(row.export_var)} on the mpirun line forbids -x in {row.title}"
        hint = "name all variables in that list, or use -x"
        builder.warn("usage", f"{message}: nothing else is forwarded", hint)
        return ()
    builder.forwarded |= reasons
    # 4.1 refuses -x beside the list, so a user's own list takes the names too.
    if names and (row.export is Export.VARIABLE or theirs):
        return _by_list(builder, theirs, names, {**kept, **added})
    return tuple(names) if row.export is Export.OPTION else ()


def _search_paths(builder: PlanBuilder, more: Collection[str], given: Collection[str]) -> set[str]:
    """Find search paths that are not forwarded, as workers of another image have their own.

    Where a script has put folders in front of what the workers have, too, that is for the job.
    """
    stays = set()
    for name in forward.SEARCH_PATHS:
        own = builder.environ.get(name, "")
        theirs = {
            worker.host.name: dict(worker.facts.search_paths).get(name, "")
            for worker in builder.observed.workers
            if worker.facts
        }
        others = [host for host, value in theirs.items() if not forward.extends(own, value)]
        if not own or not others:
            continue
        reason = f"{first_few(others)} has another one of its own"
        if name in given:
            builder.decide(name, "the launcher's", Source.FLAG, f"{reason}; your line names it")
        elif any(forward.matches(name, item) for item in more):
            message = f"{reason}; MPIBOOT_FORWARD names it"
            builder.decide(name, "the launcher's", Source.ENVIRONMENT, message)
        elif builder.row.export is Export.ALL:
            message = f"{reason}, and {builder.row.title} hands on all of mpirun's environment"
            builder.decide(name, "the launcher's", Source.DETECTED, message)
        else:
            stays.add(name)
            builder.stays[name] = reason
            message = f"{reason}; `-x {name}` or MPIBOOT_FORWARD={name} hands on the launcher's"
            builder.decide(name, "the workers' own", Source.DETECTED, message)
    return stays


def _hand_on_all(builder: PlanBuilder, kept: Mapping[str, str], given: Collection[str]) -> None:
    """Report what ranks get from an MPI that forwards everything, or only what the line names.

    With such a line the agents set what the data network needs: ``data.deliver``.
    """
    row, only = builder.row, builder.line.exports_only
    every = {**kept, **builder.set_env}.keys() - builder.unset_env
    if not only:
        others = every - builder.forwarded.keys()
        builder.forwarded |= dict.fromkeys(others, f"{row.title} hands on all")
        message = f"{row.title} hands on what mpirun has in its environment"
        builder.decide("forwarded", "all", Source.DEFAULT, message)
        return
    lost = sorted(
        name
        for name in builder.forwarded.keys() & builder.set_env.keys() - set(given)
        if "HYDRA_" not in name  # those are for mpirun itself
    )
    if lost:
        message = (
            f"with {only} on the mpirun line ranks don't get what mpiboot sets: {' '.join(lost)}"
        )
        builder.warn("usage", message, "remove it, or name these there as well")
    builder.forwarded = {name: why for name, why in builder.forwarded.items() if name in given}
    others = every - builder.forwarded.keys()
    builder.stays |= dict.fromkeys(others, f"{only} on the mpirun line does not name it")
    message = f"{only} on the mpirun line: ranks get nothing else of mpirun's environment"
    builder.decide("forwarded", " ".join(dict.fromkeys(given)) or "none", Source.FLAG, message)


def _take_out(builder: PlanBuilder, kept: Mapping[str, str], settings: Settings) -> None:
    """Take out of mpirun's environment what would overwrite that of the ranks' own pods.

    The launch agents, which are of this pod, get it back.
    """
    theirs = {
        name for item in builder.observed.workers if item.facts for name in item.facts.environment
    }
    found = forward.kept_from_ranks(
        kept,
        settings.forward,
        settings.no_forward,
        theirs=theirs,
        given=builder.line.exports,
    )
    builder.unset_env.update(found)
    builder.stays |= found
    builder.agent_env |= {name: kept[name] for name in found}
    if found:
        reason = (
            f"{builder.row.title} would overwrite what the ranks' own pods have; "
            "MPIBOOT_FORWARD=NAME,... hands the launcher's on"
        )
        builder.decide("kept-from-ranks", " ".join(found), Source.DETECTED, reason)


def _by_list(
    builder: PlanBuilder, theirs: str, names: Iterable[str], values: Mapping[str, str]
) -> tuple[str, ...]:
    """Write the list's entries behind the user's; returns what it can't hold, and goes by ``-x``.

    Where a name of the list has a value with "=" in it (NCCL's exact form, XLA_FLAGS), Open MPI
    takes the value for an assignment of its own, and two of them may end 5.0's mpirun; beside its
    name, or by ``-x``, such a value arrives.
    """
    row = builder.row
    entries, flags = [theirs] if theirs else [], []
    for name in names:
        value = values[name]
        if "=" not in value:
            entries.append(name)
        elif ";" in value or masking.is_secret(name):
            flags.append(name)
        else:
            entries.append(f"{name}={value}")
    builder.set_env[row.export_var] = ";".join(entries)
    if flags and row.export is not Export.VARIABLE:
        message = f"{' '.join(flags)}: not forwarded, {row.export_var} can't hold such a value"
        builder.warn("usage", message, "use -x for all variables instead of that list")
        return ()
    return tuple(flags)


def name_unsafe(builder: PlanBuilder) -> None:
    """Warn of values that the workers' shell would evaluate."""
    row = builder.row
    if not row.evaluated:
        return
    merged = {**builder.environ, **builder.set_env}
    values = {
        name: value
        for name, value in merged.items()
        if name.startswith(row.evaluated)
        and name not in builder.unset_env
        and (name in builder.set_env or name not in builder.of_files)
    }
    for name, value in builder.line.mca.items():
        if any(fnmatchcase(name, pattern) for pattern in row.evaluated_flags):
            values[f"--mca {name}"] = value
    excepted = {row.export_var, f"--mca {parameter(row.export_var)}"}
    for name in sorted(values.keys() - excepted):
        bad = sorted(set(values[name]) & set('"$\\`\n'))
        if bad:
            message = (
                f"{name} holds {' '.join(map(repr, bad))}: {row.title} hands it to the "
                "workers' shell unescaped"
            )
            builder.findings.append(failed("unsafe-value", message, level=Level.WARN))
