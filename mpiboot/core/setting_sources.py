"""Where each setting's value comes from: a flag, a variable, an older name, or the default.

``resolve`` is pure: it takes the flags given and the environment as mappings and tells where each
value came from. Nothing here reads the world.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mpiboot.core.errors import error
from mpiboot.core.model import Finding, Level, Source
from mpiboot.core.setting_rows import ROWS
from mpiboot.core.setting_types import is_key, of_service
from mpiboot.core.settings import PREFIX, Settings

# What mpiboot hands from one of its own processes to the next; not for users, so not settings.
INTERNAL: Final = (
    "MPIBOOT_SESSION",
    "MPIBOOT_WORKER_DIR",
    "MPIBOOT_LAUNCH_DIR",
    "MPIBOOT_JOB_MARK",
    "MPIBOOT_HELD",
    "MPIBOOT_KEEP_KEY",
    "MPIBOOT_NOTICE",
    "MPIBOOT_ATTEMPT",
)


@dataclass(frozen=True, slots=True)
class Given:
    """Where one value came from: ``name`` is the flag or variable, empty for a default."""

    source: Source
    name: str = ""

    def __str__(self) -> str:
        return self.name or self.source.value


@dataclass(frozen=True, slots=True)
class Resolved:
    """The settings of this run, where each came from, and what is odd about them.

    ``flags`` are the texts that came from the command line, by setting.
    """

    settings: Settings
    given: Mapping[str, Given]
    warnings: tuple[Finding, ...]
    flags: Mapping[str, str] = field(default_factory=dict)


def _warn(said: str, hint: str = "") -> Finding:
    return Finding("usage", Level.WARN, said, hint=hint)


def _unknown(environ: Mapping[str, str]) -> tuple[Finding, ...]:
    known = {item.variable[len(PREFIX) :] for item in ROWS}
    found = []
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name[len(PREFIX) :] in known or name in INTERNAL:
            continue
        if of_service(name, environ[name]):
            continue
        import difflib  # noqa: PLC0415 - for a mistake alone

        # Without the prefix, which would make everything look alike.
        near = difflib.get_close_matches(name[len(PREFIX) :], known, n=1, cutoff=0.6)
        found.append(
            _warn(
                f"{name} is not a setting of mpiboot and is ignored",
                f"did you mean {PREFIX}{near[0]}?" if near else "see `mpiboot settings`",
            )
        )
    return tuple(found)


def _readable(text: str) -> str:
    """Show a value that a message is about, unless nobody may see it."""
    return "(hidden)" if is_key(text) else text


def resolve(flags: Mapping[str, str], environ: Mapping[str, str]) -> Resolved:
    """Settle every setting: flag, then ``MPIBOOT_`` variable, then older names, then default.

    Args:
        flags: setting name -> text, only those given on the command line.
        environ: the process environment. An empty value counts as not given.

    Raises:
        MpibootError: ``usage``; a value can't be read. The line names the flag or variable,
            the value (never a key's) and what was expected.
    """
    values: dict[str, Any] = {}
    given: dict[str, Given] = {}
    warnings: list[Finding] = []
    for item in ROWS:
        candidates: list[tuple[Given, str]] = []
        if item.name in flags:
            candidates.append((Given(Source.FLAG, item.flag), flags[item.name]))
        candidates.extend(
            (Given(Source.ENVIRONMENT, name), environ[name])
            for name in (item.variable, *item.older)
            if environ.get(name) and not of_service(name, environ[name])
        )
        if not candidates:
            given[item.name] = Given(Source.DEFAULT)
            continue
        chosen, text = candidates[0]
        try:
            values[item.name] = item.parse(text)
        except ValueError as wrong:
            readable = _readable(text)
            shown = repr(text) if readable == text else readable
            raise error("usage", f"{chosen} is {shown}: expected {wrong}") from None
        given[item.name] = chosen
        for other, other_text in candidates[1:]:
            if other_text != text:
                said = f"{other}={_readable(other_text)} is not used"
                warnings.append(_warn(f"{said}: {chosen}={_readable(text)} comes first"))
    odd = (*warnings, *_unknown(environ))
    return Resolved(Settings(**values), given, odd, dict(flags))
