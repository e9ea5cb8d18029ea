"""A row of the table of checks: what it looks at, what its outcomes mean, its judge. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from mpiboot.core.checks import BY_REFERENCE
from mpiboot.core.exit_codes import Check
from mpiboot.core.model import Finding, Level

Judge = Callable[..., Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class PodCheck:
    """A check of one pod.

    ``needs`` names the parts of the report that ``judge`` gets, in its order; ``outcomes`` say
    what each level means; ``at_build`` tells whether an image can be asked before it is a pod.
    """

    reference: str
    looks_at: str
    needs: tuple[str, ...]
    judge: Judge
    outcomes: Mapping[Level, str] = field(default_factory=dict)
    at_build: bool = False

    @property
    def row(self) -> Check:
        """The row of the table of references."""
        return BY_REFERENCE[self.reference]
