"""What the plan takes from the launcher's environment to ranks, and why not the rest. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mpiboot.job.forward import local_reason
from mpiboot.job.plan import Plan


@dataclass(frozen=True, slots=True)
class Forwarding:
    """``values`` go to ranks; ``because`` has why these do, and why the launcher's others do not.

    ``per_host`` is what the plan sets on single hosts. All are empty where there is no plan.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    because: Mapping[str, str] = field(default_factory=dict)
    per_host: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def of_plan(plan: Plan, environ: Mapping[str, str]) -> Forwarding:
    """Tell it by a plan, and the launcher's environment."""
    has = plan.environment(environ)
    settled = {item.name: item.because for item in plan.decisions if item.name in plan.set_env}
    goes = {name: settled.get(name, why) for name, why in plan.forwarded.items() if name in has}
    taken = "mpiboot takes it out for mpirun; `mpiboot plan` says what for"
    stays = dict.fromkeys(plan.unset_env, taken)
    stays |= {**dict.fromkeys(plan.set_env, "mpiboot sets it for mpirun itself"), **plan.stays}
    unknown = "no rule names it; MPIBOOT_FORWARD={} hands it on"
    stays |= {
        name: local_reason(name, value) or unknown.format(name)
        for name, value in environ.items()
        if name not in stays
    }
    return Forwarding({name: has[name] for name in goes}, {**stays, **goes}, plan.per_host)
