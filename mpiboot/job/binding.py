"""Ranks on CPUs: left to mpirun, but for the one default that would do harm in pods. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from mpiboot.core.model import Host, PodFacts, Source
from mpiboot.core.settings import Given
from mpiboot.core.wording import first_few
from mpiboot.job.dialect import Export, parameter
from mpiboot.job.mpirun_options import OptionKind
from mpiboot.job.plan_builder import Observed, PlanBuilder


def decide(builder: PlanBuilder, observed: Observed, oversubscribe: Given | None) -> None:
    """Set no binding only where nobody settles it and pods share their CPUs.

    A value of mpiboot's beside what the user says of mapping, ranking, binding or CPUs ends mpirun
    (4.1: "Prior policy: BYSLOT"), or takes away the binding that was asked for.

    Args:
        builder: the plan.
        observed: what is known of the pods.
        oversubscribe: what asked for more ranks than slots, None where nothing did.
    """
    row, line = builder.row, builder.line
    variables = _variables(builder)
    if line.mapped_by:
        builder.decide("mapping", line.mapped_by, Source.FLAG, "given on the mpirun line")
    if line.bind_to:
        builder.decide("binding", line.bind_to, Source.FLAG, "given on the mpirun line")
    elif line.pinned_by:
        said = f"{', '.join(line.pinned_by)} on the mpirun line"
        builder.decide("binding", "left to mpirun", Source.FLAG, said)
    for name, (value, source, said) in variables.items():
        builder.decide(name, value, source, said)
    if oversubscribe and row.oversubscribes_by_mapping and not _mapped(builder, variables):
        because = (
            f"asked for by {oversubscribe}: without a mapping beside it {row.title} starts all "
            "ranks on the first host"
        )
        builder.force(row.map_var, row.oversubscribe_value, because, oversubscribe.source)
    if line.pinned_by or variables or not row.bind_var:
        return
    shared = _shared(_pods(observed))
    if shared:
        because = f"ranks are not bound: {shared}"
        builder.variable(row.bind_var, row.bind_value, because, Source.DETECTED)
    else:
        said = "each pod has CPUs of its own, and a core for each slot"
        builder.decide("binding", "left to mpirun", Source.DETECTED, said)


def _variables(builder: PlanBuilder) -> Mapping[str, tuple[str, Source, str]]:
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


def _pods(observed: Observed) -> dict[Host, PodFacts | None]:
    """Give the pods of ranks, as far as they are known."""
    found = {worker.host: worker.facts for worker in observed.workers}
    return found | dict.fromkeys(observed.local, observed.own)


def _shared(pods: Mapping[Host, PodFacts | None]) -> str:
    """Say why mpirun's own binding would do harm; empty where each pod has CPUs of its own."""
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
