"""Answers for operators that differ in tokens or in sequences: what one model asks for again and again.

An operator that grows with tokens lies on a curve, attention on a sheet over sequences and context. Both are worked out
once, so that a step of another size is a look-up.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import exp, inf

from chip.ops.attention import AnyAttention, Form
from chip.ops.collective import Collective
from chip.predict.estimator import Estimator
from chip.predict.interpolate import Z90, TimeCurve
from chip.predict.kernel_points import MOST_CURVES, grown
from chip.predict.limits import INTERPOLATED, Answer, added, at_least
from chip.predict.sheet import COARSE, FINE, SPARSE, BaseSheet, Sheet
from chip.types import Op, Seq

AlongTokens = Callable[[int], Answer]
OverSequences = Callable[[Seq], Answer]


def along(e: Estimator, op: Op) -> AlongTokens:
    """For an operator lowered for one token: its answer for any number of tokens."""
    make = grown(op)
    plain = getattr(op, "plain", None)  # a fused kernel that was not measured: as the one it grew from
    if plain is not None and e.kernels.of(op) is None:
        return along(e, plain)
    if isinstance(op, Collective) or op.parts():
        return lambda tokens: e(make(tokens))
    like, points = op.like_measured(), e.kernels.of(op)
    if like is None or points is None:
        return _base_along(e, op, make)
    work, answered = _work_along(op), e.answering(op, INTERPOLATED)
    curve: TimeCurve | None = None

    def at(tokens: int) -> Answer:
        nonlocal curve
        if curve is None:
            curve = e.kernels.curve(like, points)
        seconds, spread, held_s = curve.at(tokens)
        off = exp(Z90 * spread)
        flops, moved = work(tokens)
        return answered(seconds, seconds / off, seconds * off, flops, moved, held_s)

    return at


def _base_along(e: Estimator, op: Op, make: Callable[[int], Op]) -> AlongTokens:
    """Of an operator without points."""
    value, fast, slow = (base.over(make) for base in e.bases.of(op, ""))
    work, answered = _work_along(op), e.answering(op, e.roof.source)

    def at(tokens: int) -> Answer:
        flops, moved = work(tokens)
        return answered(value(tokens), fast(tokens), slow(tokens), flops, moved, 0.0)

    return at


def over(e: Estimator, op: Op) -> OverSequences:
    """For attention and what else depends on sequences: its answer for any of them, from sheets over two sizes."""
    plain = getattr(op, "plain", None)
    if plain is not None and e.kernels.of(op) is None:
        return over(e, plain)
    sheets: dict[object, Sheet | BaseSheet | None] = {}
    answered, based = e.answering(op, INTERPOLATED), e.answering(op, e.roof.source)
    # a step reads the weights of all layers before it comes to the same cache again, so that L2 has none of it
    memory = e.peaks.bytes_per_s if e.of_engine else inf
    held_s, place = e.kernels.held_s(op), op.placing(e.kernels.has)

    def at(seq: Seq) -> Answer:
        found = asked(seq)
        return at_least(found, found[6] / memory) if seq.new == 1 else found

    def asked(seq: Seq) -> Answer:
        placed = place(seq)
        if not isinstance(placed, AnyAttention):
            return e.at_once(placed)
        form = placed.form()
        if form is None:
            growing = seq.new == 1 and not seq.slots
            flops, read, written = placed.cost()
            found = added([(e.at_once(op), part) for op, part in (placed.lengths() if growing else ((placed, 1.0),))])
            return *found[:5], flops, read + written, found[7]
        key = placed.kind, form.name
        if key not in sheets:
            sheets[key] = _sheet(e, placed, form)
        sheet = sheets[key]
        if sheet is None:
            return e.at_once(placed)
        flops, read, written = placed.cost()
        if isinstance(sheet, BaseSheet):
            return based(*sheet(*form.sizes), flops, read + written, 0.0)
        seconds, spread = sheet.at(*form.sizes)
        if form.like:
            seconds *= sheet.base(*form.like) / sheet.base(*form.at(*form.sizes))
        off = exp(Z90 * spread)
        return answered(seconds, seconds / off, seconds * off, flops, read + written, held_s(flops, seconds))

    return at


def _sheet(e: Estimator, op: AnyAttention, form: Form) -> Sheet | BaseSheet | None:
    """Models whose heads are alike share it. None for what is asked for as it is: bases under a mask never fall."""
    key = op.sized(1, 1, 1), form.name
    found = e.sheets.get(key)
    if found is None:
        points = e.kernels.of(op)
        if points:
            counts = FINE if form.name == "single" else SPARSE if form.name == "chunk" else COARSE
            found = Sheet(op.sized, form.at, points.base.over(op.sized), counts, points, form.place)
        elif not op.CUTS:
            return None
        else:
            found = BaseSheet(op.sized, form.at, *(base.over(op.sized) for base in e.bases.of(op, "")))
        if len(e.sheets) >= MOST_CURVES:
            e.sheets.clear()
        e.sheets[key] = found
    return found


@lru_cache(maxsize=MOST_CURVES)  # every GPU of a ranking is asked for the same
def _work_along(op: Op) -> Callable[[int], tuple[float, float]]:
    """FLOPs and bytes of an operator lowered for one token, for any number of tokens."""
    make = grown(op)
    (f1, b1), (f2, b2), (f4, b4) = ((c[0], c[1] + c[2]) for c in (make(n).cost() for n in (1, 2, 4)))
    if (f4 - f2, b4 - b2) != (2 * (f2 - f1), 2 * (b2 - b1)):

        def work(tokens: int) -> tuple[float, float]:
            flops, read, written = make(tokens).cost()
            return flops, read + written

        return work
    per_token, per_byte, flops_0, bytes_0 = f2 - f1, b2 - b1, 2 * f1 - f2, 2 * b1 - b2
    return lambda tokens: (flops_0 + per_token * tokens, bytes_0 + per_byte * tokens)
