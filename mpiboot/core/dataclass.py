"""The part of ``dataclasses`` that mpiboot uses, for processes that have to start at once.

The standard library's compiles up to seven methods of each class that is imported, and loads
``inspect`` for that: half of what a worker took to load its own modules. Here ``__init__`` is
compiled when the first instance is made, and all classes share their other methods. To the standard
library's functions, and to type checkers, such a class is one of theirs.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

__all__ = ["MISSING", "dataclass", "field", "fields", "is_dataclass", "replace", "values"]
T = TypeVar("T")
_MISSING: Final = object()


class _Field(NamedTuple):
    default: Any = _MISSING
    default_factory: Any = _MISSING
    compare: bool = True
    metadata: Any = None
    name: str = ""


def _compile_init(kind: type[_Changing]) -> Any:  # noqa: ANN401 - takes the class's fields
    """Compile ``__init__``, to which ``_NAME`` is a field's default, or what makes that."""
    words, lines, known = ["self"], ["pass"], {"_setattr": object.__setattr__}
    form = "_setattr(self, '{0}', {0})" if issubclass(kind, _Frozen) else "self.{0} = {0}"
    for item in kind.__fields__:
        name, made = item.name, item.default is _MISSING
        known[f"_{name}"] = given = item.default_factory if made else item.default
        words.append(name if given is _MISSING else f"{name}=_{name}")
        if made and given is not _MISSING:
            lines.append(f"if {name} is _{name}: {name} = _{name}()")
        lines.append(form.format(name))
    if hasattr(kind, "__post_init__"):
        lines.append("self.__post_init__()")
    head, body = f"def {kind.__name__}({', '.join(words)}):", "\n ".join(lines)
    exec(f"{head}\n {body}", known)  # noqa: S102 - as the standard library does
    return known[kind.__name__]


class _StandardFields:
    """What the standard library's functions look for, made when one of them does."""

    def __get__(self, _: object, kind: Any) -> object:  # noqa: ANN401 - any dataclass
        import dataclasses as standard  # noqa: PLC0415, TID251 - which this module saves

        made = standard.make_dataclass("_", [item.name for item in kind.__fields__])
        kind.__dataclass_fields__ = {item.name: item for item in standard.fields(made)}
        return kind.__dataclass_fields__


class _Changing:
    """A dataclass whose instances change, and are equal to themselves alone."""

    __slots__ = ()
    __fields__: tuple[_Field, ...]
    __dataclass_fields__ = _StandardFields()

    def __init__(self, *given: object, **named: object) -> None:
        kind = type(self)
        kind.__init__ = _compile_init(kind)  # type: ignore[method-assign]
        kind.__init__(self, *given, **named)

    def __repr__(self) -> str:
        words = (f"{name}={value!r}" for name, value in values(self).items())
        return f"{type(self).__qualname__}({', '.join(words)})"


class _Frozen(_Changing):
    __slots__ = ()
    __key__: Any  # gives those of its fields that are compared

    def __eq__(self, other: Any) -> bool:  # noqa: ANN401, PYI032 - one of its class
        same = other.__class__ is self.__class__
        return bool(self.__key__(self) == self.__key__(other)) if same else NotImplemented

    def __hash__(self) -> int:
        return hash(self.__key__(self))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), tuple(values(self).values())

    def __setattr__(self, name: str, _: object) -> None:
        raise AttributeError(f"cannot assign to field {name!r}")


def _dataclass(*, frozen: bool = False, slots: bool = False, eq: bool = True) -> Any:  # noqa: ANN401
    base = {(True, True): _Frozen, (False, False): _Changing}[frozen, eq]

    def make(kind: type) -> type:
        if kind.__bases__ != (object,):
            raise TypeError(f"{kind.__name__} inherits, which this dataclass does not")
        content, own = {**kind.__dict__, "__qualname__": kind.__qualname__}, []
        for name, annotation in kind.__annotations__.items():
            if not annotation.startswith("ClassVar"):
                given = content.pop(name, _MISSING)
                item = given if isinstance(given, _Field) else _Field(given)
                own.append(item._replace(name=name))
        del content["__dict__"], content["__weakref__"]
        key = attrgetter(*[item.name for item in own if item.compare] or ["__class__"])
        content |= {"__fields__": tuple(own), "__key__": key}
        if slots:
            content["__slots__"] = tuple(item.name for item in own)
        return type(kind.__name__, (base,), content)

    return make


def values(record: Any) -> dict[str, Any]:  # noqa: ANN401 - any dataclass
    """Return the values of the fields by their names, as ``json.dumps`` takes them."""
    return {item.name: getattr(record, item.name) for item in record.__fields__}


if TYPE_CHECKING:
    from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace  # noqa: TID251
else:
    MISSING, dataclass, field, fields = _MISSING, _dataclass, _Field, attrgetter("__fields__")

    def is_dataclass(kind: object) -> bool:
        """Tell whether it is one, or of one."""
        return hasattr(kind, "__fields__")

    def replace(record: T, /, **changes: object) -> T:
        """Make another one with some other values."""
        return type(record)(**{**values(record), **changes})
