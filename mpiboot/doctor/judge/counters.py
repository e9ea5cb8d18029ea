"""Counters of RDMA ports: what grows while doctor looks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from mpiboot.core.model import Finding
from mpiboot.core.wording import counted, lasting
from mpiboot.doctor.judge.image import ok, warned
from mpiboot.doctor.report import CountersPart

# A network with ECN sends these under load: how it slows senders down, and no fault.
_CONGESTION: Final = frozenset({"np_cnp_sent", "np_ecn_marked_roce_packets", "rp_cnp_handled"})


def counters(seen: CountersPart) -> Iterable[Finding]:
    """Warn of errors that are counted now; those of the past are told with their sums."""
    if not seen.sums:
        return
    now = _listed({port: _errors(values) for port, values in seen.grown.items()})
    before = _listed(seen.sums)
    since = ("since the driver's start: " + "; ".join(before),) if before else ()
    if now:
        yield warned(
            "rdma-counters", f"within {lasting(seen.seconds)} grew {'; '.join(now)}", *since
        )
    else:
        said = f"no error is counted now on {counted(len(seen.sums), 'RDMA port')}"
        yield ok("rdma-counters", "; ".join((said, *since)))


def _errors(values: Mapping[str, int]) -> dict[str, int]:
    return {name: value for name, value in values.items() if name not in _CONGESTION}


def _listed(ports: Mapping[str, Mapping[str, int]]) -> list[str]:
    return [
        f"{port} " + ", ".join(f"{name} {value}" for name, value in values.items() if value > 0)
        for port, values in ports.items()
        if any(value > 0 for value in values.values())
    ]
