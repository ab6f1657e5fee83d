"""What a kernel should take, from a few physical numbers: the base that measured points correct.

A base has a floor (what the smallest kernel takes), a rate of arithmetic, a rate of memory, and where a kernel's form
matters, numbers of that form: tiles, waves, splits. They are fitted to measured points (`chip fit`), or come from a
GPU's ceilings where nothing was measured. Every base grows with the tokens of a step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from chip.types import Op

SHARPEST = 20.0


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
