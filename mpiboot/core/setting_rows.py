"""The table of settings row by row, as options, pages and ``resolve`` need it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from mpiboot.core.model import Role
from mpiboot.core.setting_types import Parse, boolean
from mpiboot.core.settings import PREFIX, Section, Settings


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as tables and options need it."""

    name: str
    flag: str
    short: str
    variable: str
    older: tuple[str, ...]
    default: object
    help: str
    roles: tuple[Role, ...]
    section: Section
    kind: str
    parse: Parse

    @property
    def is_flag(self) -> bool:
        """Whether the flag takes no value."""
        return self.parse is boolean


def _rows() -> tuple[Setting, ...]:
    found, section = [], Section.POD
    for item in fields(Settings):
        about = item.metadata
        section = about["begins"] or section
        found.append(
            Setting(
                name=item.name,
                flag="--" + item.name.replace("_", "-"),
                short=about["short"],
                variable=PREFIX + item.name.upper(),
                older=about["older"],
                default=item.default,
                help=about["help"],
                roles=about["roles"],
                section=section,
                kind=about["parse"].kind,
                parse=about["parse"],
            )
        )
    return tuple(found)


ROWS: Final = _rows()
