"""The share of its roof that an operator reaches, by the shares of those that `chip calibrate` measured: of a matrix
product by its intensity and size, of others by the bytes that they move."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from math import exp, log, log2, sqrt
from typing import Any

from chip.ops.base_time import BaseTime
from chip.predict.interpolate import NOISE, UNKNOWN_SPREAD, Z90
from chip.records import dataclass
from chip.types import RoofShare

MOST_SHARES = 256  # remembered: operators of a model at a few numbers of tokens
Placed = tuple[float, float, float]  # intensity, size, and the share, all as logarithms


class MeasuredShares:
    """Shares of measured operators, from which those of others are interpolated."""

    def __init__(self, found: Sequence[RoofShare], products: bool) -> None:
        placed = [(*_place(flops, moved, products), log(share)) for flops, moved, share in found]
        # from FLOPs and bytes to three shares: as expected, the most, the least
        self.of = lru_cache(maxsize=MOST_SHARES)(partial(_share, placed, products))


def _place(flops: float, moved: float, products: bool) -> tuple[float, float]:
    """A product of twice the intensity is as far away as one of four times the size."""
    return log2(max(flops, 1.0) / moved) if products else 0.0, log2(moved) / 2


def _share(points: Sequence[Placed], products: bool, flops: float, moved: float) -> tuple[float, float, float]:
    """Their mean, the nearer ones weighing most, within 90 % of how far they lie apart. One more, of unknown spread,
    stands for what was not measured."""
    intensity, size = _place(flops, moved, products)
    weights = [1 / ((x - intensity) ** 2 + (y - size) ** 2 + NOISE) ** 2 for x, y, _ in points]
    total, unknown = sum(weights), max(weights)
    mean = sum([w * share for w, (_, _, share) in zip(weights, points)]) / total
    variance = sum([w * (share - mean) ** 2 for w, (_, _, share) in zip(weights, points)])
    off = Z90 * sqrt((variance + unknown * UNKNOWN_SPREAD**2) / (total + unknown))
    return exp(mean), exp(mean + off), exp(mean - off)


@dataclass(frozen=True, slots=True)
class RoofBase(BaseTime):
    """The roofline under ceilings that were measured, times the share of it that such operators reach there."""

    shares: MeasuredShares | None = None
    case: int = 0  # which of the shares: as expected, the most, the least

    def seconds(self, op: Any) -> float:
        flops, read, written = op.cost()
        moved = read + written
        longer_s: float = max(flops / self.flop_per_s, moved / self.bytes_per_s)
        share = self.shares.of(flops, moved)[self.case] if self.shares and moved else 1.0
        return self.floor_s + longer_s / share
