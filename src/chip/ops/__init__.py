"""Operators: one file a family, found by listing this folder. An operator call is a frozen dataclass of its axes.

Conventions of cost: a multiply-add is 2 FLOPs; every input is read once and every output written once, whatever a
kernel really does; softmax, exp and the like inside attention are not counted, so attention FLOPs are its two
matrix products over the pairs that are really visible.

A kernel's base time is what it should take, from a few physical numbers: a floor (what the smallest kernel takes), a
rate of arithmetic, a rate of memory, and where a kernel's form matters, numbers of that form: tiles, waves, splits.
They are fitted to measured points (`chip fit`), or come from a GPU's ceilings where nothing was measured. Every base
grows with the tokens of a step; measured points correct it.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from difflib import get_close_matches
from functools import lru_cache
from importlib import import_module
from typing import Any, ClassVar

from chip.dtypes import BYTES
from chip.types import ChipError, MatrixProduct, Op

SHOWN = 12  # names in an error; the list has its own command
MAX_AXIS = 2**40  # larger than any tensor axis; keeps arithmetic in a range where errors are honest
SHARPEST = 20.0  # of a blend


@lru_cache(maxsize=1)
def classes() -> dict[str, type[Op]]:
    """Every operator by its kind, from all families' files."""
    by_kind: dict[str, type[Op]] = {}
    for family in sorted(module.name for module in pkgutil.iter_modules(__path__)):
        defined = vars(import_module(f"chip.ops.{family}")).values()
        operators = [c for c in defined if isinstance(c, type) and issubclass(c, Op) and "kind" in vars(c)]
        by_kind |= {c.kind: c for c in operators}
    return dict(sorted(by_kind.items()))


def names() -> tuple[str, ...]:
    return tuple(classes())


def get(kind: str) -> type[Op]:
    cls = classes().get(kind)
    if cls is None:
        near = get_close_matches(str(kind)[:80], names(), 3)
        some = f"known: {', '.join(names()[:SHOWN])}, ... (`chip list ops` shows all)"
        hint = f"did you mean {' or '.join(near)}?" if near else some
        raise ChipError(f"no operator {str(kind)[:80]!r}; {hint}")
    return cls


def multiplies(kind: str) -> bool:
    """Whether its FLOPs are those of matrix products, as torch's counter sees them; False for what is no operator."""
    return issubclass(classes().get(kind, Op), MatrixProduct)


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


# -- base times
@dataclass(frozen=True, slots=True)
class BaseTime:
    """A floor, then the longer of arithmetic and memory: the roofline."""

    floor_s: float
    flop_per_s: float
    bytes_per_s: float
    sm_count: int = 132

    def seconds(self, op: Any) -> float:
        flops, read, written = op.cost()
        longer_s: float = max(flops / self.flop_per_s, (read + written) / self.bytes_per_s)
        return self.floor_s + longer_s

    def over(self, make: Callable[..., Any]) -> Callable[..., float]:
        """The seconds of `make(sizes)` for any sizes, where a model asks for one shape again and again: a base that
        can work out beforehand what does not change with them."""
        return lambda *sizes: self.seconds(make(*sizes))


class GrowingBase(BaseTime):
    """The time of an operator by what a model fixes, worked out once, and by what grows with the tokens of a step."""

    __slots__ = ()
    # Of such sizes: the seconds of an amount, and of the bytes that it moves
    of_fixed: ClassVar[Callable[..., Callable[[int, float], float]]]

    def fixed(self, op: Any) -> tuple[int, ...]:
        """The sizes that a model fixes."""
        raise NotImplementedError

    def amount(self, op: Any) -> int:
        """The size that grows in proportion to the tokens."""
        raise NotImplementedError

    def seconds(self, op: Any) -> float:
        _, read, written = op.cost()
        return self.of_fixed(*self.fixed(op))(self.amount(op), read + written)

    def over(self, make: Callable[..., Any]) -> Callable[..., float]:
        (_, r1, w1), (_, r2, w2) = make(1).cost(), make(2).cost()
        always, each = 2 * (r1 + w1) - (r2 + w2), r2 + w2 - (r1 + w1)
        amount, seconds = self.amount(make(1)), self.of_fixed(*self.fixed(make(1)))
        return lambda tokens: seconds(amount * tokens, always + each * tokens)


class SeriesBase(BaseTime):
    """Products and passes that are kernels of their own, one after the other: their times add."""

    __slots__ = ()

    def seconds(self, op: Op) -> float:
        flops, read, written = op.cost()
        return self.floor_s + flops / self.flop_per_s + (read + written) / self.bytes_per_s


def blend(one: float, other: float, sharp: float) -> float:
    """The longer of two limits, neither of them quite sharp: near where they meet, a kernel pays for both."""
    longer, shorter = (one, other) if one > other else (other, one)
    if not longer:
        return 0.0
    sharp = 1.0 if sharp < 1.0 else SHARPEST if sharp > SHARPEST else sharp
    together: float = (1 + (shorter / longer) ** sharp) ** (1 / sharp)
    return longer * together
