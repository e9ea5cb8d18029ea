"""A check of doctor is a function with a decorator that names its rows of the table. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Final

from mpiboot.core.checks import failed
from mpiboot.core.model import Finding, Level, Role

Judge = Callable[..., Iterable[Finding]]


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
    *references: str, role: Role | None = None, at_build: bool = False
) -> Callable[[Judge], DoctorCheck]:
    """Make a check of a function; its references are rows of ``core.checks``."""
    return lambda judge: DoctorCheck(references, judge, role, at_build)


worker_check: Final = partial(check, role=Role.WORKER)
warned: Final = partial(failed, level=Level.WARN)


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
