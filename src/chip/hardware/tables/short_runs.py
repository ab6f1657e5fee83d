"""The clock under which the tables were timed, and the clock that a GPU settles at, as far as they tell.

A call is timed after three runs, over six: a short one at the clock of a rested GPU. SGLang's collector puts six
weights into a run, so that long ones are timed at the clock that the power limit allows. The operands of its products
in bf16 are random, and so are TensorRT-LLM's; the weights of vLLM's were never set, and zeros draw little power.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

from chip import stats
from chip.hardware.tables.points_csv import Row

WEIGHTS = 6  # products, one after the other, that a timed run of SGLang and vLLM consists of
SCALED = "scaled_linear"  # the products in 8 and 4 bits, which are vLLM's
FIRST, LAST = 3, 9  # runs before the first one that counts, and until the last
# Of large products, seconds of one call: of those that a GPU does rested, and at its settled clock.
RESTED_S, SETTLED_S = (1e-4, 3e-4), (1e-2, 1.0)
LARGE_M, LARGE_AXIS = 1024, 2048
BEST = 0.9  # quantile of their rates: shapes that fill the GPU, whose rate the clock alone sets


def calls(kind: str) -> tuple[int, int]:
    """Calls of an operator before the first that counts, and until the last."""
    each = WEIGHTS if kind == SCALED else 1
    return FIRST * each, LAST * each


def settling(rows: Sequence[Row], time_s: float) -> tuple[float, float] | None:
    """From SGLang's products in bf16: the FLOP/s of long ones, and the part of their time that they would save on a
    rested GPU, whose clock falls with the time constant `time_s`. None where no product was long enough."""
    large = [
        (2.0 * m * n * k / (row.us * 1e-6), row.us * 1e-6)
        for row in rows
        for m, n, k in (row.at,)
        if m >= LARGE_M and min(n, k) >= LARGE_AXIS
    ]
    rested, settled = (
        [rate for rate, seconds in large if low <= seconds < high] for low, high in (RESTED_S, SETTLED_S)
    )
    if not rested or not settled:
        return None
    start, end = (count * WEIGHTS * stats.median(RESTED_S) / time_s for count in (FIRST, LAST))
    decay = (exp(-start) - exp(-end)) / (end - start)
    slower = 1 - stats.quantile(settled, BEST) / stats.quantile(rested, BEST)
    return stats.median(settled), max(0.0, slower) / decay
