"""What the plan takes from the launcher's environment to ranks, and why not the rest. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from mpiboot.job import forward
from mpiboot.job.dialect import Dialect, Export
from mpiboot.job.plan import Plan
from mpiboot.settings import Settings

_UNKNOWN: Final = "no rule names it; MPIBOOT_FORWARD={} hands it on"
_TAKEN: Final = "mpiboot takes it out for mpirun; `mpiboot plan` says what for"
_MPIRUNS: Final = "mpiboot sets it for mpirun itself"
_THEIRS: Final = "workers' own pods set it"


@dataclass(frozen=True, slots=True)
class Forwarding:
    """``values`` go to ranks, ``because`` has why; ``stays`` has why the others do not.

    ``per_host`` is what the plan sets on single hosts. All are empty where there is no plan.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    because: Mapping[str, str] = field(default_factory=dict)
    stays: Mapping[str, str] = field(default_factory=dict)
    per_host: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def of_plan(plan: Plan, row: Dialect, settings: Settings, environ: Mapping[str, str]) -> Forwarding:
    """Tell it by a plan for a line without options of its own.

    Args:
        plan: the plan.
        row: how this MPI hands variables on.
        settings: the launcher's.
        environ: the launcher's environment.
    """
    kept = {name: value for name, value in environ.items() if name not in plan.unset_env}
    kept |= plan.set_env
    chosen = forward.select(kept, settings.forward, settings.no_forward, by_itself=row.by_itself)
    entries = (*plan.argv, *plan.set_env.get(row.export_var, "").split(";"))
    exported = {entry.partition("=")[0] for entry in entries}
    names = (item for item in chosen.names if item.name in exported)
    because = {item.name: item.because for item in (*names, *chosen.by_itself)}
    if row.export is Export.ALL:
        because = {name: because.get(name, f"{row.title} hands on all") for name in kept}
    settled = because.keys() & plan.set_env.keys()
    because |= {item.name: item.because for item in plan.decisions if item.name in settled}
    said = {} if row.export is Export.ALL else dict.fromkeys(plan.unset_env, _TAKEN)
    said |= dict.fromkeys(plan.set_env, _MPIRUNS)
    said |= {item.name: item.because for item in plan.decisions if item.value == "(removed)"}
    said |= {item.name: item.because for item in chosen.withheld}
    otherwise = _THEIRS if row.export is Export.ALL else _UNKNOWN
    stays = {
        name: said.get(name) or forward.local_reason(name, value) or otherwise.format(name)
        for name, value in {**environ, **plan.set_env}.items()
        if name not in because
    }
    return Forwarding({name: kept[name] for name in because}, because, stays, plan.per_host)
