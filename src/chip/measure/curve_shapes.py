"""Reading measured curves: the knee of bandwidth against working set, the staircase of time against tiles. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from chip.stats import median

PLATEAU = 0.9  # share of the plateau's height that still belongs to it
LEAST_DROP = 1.25  # a plateau less than this above memory is not a cache


@dataclass(frozen=True)
class Knee:
    """Where a bandwidth curve leaves its cache plateau for good."""

    at: float  # working set at which 90 % of the plateau is left
    low: float  # the measured points on either side
    high: float
    upper: float  # height of the cache's plateau
    lower: float  # height of the memory's


def find_knee(x: Sequence[float], y: Sequence[float]) -> Knee | None:
    """From the data alone: plateau heights first, then the last crossing of 90 % of the upper one, on a log axis.

    The plateau is the median of all working sets clearly faster than memory: the smallest ones may be faster still (on
    an H200 up to about 3 MB) or slower (ramps), and neither is where the cache ends.
    """
    points = sorted(zip(x, y))
    if len(points) < 5:
        return None
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    lower = median(ys[-2:])
    cached = [v for v in ys if v >= LEAST_DROP * lower]
    if len(cached) < 3:
        return None
    upper = median(cached)
    edge = PLATEAU * upper
    last = max(i for i, v in enumerate(ys) if v >= edge)
    if last + 1 >= len(xs):
        return None
    share = (ys[last] - edge) / (ys[last] - ys[last + 1])
    at = math.exp(math.log(xs[last]) + share * (math.log(xs[last + 1]) - math.log(xs[last])))
    return Knee(at, xs[last], xs[last + 1], upper, lower)


@dataclass(frozen=True)
class Staircase:
    """time = ramp + waves x per wave, waves = ceil(tiles / tiles per wave)."""

    tiles_per_wave: int
    per_wave: float
    low: float
    high: float
    ramp: float
    explained: float  # share of the variance


def fit_staircase(tiles: Sequence[int], times: Sequence[float], widths: Sequence[int]) -> Staircase:
    """Least squares for every width of a wave; the interval is that of fits on thirds of the points left out."""
    fits = {w: _line([math.ceil(t / w) for t in tiles], times) for w in widths}
    width = min(fits, key=lambda w: fits[w][2])
    ramp, per_wave, squares = fits[width]
    mean = sum(times) / len(times)
    total = sum((t - mean) ** 2 for t in times)
    parts = [per_wave]
    for part in range(3):
        kept = [(math.ceil(n / width), t) for i, (n, t) in enumerate(zip(tiles, times)) if i % 3 != part]
        parts.append(_line([k[0] for k in kept], [k[1] for k in kept])[1])
    return Staircase(width, per_wave, min(parts), max(parts), ramp, 1 - squares / total if total else 0.0)


def _line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float]:
    """Intercept, slope and sum of squared residuals."""
    n = len(x)
    mean_x, mean_y = sum(x) / n, sum(y) / n
    spread = sum((a - mean_x) ** 2 for a in x)
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y)) / spread if spread else 0.0
    intercept = mean_y - slope * mean_x
    return intercept, slope, sum((b - intercept - slope * a) ** 2 for a, b in zip(x, y))
