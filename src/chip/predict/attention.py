"""Times of attention with given heads, for any sequences, queries and keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import exp
from typing import TYPE_CHECKING

from chip.ops.attention import AnyAttention, Form
from chip.predict.bases import BORROWED_SPREAD
from chip.predict.interpolate import UNKNOWN_SPREAD, Z90, Correction, Points
from chip.predict.limits import INTERPOLATED, Answer, added
from chip.predict.rising_grid import RisingGrid, Timed, Times

if TYPE_CHECKING:
    from chip.predict.estimator import Estimator

MOST_GRIDS = 256  # remembered, of all models


class AttentionTimes:
    """On a grid over two sizes (`Form`), or, where no two sizes say it, as it is asked for. Under a window that hides
    keys: the share of pairs that is left of attention to all that is in sight."""

    def __init__(self, e: Estimator, like: AnyAttention) -> None:
        self._estimator, self._one, self._composed = e, like.sized(1, 1, 1), bool(like.parts())
        self._points = e.kernels.of(like) if self._one.like_measured() is not None else None
        self._answered = e.answering(like, INTERPOLATED if self._points else e.roof.source)
        self._held_s = e.kernels.held_s(like)
        self._base, self._fast, self._slow = (base.over(like.sized) for base in e.bases.of(like, ""))
        if self._points:
            self._base = self._points.base.over(like.sized)

    def __call__(self, op: AnyAttention) -> Answer:
        """Of the same heads over other sizes."""
        whole, (flops, read, written) = op.unwindowed(), op.cost()
        if self._composed and (self._points is None or whole is not op):
            return self._estimator.summed(op)
        share = flops / whole.cost()[0] if whole is not op else 1.0
        seconds, spread = self._timed(whole)
        seconds *= share
        if self._points is None:
            sizes = whole.batch, whole.q_len, whole.kv_len
            off = seconds / self._base(*sizes)
            low_s, high_s, held_s = off * self._fast(*sizes), off * self._slow(*sizes), 0.0
        else:
            off = exp(Z90 * (spread + (BORROWED_SPREAD / 2 if share < 1 else 0.0)))
            low_s, high_s, held_s = seconds / off, seconds * off, self._held_s(flops, seconds)
        return self._answered(seconds, low_s, high_s, flops, read + written, held_s)

    def averaged(self, op: AnyAttention) -> Answer:
        """The mean over steps in which a context grows key by key, where a step's kernels depend on its alignment."""
        lengths = op.lengths()
        if len(lengths) == 1:
            return self(op)
        flops, read, written = op.cost()
        found = added([(self(each), part) for each, part in lengths])
        return *found[:5], flops, read + written, found[7]

    def _timed(self, op: AnyAttention) -> Timed:
        form = op.form()
        if form is None:
            return self._base(op.batch, op.q_len, op.kv_len), UNKNOWN_SPREAD
        seconds, spread = max(self.by_alignment(op, form))
        if form.within:  # whole prompts were measured most
            seconds, spread = min((seconds, spread), max(self.by_alignment(op, form.within)))
        if form.like:
            seconds *= self._base(*form.like) / self._base(*form.at(*form.sizes))
        return seconds, spread

    def by_alignment(self, op: AnyAttention, form: Form) -> list[Timed]:
        """With its keys aligned, and, where they are not, as they are: it takes no less than if they were."""
        return [self._grid(form, alignment)(*form.sizes) for alignment in op.alignments()]

    def _grid(self, form: Form, alignment: float | None) -> RisingGrid:
        """Models whose heads are alike share it."""
        grids, key = self._estimator.grids, (self._one, form.name, alignment)
        found = grids.get(key)
        if found is None:
            if len(grids) >= MOST_GRIDS:
                grids.clear()
            if self._points:
                times = measured_times(self._points, self._one, form, alignment)
            else:
                times = _base_times(self._base, form)
            found = grids[key] = RisingGrid(times)
        return found


def measured_times(points: Points, op: AnyAttention, form: Form, alignment: float | None = None) -> Times:
    """The base time, corrected by what the nearest points say at powers of two of both sizes, as if their keys were so
    aligned; between them corrections are straight."""
    base = points.base.over(op.sized)

    @cache
    def correction(count: int, length: int) -> Correction:
        return points.corrections([op.sized(*form.at(1 << count, 1 << length)).aligned(alignment)])[0]

    def times(count: int, lengths: Sequence[int]) -> list[Timed]:
        found = []
        for length in lengths:
            near = [(part * of, correction(i, j)) for i, part in _octaves(count) for j, of in _octaves(length)]
            value, spread = sum([part * c.value for part, c in near]), sum([part * c.spread for part, c in near])
            found.append((base(*form.at(count, length)) * exp(value), spread))
        return found

    return times


def _octaves(size: int) -> list[tuple[int, float]]:
    """The powers of two around a size, and the part of each."""
    low = size.bit_length() - 1
    share = size / (1 << low) - 1
    return [(low, 1 - share), (low + 1, share)] if share else [(low, 1.0)]


def _base_times(base: Callable[..., float], form: Form) -> Times:
    """The same without points."""
    return lambda count, lengths: [(base(*form.at(count, n)), 0.0) for n in lengths]
