"""Times of attention with given heads, for any sequences, queries and keys."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import exp
from typing import TYPE_CHECKING

from chip.ops.attention import SINGLE, AnyAttention, Form
from chip.predict.bases import BORROWED_SPREAD
from chip.predict.interpolate import UNKNOWN_SPREAD, Z90, Correction, Points
from chip.predict.limits import INTERPOLATED, Answer, added
from chip.predict.rising_grid import COARSE, FINE, RisingGrid, Timed, Times

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
        self._grids: dict[tuple[object, float | None], RisingGrid] = {}
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
        found = self._grids.get((form.name, alignment))
        if found is None:
            shared, key = self._estimator.grids, (self._one, form.name, alignment)
            if len(shared) >= MOST_GRIDS:
                shared.clear()
            if len(self._grids) >= MOST_GRIDS:
                self._grids.clear()
            if key not in shared:
                counts = FINE if form.name == SINGLE else COARSE  # how keys are split depends on the sequences
                shared[key] = RisingGrid(self._times(form, alignment), counts)
            found = self._grids[form.name, alignment] = shared[key]
        return found

    def _times(self, form: Form, alignment: float | None) -> Times:
        if self._points:
            return measured_times(self._points, self._one, form, alignment)
        return lambda count, lengths: [(self._base(*form.at(count, n)), 0.0) for n in lengths]


def measured_times(points: Points, op: AnyAttention, form: Form, alignment: float | None = None) -> Times:
    """The base time, corrected by what the nearest points say at powers of two of both sizes, as if their keys were so
    aligned; between them corrections are straight."""
    base = points.base.over(op.sized)

    @cache
    def correction(count: int, length: int) -> Correction:
        return points.corrections([op.sized(*form.at(1 << count, 1 << length)).aligned(alignment)])[0]

    @cache
    def of_count(count: int, octave: int) -> Correction:
        low, share = _octave(count)
        return _between(correction(low, octave), correction(low + 1, octave) if share else None, share)

    def times(count: int, lengths: Sequence[int]) -> list[Timed]:
        found = []
        for length in lengths:
            low, share = _octave(length)
            value, spread = _between(of_count(count, low), of_count(count, low + 1) if share else None, share)
            found.append((base(*form.at(count, length)) * exp(value), spread))
        return found

    return times


def _octave(size: int) -> tuple[int, float]:
    """The power of two below, and how far on the way to the next."""
    low = size.bit_length() - 1
    return low, size / (1 << low) - 1


def _between(one: Correction, other: Correction | None, share: float) -> Correction:
    if other is None:
        return one
    return Correction(one[0] + (other[0] - one[0]) * share, one[1] + (other[1] - one[1]) * share)
