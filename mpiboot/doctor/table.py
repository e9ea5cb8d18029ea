"""The table of checks of one pod, and how a report is judged by it.

A row shares title, hint and roles with its row of ``checks.CHECKS``. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from mpiboot.core.model import Finding, Level, Role
from mpiboot.doctor.judge import hardware, pod
from mpiboot.doctor.report import PodReport
from mpiboot.doctor.rows import gpus, image, network, variables
from mpiboot.doctor.rows import pod as pod_rows
from mpiboot.doctor.rows.pod_check import Judge, PodCheck

TABLE: Final = (*image.ROWS, *pod_rows.ROWS, *network.ROWS, *variables.ROWS, *gpus.ROWS)


def chosen(
    role: Role, only: Collection[str] = (), *, at_build: bool = False
) -> tuple[PodCheck, ...]:
    """Give the rows that count in a pod of this role; with ``only`` those of these references.

    Where nothing tells the role, the pod may become either.
    """
    return tuple(
        row
        for row in TABLE
        if (row.at_build or not at_build)
        and (not only or row.reference in only)
        and (role is Role.NONE or role in row.row.roles)
        and not (role is Role.LAUNCHER and row.judge in _OF_ALL_PODS)
    )


# A launcher has the plan's findings of all pods for these, its own among them.
_OF_ALL_PODS: Final = (hardware.data_network, hardware.gpus, pod.mesh)


def judge(report: PodReport, rows: Iterable[PodCheck]) -> Iterator[Finding]:
    """Judge each row once; a row whose part is missing is unknown, with the reason."""
    asked = list(rows)
    references = {row.reference for row in asked}
    # Rows that share a judge are judged together: it tells of each by its reference.
    first: dict[Judge, PodCheck] = {}
    for row in asked:
        first.setdefault(row.judge, row)
    for row in first.values():
        parts = {name: getattr(report, name) for name in row.needs}
        missing = [name for name, value in parts.items() if value is None]
        if missing:
            why = "; ".join(
                dict.fromkeys(report.unseen.get(name, "not looked at") for name in missing)
            )
            yield Finding(row.reference, Level.UNKNOWN, f"not known: {why}")
            continue
        yield from (item for item in row.judge(*parts.values()) if item.check in references)
