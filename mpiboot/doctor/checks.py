"""A check of doctor is a function with a decorator that has its title and its hint. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Final

from mpiboot.core.checks import CHECKS as OF_JOBS
from mpiboot.core.checks import Check, ExitCode
from mpiboot.core.model import Finding, Level, Role

Judge = Callable[..., Iterable[Finding]]

# Those of jobs and, as their modules are loaded, those of doctor alone.
BY_REFERENCE: Final[dict[str, Check]] = {row.reference: row for row in OF_JOBS}


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """A check: its function judges the parts that its parameters name.

    ``references`` are those of its findings; ``role`` is the one that has it (None: both);
    ``at_build``: it can run in an image's build. Where no broken pod of the tests shows what it
    finds, the page of checks has the docstring's text behind "Looks at".
    """

    references: tuple[str, ...]
    judge: Judge
    role: Role | None = None
    at_build: bool = False

    @property
    def needs(self) -> tuple[str, ...]:
        """Name the parts that the function gets."""
        code = self.judge.__code__
        return tuple(code.co_varnames[: code.co_argcount])

    def __call__(self, *parts: object) -> Iterable[Finding]:
        """Judge the parts."""
        return self.judge(*parts)


def check(
    *references: str,
    title: str = "",
    hint: str = "",
    role: Role | None = None,
    at_build: bool = False,
) -> Callable[[Judge], DoctorCheck]:
    """Make a check of a function; a check that jobs have, too, has its title and hint there.

    Args:
        references: its names in the log and in reports.
        title: what holds when all is well.
        hint: what to do otherwise.
        role: the role that has it; None: launcher and worker.
        at_build: whether it can run in an image's build.
    """
    if title:
        for name in references:
            BY_REFERENCE[name] = Check(name, title, ExitCode.FOUND, hint)
    return lambda judge: DoctorCheck(references, judge, role, at_build)


worker_check: Final = partial(check, role=Role.WORKER)


def of_area(area: ModuleType) -> tuple[DoctorCheck, ...]:
    """List the checks of a module, in its order."""
    return tuple(item for item in vars(area).values() if isinstance(item, DoctorCheck))


def judge_all(
    checks: Iterable[DoctorCheck], parts: Mapping[str, object], unseen: Mapping[str, str]
) -> Iterator[Finding]:
    """Judge by each check; one whose part was not observed is unknown, with the reason."""
    for row in checks:
        missing = [name for name in row.needs if name not in parts]
        if missing:
            why = dict.fromkeys(unseen.get(name, "not observed") for name in missing)
            yield Finding(row.references[0], Level.UNKNOWN, f"not known: {'; '.join(why)}")
        else:
            yield from row(*(parts[name] for name in row.needs))


def ok(reference: str, message: str, host: str = "") -> Finding:
    """Build a finding of a check that holds."""
    return Finding(reference, Level.OK, message, host)


def warned(reference: str, message: str, *evidence: str, hint: str | None = None) -> Finding:
    """Build a warning, with the check's own hint where none is given."""
    return finding(Level.WARN, reference, message, evidence, hint)


def failed(reference: str, message: str, *evidence: str, hint: str | None = None) -> Finding:
    """Build a failing finding, with the check's own hint where none is given."""
    return finding(Level.FAIL, reference, message, evidence, hint)


def finding(
    level: Level,
    reference: str,
    message: str,
    evidence: Iterable[str] = (),
    hint: str | None = None,
    hosts: Sequence[str] = (),
) -> Finding:
    """Build a finding of this pod, of one host or of several.

    A warning or failure without a hint gets the check's own.
    """
    if hint is None:
        hint = BY_REFERENCE[reference].hint if level in (Level.WARN, Level.FAIL) else ""
    host, several = (hosts[0], ()) if len(hosts) == 1 else ("", tuple(hosts))
    return Finding(reference, level, message, host, tuple(evidence), hint, several)
