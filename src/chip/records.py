"""Frozen dataclasses with slots, made in a third of the time: a prediction imports some seventy, and the standard
library compiles six methods for each. Here it is `__init__` alone; the others are shared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(*, frozen: bool, slots: bool, eq: bool = True):
        """As `dataclasses.dataclass`, for what is frozen and has slots."""
        assert frozen
        assert slots
        return _compared if eq else _record


__all__ = ["dataclass"]


def _record(cls: Any) -> Any:
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    made.__init__ = _init(made)
    made.__repr__, made.__setattr__, made.__delattr__, made.__reduce__ = _repr, _refuse, _refuse, _reduce
    return made


def _compared(cls: Any) -> Any:
    made = _record(cls)
    values: Callable[[Any], Any] = attrgetter(*made.__match_args__)  # of one field: that, else a tuple

    def equal(self: Any, other: object) -> Any:
        return values(self) == values(other) if type(other) is type(self) else NotImplemented

    made.__eq__, made.__hash__ = equal, lambda self: hash(values(self))
    return made


def _init(cls: Any) -> Any:
    """Sets each slot by its descriptor, as assignment is refused."""
    known: dict[str, Any] = {"MISSING": dataclasses.MISSING}
    args, lines = ["self"], []
    for f in dataclasses.fields(cls):
        known[f"set_{f.name}"] = getattr(cls, f.name).__set__
        value = f.name
        if f.default_factory is not dataclasses.MISSING:
            known[f"make_{f.name}"] = f.default_factory
            value = f"make_{f.name}() if {f.name} is MISSING else {f.name}"
            known[f"of_{f.name}"] = dataclasses.MISSING
        elif f.default is not dataclasses.MISSING:
            known[f"of_{f.name}"] = f.default
        args.append(f"{f.name}=of_{f.name}" if f"of_{f.name}" in known else f.name)
        lines.append(f"    set_{f.name}(self, {value})\n")
    exec(f"def __init__({', '.join(args)}):\n{''.join(lines)}", known)
    return known["__init__"]


def _refuse(self: Any, name: str, *value: Any) -> None:
    raise dataclasses.FrozenInstanceError(f"{type(self).__name__} is frozen: {name!r} cannot be changed")


def _repr(self: Any) -> str:
    return f"{type(self).__qualname__}({', '.join(f'{n}={getattr(self, n)!r}' for n in self.__match_args__)})"


def _reduce(self: Any) -> tuple[Any, ...]:
    return type(self), tuple(getattr(self, n) for n in self.__match_args__)
