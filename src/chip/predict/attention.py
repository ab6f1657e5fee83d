"""The time of attention with given heads, for any number of sequences, queries and keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from math import exp
from typing import TYPE_CHECKING

from chip.ops.attention import SINGLE, AnyAttention, Form
from chip.predict.bases import BORROWED_SPREAD
from chip.predict.interpolate import UNKNOWN_SPREAD, Z90, Correction, Points
from chip.predict.limits import Answer, added
from chip.predict.rising_grid import COARSE, FINE, RisingGrid, Timed, Times

if TYPE_CHECKING:
    from chip.predict.estimator import Estimator

MOST_HEADS, MOST_GRIDS = 64, 16  # remembered: heads of all models, and grids of each


class AttentionTimes:
    """Read from a grid over two sizes (`Form`), or worked out alone where two sizes do not fix it. Attention under a
    window takes the part of the unwindowed time that its share of the visible pairs is."""

    def __init__(self, e: Estimator, like: AnyAttention) -> None:
        self._estimator, self._one, self._composed = e, like.sized(1, 1, 1), bool(like.parts())
        if len(e.grids) >= MOST_HEADS and self._one not in e.grids:
            e.grids.clear()
        self._grids = e.grids.setdefault(self._one, {})  # shared by all models with such heads
        self._points = e.kernels.of(like) if self._one.like_measured() is not None else None
        self._answered = e.answering(like, self._points.source if self._points else e.roof.source)
        self._held_s = e.kernels.held_s(like)
        self._base, self._fast, self._slow = (base.over(like.sized) for base in e.bases.of(like, ""))
        if self._points:
            self._base = self._points.base.over(like.sized)

    def __call__(self, op: AnyAttention) -> Answer:
        """The same heads over the sizes of `op`."""
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
        """The mean over decode steps whose context grows key by key, where the time depends on the keys' alignment."""
        lengths = op.lengths()
        if len(lengths) == 1:
            return self(op)
        flops, read, written = op.cost()
        found = added([(self(each), part) for each, part in lengths])
        return *found[:5], flops, read + written, *found[7:]

    def _timed(self, op: AnyAttention) -> Timed:
        form = op.form()
        if form is None:
            seconds = self._base(op.batch, op.q_len, op.kv_len)
            return self._points.as_read(op, seconds) if self._points else seconds, UNKNOWN_SPREAD
        seconds, spread = max(self.by_alignment(op, form))
        if form.between:  # a smaller and a larger attention, such as whole prompts: those were measured most
            least, most = (max(self.by_alignment(op, other)) for other in form.between)
            seconds, spread = max(least, min((seconds, spread), most))
        if form.like:
            seconds *= self._base(*form.like) / self._base(*form.at(*form.sizes))
        return seconds, spread

    def by_alignment(self, op: AnyAttention, form: Form) -> list[Timed]:
        """The time with aligned keys and, where its own are not aligned, also the time as they are."""
        return [self._grid(form, alignment)(*form.sizes) for alignment in op.alignments()]

    def _grid(self, form: Form, alignment: float | None) -> RisingGrid:
        found = self._grids.get((form.name, alignment))
        if found is None:
            if len(self._grids) >= MOST_GRIDS:
                self._grids.clear()
            counts = FINE if form.name == SINGLE else COARSE  # kernels split the keys by the number of sequences
            found = self._grids[form.name, alignment] = RisingGrid(self._times(form, alignment), counts)
        return found

    def _times(self, form: Form, alignment: float | None) -> Times:
        if self._points:
            return measured_times(self._points, self._one, form, alignment)
        return lambda count, lengths: [(self._base(*form.at(count, n)), 0.0) for n in lengths]


def measured_times(points: Points, op: AnyAttention, form: Form, alignment: float | None = None) -> Times:
    """The base time, corrected by the nearest points. Corrections are worked out at powers of two of both sizes, with
    keys of the given alignment, and interpolated linearly between them."""
    base = points.base.over(op.sized)

    @cache
    def at(sizes: tuple[int, int, int]) -> Correction:
        return points.corrections([op.sized(*sizes).aligned(alignment)])[0]

    def correction(count: int, length: int) -> Correction:
        return at(form.at(1 << count, 1 << length))  # of several forms, so that two places may be one

    @cache
    def of_count(count: int, octave: int) -> Correction:
        return _between_powers(lambda exponent: correction(exponent, octave), count)

    def times(count: int, lengths: Sequence[int]) -> list[Timed]:
        found = [(n, _between_powers(partial(of_count, count), n)) for n in lengths]
        alone = [(form.at(count, n), value, spread) for n, (value, spread) in found]
        return [(points.as_read(op.sized(*at), base(*at) * exp(value)), spread) for at, value, spread in alone]

    return times


def _between_powers(correction: Callable[[int], Correction], size: int) -> Correction:
    """Linear between powers of two; `correction` takes their exponents."""
    exponent = size.bit_length() - 1
    share = size / (1 << exponent) - 1
    below = correction(exponent)
    if not share:
        return below
    (value, spread), (more, wider) = below, correction(exponent + 1)
    return Correction(value + (more - value) * share, spread + (wider - spread) * share)
