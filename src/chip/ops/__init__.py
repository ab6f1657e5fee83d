"""Operators: one file each, found by listing this folder. An operator call is a frozen dataclass of its axes.

Conventions of cost: a multiply-add is 2 FLOPs; every input is read once and every output written once, whatever a
kernel really does; softmax, exp and the like inside attention are not counted, so attention FLOPs are its two
matrix products over the pairs that are really visible.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from importlib import import_module
from typing import Any

from chip import listing
from chip.dtypes import BYTES
from chip.records import MISSING, Field, fields
from chip.suggest import get_close_matches
from chip.types import ChipError, Op

NOT_OPERATORS = ("attention_kernels", "base_time", "collective", "composed", "elementwise")  # what operators share
SHOWN = 12  # names in an error; the list has its own command
MAX_AXIS = 2**40  # larger than any tensor axis; keeps arithmetic in a range where errors are honest


@lru_cache(maxsize=1)
def names() -> tuple[str, ...]:
    found = listing.modules(__path__)
    return tuple(n for n in found if n not in NOT_OPERATORS)


@cache
def get(kind: str) -> type[Op]:
    if kind not in names():
        near = get_close_matches(str(kind)[:80], names(), 3)
        some = f"known: {', '.join(names()[:SHOWN])}, ... (`chip list ops` shows all)"
        hint = f"did you mean {' or '.join(near)}?" if near else some
        raise ChipError(f"no operator {str(kind)[:80]!r}; {hint}")
    module = import_module(f"chip.ops.{kind}")
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, Op) and value.__dict__.get("kind") == kind:
            return value
    raise AssertionError(f"chip/ops/{kind}.py defines no operator of that kind")


@cache
def multiplies(kind: str) -> bool:
    """Whether its FLOPs are those of matrix products, as torch's counter sees them; False for what is no operator."""
    return kind in names() and get(kind).counted_flops is not Op.counted_flops


def axes(cls: type[Op]) -> dict[str, Field[Any]]:
    return {f.name: f for f in fields(cls)}  # type: ignore[arg-type]


def build(kind: str, values: Mapping[str, Any]) -> Op:
    """An operator call from untrusted axes: unknown, missing or senseless ones are refused by name."""
    if not isinstance(kind, str):
        raise ChipError(f"op must be an operator's name, got {str(kind)[:40]!r}")
    cls = get(kind)
    known = axes(cls)
    for key in values:
        if key not in known:
            near = get_close_matches(str(key)[:80], known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"its axes are {', '.join(known)}"
            raise ChipError(f"{kind} has no axis {str(key)[:80]!r}; {hint}")
    out: dict[str, Any] = {}
    for name, f in known.items():
        if name in values:
            out[name] = _axis(kind, f, values[name])
        elif f.default is MISSING:
            raise ChipError(f"{kind} needs axis {name!r}; its axes are {', '.join(known)}")
    op = cls(**out)
    check = getattr(op, "check", None)
    if check:
        check()
    return op


def _axis(kind: str, f: Field[Any], value: Any) -> Any:
    if f.type == "bool":
        if isinstance(value, bool) or value in (0, 1):
            return bool(value)
        raise ChipError(f"{kind} axis {f.name!r} must be true or false, got {str(value)[:40]!r}")
    if f.type == "str":
        if not isinstance(value, str) or (value not in BYTES and value != f.default):
            raise ChipError(f"{kind} {f.name} {str(value)[:40]!r} is not known; choose one of {', '.join(BYTES)}")
        return value
    least = 0 if f.default == 0 else 1
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_AXIS:
        raise ChipError(f"{kind} axis {f.name!r} must be a whole number from {least} to 2^40, got {str(value)[:40]!r}")
    return value
