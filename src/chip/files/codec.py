"""Dataclass <-> JSON, strict: an unknown key, a missing key or a wrong type is an error that names its path."""

from __future__ import annotations

import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any, TypeVar

from chip.types import ChipError

T = TypeVar("T")
WORDS: dict[Any, str] = {float: "a number", int: "a whole number", str: "text", bool: "true or false"}
PLAIN = frozenset((str, int, float, bool, type(None)))


@cache
def _fields(cls: type) -> dict[str, tuple[Any, frozenset[type], bool]]:
    """Field name -> (type, types taken as they are, required)."""
    hints = typing.get_type_hints(cls)
    return {
        f.name: (
            hints[f.name],
            _taken(hints[f.name]),
            f.default is MISSING and f.default_factory is MISSING,
        )
        for f in fields(cls)
    }


@cache
def _row(cls: type) -> Any:
    """A NamedTuple's fields as the type of a tuple."""
    return types.GenericAlias(tuple, tuple(typing.get_type_hints(cls).values()))


def to_json(value: Any) -> Any:
    """Plain JSON values; fields at their default are kept, so that a file says all it means."""
    if type(value) in PLAIN:
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(v) for v in value]
    return value


def from_json(cls: type[T], value: Any, where: str) -> T:
    """Build `cls` from parsed JSON; `where` names the file in errors."""
    return typing.cast(T, _decode(cls, value, where))


def _say(where: str, wanted: str, got: Any) -> ChipError:
    return ChipError(f"{where}: expected {wanted}, got {type(got).__name__} {str(got)[:40]!r}")


@cache
def _taken(kind: Any) -> frozenset[type]:
    """Types whose values are taken as they are: most of a file, and no path has to be made for them."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return frozenset[type]().union(*map(_taken, typing.get_args(kind)))
    return frozenset((float, int) if kind is float else (kind,) if kind in (int, str, bool, type(None)) else ())


def _decode(kind: Any, value: Any, where: str) -> Any:
    if kind is Any or type(value) in _taken(kind):
        return value
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        inner = [a for a in args if a is not type(None)]
        if len(inner) == 1 and value is not None:
            return _decode(inner[0], value, where)
        raise _say(
            where, " or ".join(getattr(a, "__name__", str(a)) for a in inner) if value is not None else "a value", value
        )
    if is_dataclass(kind):
        return _decode_dataclass(typing.cast(type, kind), value, where)
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):  # a NamedTuple: one row
        return kind(*_decode(_row(kind), value, where))
    if origin is dict:
        if not isinstance(value, dict):
            raise _say(where, "an object", value)
        taken = _taken(args[1])
        return {k: v if type(v) in taken else _decode(args[1], v, f"{where}.{k}") for k, v in value.items()}
    if origin in (tuple, list):
        if not isinstance(value, list):
            raise _say(where, "a list", value)
        if origin is tuple and args[1:] != (Ellipsis,):
            if len(value) != len(args):
                raise ChipError(f"{where}: expected {len(args)} items, got {len(value)}")
            return tuple(_decode(a, v, f"{where}[{i}]") for i, (a, v) in enumerate(zip(args, value)))
        if not _taken(args[0]).issuperset(map(type, value)):  # long arrays of numbers are checked at once
            value = [_decode(args[0], v, f"{where}[{i}]") for i, v in enumerate(value)]
        return origin(value)
    if kind not in WORDS and isinstance(value, kind):
        return value
    raise _say(where, WORDS.get(kind, getattr(kind, "__name__", str(kind))), value)


def _decode_dataclass(cls: type, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise _say(where, "an object", value)
    known = _fields(cls)
    for key in value:
        if key not in known:
            near = get_close_matches(key, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"
            raise ChipError(f"{where}: unknown field {key!r}{hint}")
    out = {}
    for name, (kind, taken, required) in known.items():
        if name in value:
            item = value[name]
            out[name] = item if type(item) in taken else _decode(kind, item, f"{where}.{name}")
        elif required:
            raise ChipError(f"{where}: field {name!r} is missing")
    return cls(**out)
