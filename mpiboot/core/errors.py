"""The one exception that ends mpiboot: a finding, which carries its exit code by its row."""

from __future__ import annotations

from mpiboot.core.checks import BY_REFERENCE, failed
from mpiboot.core.model import Finding


class MpibootError(Exception):
    """Something that ends this run with a clear line.

    ``finding`` is what decides the exit code; ``others`` are findings that belong to the same
    story (the other hosts, for example). ``code`` is set where it isn't the row's own.
    """

    def __init__(
        self, finding: Finding, others: tuple[Finding, ...] = (), code: int | None = None
    ) -> None:
        super().__init__(finding.message)
        self.finding = finding
        self.others = others
        self.code = int(BY_REFERENCE[finding.check].code) if code is None else code


class ShownError(MpibootError):
    """A failed check that the command has printed already: it ends with its code, and no line."""


def error(
    reference: str,
    message: str,
    *,
    host: str = "",
    evidence: tuple[str, ...] = (),
    hint: str | None = None,
) -> MpibootError:
    """Build the exception of a row of ``checks.CHECKS``; to be raised by the caller."""
    return MpibootError(failed(reference, message, host=host, evidence=evidence, hint=hint))
