"""Reading measured curves: the knee of bandwidth against working set, the staircase of time against tiles. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import linear_regression
from typing import NamedTuple

from chip.stats import median

PLATEAU = 0.9  # share of the plateau's height that still belongs to it
LEAST_DROP = 1.25  # a plateau less than this above memory is not a cache


class Knee(NamedTuple):
    """Where a bandwidth curve leaves its cache plateau for good."""

    at: float  # working set at which 90 % of the plateau is left
    low: float  # the measured points on either side
    high: float


def find_knee(x: Sequence[float], y: Sequence[float]) -> Knee | None:
    """From the data alone: plateau heights first, then the last crossing of 90 % of the upper one, on a log axis.

    The plateau is the median of all working sets clearly faster than memory: the smallest ones may be faster still (on
    an H200 up to about 3 MB) or slower (ramps), and neither is where the cache ends.
    """
    points = sorted(zip(x, y))
    if len(points) < 5:
        return None
    xs, ys = zip(*points)
    cached = [v for v in ys if v >= LEAST_DROP * median(ys[-2:])]
    if len(cached) < 3:
        return None
    edge = PLATEAU * median(cached)
    last = max(i for i, v in enumerate(ys) if v >= edge)
    if last + 1 >= len(xs):
        return None
    share = (ys[last] - edge) / (ys[last] - ys[last + 1])
    return Knee(xs[last] ** (1 - share) * xs[last + 1] ** share, xs[last], xs[last + 1])


class Staircase(NamedTuple):
    """time = ramp + waves x per wave, waves = ceil(tiles / tiles per wave)."""

    tiles_per_wave: int
    per_wave: float
    low: float
    high: float
    ramp: float
    explained: float  # share of the variance


def fit_staircase(tiles: Sequence[int], times: Sequence[float], widths: Sequence[int]) -> Staircase:
    """Least squares for every width of a wave; the interval is that of fits on thirds of the points left out."""
    lines = {w: _line([math.ceil(t / w) for t in tiles], times) for w in widths}
    width = min(lines, key=lambda w: lines[w][2])
    per_wave, ramp, squares = lines[width]
    mean = sum(times) / len(times)
    total = sum((t - mean) ** 2 for t in times)
    parts = [per_wave]
    for part in range(3):
        rest = [(math.ceil(n / width), t) for i, (n, t) in enumerate(zip(tiles, times)) if i % 3 != part]
        parts.append(_line(*zip(*rest))[0])
    return Staircase(width, per_wave, min(parts), max(parts), ramp, 1 - squares / total if total else 0.0)


def _line(waves: Sequence[int], times: Sequence[float]) -> tuple[float, float, float]:
    """Slope, intercept and sum of squared residuals; flat where all is one wave."""
    slope, intercept = linear_regression(waves, times) if len(set(waves)) > 1 else (0.0, sum(times) / len(times))
    return slope, intercept, sum((t - intercept - slope * n) ** 2 for n, t in zip(waves, times))
