from __future__ import annotations

import copy
import dataclasses
import json
from typing import Any, ClassVar

import pytest

from mpiboot.core import dataclass as own


def declare(maker: Any) -> list[Any]:  # noqa: ANN401 - this module's functions, or dataclasses'
    """The same classes, once by the standard library."""

    @maker.dataclass(frozen=True, slots=True)
    class Nothing:
        pass

    @maker.dataclass(frozen=True, slots=True)
    class Point:
        KIND: ClassVar[str] = "point"

        x: int
        y: int = 0
        more: dict[str, int] = maker.field(default_factory=dict, compare=False)

        @property
        def both(self) -> tuple[int, int]:
            return self.x, self.y

    @maker.dataclass(eq=False)
    class Counter:
        name: str
        seen: list[int] = maker.field(default_factory=list)
        first: Any = None

        def __post_init__(self) -> None:
            self.total = sum(self.seen)

    return [Nothing, Point, Counter]


KINDS = pytest.mark.parametrize("kinds", [declare(own), declare(dataclasses)], ids=["own", "std"])


@KINDS
def test_frozen_ones_are_equal_by_what_they_hold(kinds: list[Any]) -> None:
    nothing, point, _ = kinds
    assert nothing() == nothing() != point(1)
    assert point(1, more={"a": 1}) == point(x=1, y=0) != point(2)
    assert hash(point(1)) == hash(point(1, more={"a": 1}))
    assert repr(point(1, 2)).endswith(".Point(x=1, y=2, more={})")
    assert (point(1).both, point.KIND) == ((1, 0), "point")
    assert copy.deepcopy(point(1, more={"a": 1})).more == {"a": 1}


@KINDS
def test_frozen_ones_do_not_change(kinds: list[Any]) -> None:
    one = kinds[1](1)
    with pytest.raises(AttributeError):
        one.x = 2
    assert not hasattr(one, "__dict__")


@KINDS
def test_others_change_and_are_equal_to_themselves_alone(kinds: list[Any]) -> None:
    counter = kinds[2]
    one, other = counter("a", [1, 2]), counter("a")
    assert (one.total, other.seen, other.first) == (3, [], None)
    assert one == one != counter("a", [1, 2])  # noqa: PLR0124 - how it compares
    other.seen.append(1)
    other.name = "b"
    assert (counter("a").seen, other.name, len({one, other})) == ([], "b", 2)


@KINDS
@pytest.mark.parametrize(
    ("given", "named", "wrong"),
    [
        ((), {}, "missing 1 required positional argument: 'x'"),
        ((1,), {"x": 1}, "got multiple values for argument 'x'"),
        ((1,), {"z": 1}, "got an unexpected keyword argument 'z'"),
    ],
)
def test_what_does_not_fit_is_said(
    kinds: list[Any], given: tuple[int, ...], named: dict[str, int], wrong: str
) -> None:
    for _ in range(2):  # the first one compiles
        with pytest.raises(TypeError, match=wrong):
            kinds[1](*given, **named)


def test_one_that_inherits_is_refused_as_its_bases_would_be_lost() -> None:
    with pytest.raises(TypeError, match="Derived inherits"):

        @own.dataclass(frozen=True, slots=True)
        class Derived(declare(own)[1]):  # type: ignore[misc]
            z: int = 0


def test_the_standard_librarys_functions_know_them() -> None:
    nothing, point, counter = declare(own)
    one = point(1, 2, {"a": 1})
    assert dataclasses.is_dataclass(nothing)
    assert dataclasses.asdict(counter("a", [1], one)) == {
        "name": "a",
        "seen": [1],
        "first": {"x": 1, "y": 2, "more": {"a": 1}},
    }
    assert dataclasses.replace(one, x=3) == own.replace(one, x=3) == point(3, 2)


def test_json_has_their_values() -> None:
    _, point, counter = declare(own)
    text = json.dumps(counter("a", [1], (point(1),)), default=own.values)
    assert json.loads(text) == {"name": "a", "seen": [1], "first": [{"x": 1, "y": 0, "more": {}}]}
    with pytest.raises(AttributeError, match="frozenset"):
        json.dumps(point(frozenset()), default=own.values)


def test_fields_tell_what_has_to_be_given() -> None:
    _, point, _ = declare(own)
    needed = [item.default is item.default_factory is own.MISSING for item in own.fields(point)]
    assert needed == [True, False, False]
    assert (own.is_dataclass(point), own.is_dataclass(dict)) == (True, False)
