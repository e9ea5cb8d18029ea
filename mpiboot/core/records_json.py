"""Records as JSON: a pod's facts on their way to the launcher, and what one process hands another.

Facts may come from another mpiboot: what isn't known is overlooked there, and a broken text is no
facts, never an exception.
"""

from __future__ import annotations

import functools
import json
import types
import typing
from collections.abc import Hashable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any, Final

if typing.TYPE_CHECKING:
    from mpiboot.core.facts import PodFacts
    from mpiboot.core.model import Json

# Raised when a field changes its meaning; a new field with a default needs no new version.
FACTS_VERSION: Final = 2

T = typing.TypeVar("T")


@functools.cache
def _fields(kind: Any) -> dict[str, tuple[object, bool]]:  # noqa: ANN401 - a dataclass
    """Name a record's fields, each with its type and whether it must be given."""
    hints = typing.get_type_hints(kind)
    return {
        item.name: (hints[item.name], item.default is item.default_factory is MISSING)
        for item in fields(kind)
    }


def read_record(kind: type[T], value: Json) -> T:
    """Make a record of what ``write_records`` made of one; what it doesn't have is overlooked.

    Args:
        kind: the record's class; its fields may be records, tuples, mappings and enumerations.
        value: the JSON value.

    Raises:
        TypeError: a field is missing, or of another type.
        ValueError: an enumeration has no such member.
    """
    if not isinstance(value, dict):
        raise TypeError(f"{kind.__name__} is not an object")
    known, given = _fields(kind), {}  # type: ignore[arg-type] # a class is hashable
    for name, (form, required) in known.items():
        if name in value:
            given[name] = _read(form, value[name])
        elif required:
            raise TypeError(f"{kind.__name__} has no {name}")
    return kind(**given)


@functools.cache
def _form(kind: Hashable) -> tuple[object, tuple[Any, ...]]:
    return typing.get_origin(kind), typing.get_args(kind)


def _read(kind: object, value: Json) -> object:
    if kind is float and type(value) is int:
        value = float(value)
    # True is an int to Python, and would be one bit of a mask or a port here.
    if type(value) is kind:
        return value
    origin, arguments = _form(kind)
    if origin is tuple:
        if not isinstance(value, list):
            raise TypeError("not a list")
        return tuple(_read(arguments[0], item) for item in value)
    if origin is Mapping:
        if not isinstance(value, dict):
            raise TypeError("not an object")
        return {name: _read(arguments[1], item) for name, item in value.items()}
    if origin in (types.UnionType, typing.Union):
        absent = value is None and type(None) in arguments
        return None if absent else _read(arguments[0], value)
    if isinstance(kind, type) and is_dataclass(kind):
        return read_record(kind, value)
    if isinstance(value, str) and isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    raise TypeError(f"{value!r} is not {kind}")


def values(record: Any) -> dict[str, Any]:  # noqa: ANN401 - any dataclass
    """Name a record's values without copying what they hold, as ``asdict`` would."""
    return {item.name: getattr(record, item.name) for item in fields(record)}


def write_records(value: object) -> str:
    """Write what has records in it as JSON."""
    return json.dumps(value, default=values)


def facts_to_json(facts: PodFacts) -> str:
    """Write facts as one line of JSON."""
    return write_records({"version": FACTS_VERSION, **values(facts)}) + "\n"


def facts_from_json(text: str) -> PodFacts | None:
    """Read facts; None where the text is broken or of a version that isn't understood."""
    from mpiboot.core.facts import PodFacts  # noqa: PLC0415 - other records need none

    try:
        value: Any = json.loads(text)
        if not isinstance(value, dict) or value.get("version") != FACTS_VERSION:
            return None
        return read_record(PodFacts, value)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None
