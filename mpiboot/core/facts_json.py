"""A pod's facts as JSON: how they travel from worker to launcher, whose mpiboot may be another.

Reads what it knows and overlooks the rest; a broken text is no facts, never an exception.
"""

from __future__ import annotations

import functools
import json
import types
import typing
from dataclasses import MISSING, asdict, fields, is_dataclass
from enum import Enum
from typing import Final

from mpiboot.core.model import Json, PodFacts

# Raised when a field changes its meaning; a new field with a default needs no new version.
FACTS_VERSION: Final = 2


def to_json(facts: PodFacts) -> str:
    """Write facts as one line of JSON."""
    return json.dumps({"version": FACTS_VERSION, **asdict(facts)}) + "\n"


@functools.cache
def _kinds(kind: type) -> dict[str, object]:
    return dict(typing.get_type_hints(kind))


def _record(kind: type, value: Json) -> object:
    if not isinstance(value, dict):
        raise TypeError(f"{kind.__name__} is not an object")
    kinds = _kinds(kind)
    given = {}
    for item in fields(kind):
        if item.name in value:
            given[item.name] = _read(kinds[item.name], value[item.name])
        elif item.default is MISSING and item.default_factory is MISSING:
            raise TypeError(f"{kind.__name__} has no {item.name}")
    made: object = kind(**given)
    return made


def _read(kind: object, value: Json) -> object:
    arguments = typing.get_args(kind)
    origin = typing.get_origin(kind)
    if origin is tuple:
        if not isinstance(value, list):
            raise TypeError("not a list")
        return tuple(_read(arguments[0], item) for item in value)
    if origin in (types.UnionType, typing.Union):
        absent = value is None and type(None) in arguments
        return None if absent else _read(arguments[0], value)
    if isinstance(kind, type) and is_dataclass(kind):
        return _record(kind, value)
    if kind is float and isinstance(value, int):
        return float(value)
    if isinstance(value, str) and isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    # True is an int to Python, and would be one bit of a mask or a port here.
    if not isinstance(kind, type) or type(value) is not kind:
        raise TypeError(f"{value!r} is not {kind}")
    return value


def from_json(text: str) -> PodFacts | None:
    """Read facts; None where the text is broken or of a version that isn't understood."""
    try:
        value = json.loads(text)
        if not isinstance(value, dict) or value.get("version") != FACTS_VERSION:
            return None
        found = _record(PodFacts, value)
    except (ValueError, TypeError, RecursionError):
        return None
    return found if isinstance(found, PodFacts) else None
