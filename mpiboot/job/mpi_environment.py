"""What mpirun gets in its environment: constants, forwarded names, nothing unsafe. Pure.

Each function settles one intent for the MPI at hand by the columns of its row in ``dialects``.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping

from mpiboot.checks import failed
from mpiboot.job import forward, masking, placement
from mpiboot.job.dialects import Dialect, parameter
from mpiboot.job.plan_builder import Making, Observed
from mpiboot.model import Finding, Level, Source
from mpiboot.settings import Given, Resolved


def set_constants(making: Making, observed: Observed, *, oversubscribe: Given | None) -> None:
    """Set what this MPI always gets: transports, root, binding, mapping, who the user is.

    ``oversubscribe`` is what asked for more ranks than slots, None where nothing did.
    """
    row = making.row
    for item in row.constants:
        making.variable(item.name, item.value, item.because, Source.DEFAULT)
    if observed.identity.uid == 0:
        for item in row.root:
            making.variable(item.name, item.value, item.because, Source.DETECTED)
    if making.line.bind_to:
        making.decide("binding", making.line.bind_to, Source.FLAG, "given on the mpirun line")
    elif row.bind_var:
        making.variable(
            row.bind_var, "none", "ranks have threads; pods have few cores", Source.DEFAULT
        )
    if oversubscribe and row.oversubscribe_var != row.map_var:
        making.variable(
            row.oversubscribe_var,
            row.oversubscribe_value,
            f"asked for by {oversubscribe}",
            oversubscribe.source,
        )
    if making.line.mapped_by:
        making.decide("mapping", making.line.mapped_by, Source.FLAG, "given on the mpirun line")
    if row.map_var and not making.line.policy:
        policy = placement.default_policy(row, oversubscribe=oversubscribe is not None)
        making.variable(row.map_var, policy, "fill a host before the next", Source.DEFAULT)
    for name, value in (
        ("HOME", observed.identity.home),
        ("USER", observed.identity.user),
        ("LOGNAME", observed.identity.user),
    ):
        if not making.environ.get(name):
            making.set_env[name] = value


def listed(making: Making) -> tuple[str, ...]:
    """List the names in the user's own list of variables, where this MPI has such a list."""
    name = making.row.export_var
    theirs = (
        (making.environ.get(name, ""), making.line.mca.get(parameter(name), "")) if name else ()
    )
    return tuple(item.partition("=")[0] for text in theirs for item in text.split(";") if item)


def choose_forwarded(
    making: Making, observed: Observed, resolved: Resolved, added: Mapping[str, str]
) -> tuple[str, ...]:
    """Choose the variables that ranks get; returns the names that go by ``-x``.

    ``added`` are variables that mpirun's environment will have beside the pod's own.
    """
    row, settings = making.row, resolved.settings
    kept, removed = forward.scrub(observed.environ, observed.platform.managers)
    for name, why in removed:
        making.unset_env.add(name)
        making.decide(name, "(removed)", Source.DETECTED, why)
    empty = [name for name, value in kept.items() if row.never_empty and not value]
    for name in fnmatch.filter(empty, f"{row.never_empty}*"):
        del kept[name]
        making.unset_env.add(name)
        because = f"it is empty, which says nothing to {row.title} and crashes it"
        making.decide(name, "(removed)", Source.DETECTED, because)
    for pattern in row.remove:
        making.unset_env.update(fnmatch.filter(observed.environ, pattern))
    theirs = making.environ.get(row.export_var, "") if row.export_var else ""
    chosen = forward.select(
        {**kept, **added},
        settings.forward,
        settings.no_forward,
        by_itself=row.by_itself,
        given=(*making.line.exports, *listed(making)),
    )
    for item in chosen.withheld:
        if item.asked:
            making.findings.append(
                Finding("usage", Level.WARN, f"{item.name} is not forwarded: {item.because}")
            )
    names = [item.name for item in chosen.names]
    making.forwarded = {item.name for item in chosen.by_itself}
    making.decide(
        "forwarded",
        str(len(names)),
        Source.DEFAULT,
        ", ".join(names) or "none of the known variables is set",
    )
    if names and row.export_var and parameter(row.export_var) in making.line.mca:
        if row.export == "list":
            making.forwarded.update(names)
            return tuple(names)  # the line's own list hides the environment's, but takes -x
        if added.keys() >= set(names):
            return ()
        said = f"--mca {parameter(row.export_var)} on the mpirun line forbids -x in {row.title}"
        hint = "name all variables in that list, or use -x"
        making.findings.append(
            Finding("usage", Level.WARN, f"{said}: nothing else is forwarded", hint=hint)
        )
        return ()
    making.forwarded.update(names)
    # 4.1 refuses -x beside the list, so a user's own list takes the names too.
    if names and (row.export == "list" or theirs):
        entries, flags = _entries(names, {**kept, **added}, row)
        making.set_env[row.export_var] = ";".join([*([theirs] if theirs else []), *entries])
        return flags
    return tuple(names) if row.export == "-x" else ()


def _entries(
    names: Iterable[str], values: Mapping[str, str], row: Dialect
) -> tuple[list[str], tuple[str, ...]]:
    """Write the list's entries; what it can't hold goes by ``-x``.

    Where a name of the list has a value with "=" in it (NCCL's exact form, XLA_FLAGS), Open MPI
    5.0 takes the value for an assignment of its own, and two of them may end mpirun; beside its
    name, or by ``-x``, such a value arrives.
    """
    entries, flags = [], []
    for name in names:
        value = values[name]
        if row.export != "list" or "=" not in value:
            entries.append(name)
        elif ";" in value or masking.is_secret(name):
            flags.append(name)
        else:
            entries.append(f"{name}={value}")
    return entries, tuple(flags)


def refuse_unsafe(making: Making) -> None:
    """Refuse values that this MPI lets the workers' shell evaluate."""
    row = making.row
    if not row.evaluated:
        return
    merged = {**making.environ, **making.set_env}
    values = {
        name: value
        for name, value in merged.items()
        if name.startswith(row.evaluated) and name not in making.unset_env
    }
    for name, value in making.line.mca.items():
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in row.evaluated_flags):
            values[f"--mca {name}"] = value
    excepted = {*row.evaluated_but, *(f"--mca {parameter(name)}" for name in row.evaluated_but)}
    for name in sorted(values.keys() - excepted):
        bad = sorted(set(values[name]) & set('"$\\`\n'))
        if bad:
            making.findings.append(
                failed(
                    "unsafe-value",
                    f"{name} holds {' '.join(map(repr, bad))}: {row.title} hands it to the "
                    "workers' shell unescaped",
                )
            )
