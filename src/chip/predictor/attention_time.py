"""The time of attention with given heads, for any number of sequences, queries and keys.

Attention under a window takes a part of the time over all keys that the queries see between them: the part of its pairs
of query and key that the window leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp

from chip.ops.attention import AnyAttention
from chip.predictor.interpolate import UNKNOWN_SPREAD, Correction, CorrectionCurve, Points
from chip.predictor.kernels import BORROWED_SPREAD
from chip.predictor.operator_time import KernelTime, OperatorTime, weighted_sum
from chip.types import Op


class AttentionTime:
    def __init__(self, kernel: KernelTime, op: AnyAttention, of_parts: Callable[[Op], OperatorTime]) -> None:
        """`of_parts`: the time of an operator of several kernels as the sum of theirs."""
        self._kernel, self._one = kernel, op.sized(1, 1, 1)
        self._of_parts = of_parts if op.parts() else None
        bases = [kernel.points.base] if kernel.points else kernel.bases
        self._base, *self._bounds = [base.over(self._one.sized) for base in bases]
        self._curves: dict[tuple[Callable[..., tuple[int, int, int]], float], CorrectionCurve] = {}

    def time(self, op: AnyAttention) -> OperatorTime:
        """The same heads over the sizes of `op`."""
        whole, points = op.unwindowed(), self._kernel.points
        if self._of_parts is not None and (points is None or whole is not op):
            return self._of_parts(op)
        flops, read, written = op.cost()
        part = 1.0 if whole is op else flops / whole.cost().flops
        sizes = whole.batch, whole.q_len, whole.kv_len
        seconds = part * self._base(*sizes)
        if points is None:
            fast_s, slow_s = [part * base(*sizes) for base in self._bounds]
            return self._kernel.timed(seconds, fast_s, slow_s, flops, read + written)
        value, spread = self._correction(points, whole)
        if part < 1:
            spread += BORROWED_SPREAD / 2
        return self._kernel.interpolated(seconds * exp(value), spread, flops, read + written)

    def mean_time(self, op: AnyAttention) -> OperatorTime:
        """The mean over decode steps whose context grows key by key, where the time depends on the keys' alignment."""
        lengths = op.lengths()
        if len(lengths) == 1:
            return self.time(op)
        flops, read, written = op.cost()
        mean = weighted_sum([(self.time(each), part) for each, part in lengths])
        return mean._replace(flops=flops, bytes=read + written)

    def _correction(self, points: Points, op: AnyAttention) -> Correction:
        form = op.form()
        if form is None:
            return Correction(0.0, UNKNOWN_SPREAD)
        at, sizes = form
        key = at, op.alignment
        if key not in self._curves:
            one, alignment = self._one, op.alignment
            self._curves[key] = points.curve((one, *key), lambda *nodes: one.sized(*at(*nodes)).aligned(alignment))
        return self._curves[key].at(sizes)
