"""Frozen dataclasses with slots, made without the module `dataclasses`: a prediction imports some seventy. That module
imports the compiler's tools and compiles six methods for each; here it is `__init__` alone. Who asks `dataclasses`
about a record gets an answer."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from operator import attrgetter
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

__all__ = ["MISSING", "Field", "dataclass", "field", "fields", "is_dataclass", "replace"]

if TYPE_CHECKING:
    from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
else:
    MISSING = type("Missing", (), {"__repr__": lambda self: "MISSING"})()

    class Field:
        """As `dataclasses.Field`, as far as it is asked for here."""

        __slots__ = ("default", "default_factory", "name", "type")

        def __init__(self, default=MISSING, default_factory=MISSING):
            self.default, self.default_factory = default, default_factory
            self.name = self.type = ""

    def field(*, default=MISSING, default_factory=MISSING):
        return Field(default, default_factory)

    def dataclass(*, frozen: bool, slots: bool, eq: bool = True):
        """As `dataclasses.dataclass`, for what is frozen and has slots."""
        assert frozen
        assert slots
        return _compared if eq else _record

    def fields(of):
        """Of a record or, through `dataclasses`, of what else is a dataclass."""
        found = getattr(of, "RECORD_FIELDS", None)
        return _of_dataclass(of) if found is None else found

    def is_dataclass(of):
        return hasattr(of, "RECORD_FIELDS") or hasattr(of, "__dataclass_fields__")

    def replace(of, /, **changes):
        """A copy with other values; of any dataclass."""
        return type(of)(**{**{name: getattr(of, name) for name in of.__match_args__}, **changes})


def _of_dataclass(of: Any) -> tuple[Any, ...]:
    """Its fields, with what is missing as here."""
    import dataclasses

    made = []
    for f in dataclasses.fields(of):
        both: list[Any] = [MISSING if v is dataclasses.MISSING else v for v in (f.default, f.default_factory)]
        made.append(_field(f.name, f.type, *both))
    return tuple(made)


def _field(name: str, kind: Any, default: Any = MISSING, default_factory: Any = MISSING) -> Any:
    found: Any = field(default=default, default_factory=default_factory)
    found.name, found.type = name, kind
    return found


def _record(cls: Any) -> Any:
    found = {f.name: f for f in getattr(cls, "RECORD_FIELDS", ())}  # of what it inherits from
    names = dict(cls.__dict__)
    own = {n: t for n, t in names.get("__annotations__", {}).items() if "ClassVar[" not in str(t)}
    for name, kind in own.items():
        given: Any = names.pop(name, MISSING)
        assert type(given).__module__ != "dataclasses", f"{cls.__name__}.{name}: use chip.records.field"
        of_field = (given.default, given.default_factory) if isinstance(given, Field) else (given,)
        found[name] = _field(name, kind, *of_field)
    inherited = {n for base in cls.__mro__[1:] for n in getattr(base, "__slots__", ())}
    for name in ("__dict__", "__weakref__"):
        names.pop(name, None)
    names["__slots__"] = tuple(n for n in own if n not in inherited)
    names["RECORD_FIELDS"], names["__match_args__"] = tuple(found.values()), tuple(found)
    names["__dataclass_fields__"] = _Described()
    record = type(cls)(cls.__name__, cls.__bases__, names)
    record.__qualname__ = cls.__qualname__
    record.__init__ = _init(record)
    record.__repr__, record.__setattr__, record.__delattr__, record.__reduce__ = _repr, _refuse, _refuse, _reduce
    return record


def _compared(cls: Any) -> Any:
    made = _record(cls)
    values: Callable[[Any], Any] = attrgetter(*made.__match_args__)  # of one field: that, else a tuple

    def equal(self: Any, other: object) -> Any:
        return values(self) == values(other) if type(other) is type(self) else NotImplemented

    made.__eq__, made.__hash__ = equal, lambda self: hash(values(self))
    return made


def _init(cls: Any) -> Any:
    """Sets each slot by its descriptor, as assignment is refused."""
    known, names, defaults = dict[str, Any](), list[str](), list[Any]()
    for f in cls.RECORD_FIELDS:
        put, made_by = getattr(cls, f.name).__set__, f.default_factory
        if made_by is not MISSING:
            put = _filling(put, made_by)
        if made_by is not MISSING or f.default is not MISSING:
            defaults.append(f.default)
        else:
            assert not defaults, f"{cls.__name__}.{f.name} needs a default, as a field before it has one"
        known[f"set_{len(names)}"] = put
        names.append(f.name)
    code = _setting(len(names)).replace(co_varnames=("self", *names))
    return FunctionType(code, known, "__init__", tuple(defaults))


@lru_cache(maxsize=64)
def _setting(count: int) -> CodeType:
    """Of so many fields: compiling it takes as long as all else about a record, and they differ in names alone."""
    args, known = [f"value_{i}" for i in range(count)], dict[str, Any]()
    lines = [f"    set_{i}(self, {arg})\n" for i, arg in enumerate(args)]
    exec(f"def __init__({', '.join(['self', *args])}):\n{''.join(lines) or '    pass'}", known)
    code: CodeType = known["__init__"].__code__
    return code


def _filling(put: Callable[[Any, Any], None], made_by: Callable[[], Any]) -> Callable[[Any, Any], None]:
    return lambda self, value: put(self, made_by() if value is MISSING else value)


class _Described:
    """What `dataclasses` looks for, made when it does."""

    def __get__(self, of: object, cls: Any) -> dict[str, Any]:
        import dataclasses

        made: dict[str, Any] = {}
        for f in cls.RECORD_FIELDS:
            given = {n: v for n in ("default", "default_factory") if (v := getattr(f, n)) is not MISSING}
            described: Any = dataclasses.field(**given)
            described.name, described.type = f.name, f.type
            described._field_type = dataclasses._FIELD  # type: ignore[attr-defined]
            made[f.name] = described
        cls.__dataclass_fields__ = made
        return made


def _refuse(self: Any, name: str, *value: Any) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"{type(self).__name__} is frozen: {name!r} cannot be changed")


def _repr(self: Any) -> str:
    return f"{type(self).__qualname__}({', '.join(f'{n}={getattr(self, n)!r}' for n in self.__match_args__)})"


def _reduce(self: Any) -> tuple[Any, ...]:
    return type(self), tuple(getattr(self, n) for n in self.__match_args__)
