"""Statistics of samples: order statistics only, because latencies are skewed and have stragglers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


def quantile(samples: Sequence[float], q: float) -> float:
    """Linear interpolation between order statistics, as numpy's default."""
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)
    at = q * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def median(samples: Sequence[float]) -> float:
    return quantile(samples, 0.5)


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Distribution-free interval of the median from order statistics (normal approximation of the binomial)."""
    ordered = sorted(samples)
    n = len(ordered)
    if n < 6:  # even the whole range holds the median with less than 95 %
        return ordered[0], ordered[-1]
    z = {0.90: 1.645, 0.95: 1.960, 0.99: 2.576}[confidence]
    low = max(0, math.floor((n - 1 - z * math.sqrt(n)) / 2))  # with continuity correction: never too narrow
    return ordered[low], ordered[n - 1 - low]


def rising(times: Sequence[float]) -> list[float]:
    """The times made to never fall: between the largest so far and the least to come, halfway."""
    above, below = [], []
    most, least = 0.0, float("inf")
    for t in times:
        most = max(most, t)
        above.append(most)
    for t in reversed(times):
        least = min(least, t)
        below.append(least)
    return [math.sqrt(a * b) for a, b in zip(above, reversed(below))]


def noise(samples: Sequence[float]) -> float:
    """Half-width of the median's interval over the median: 0.005 means the median is known to 0.5 %."""
    low, high = median_interval(samples)
    mid = median(samples)
    return (high - low) / 2 / mid if mid else 0.0


def outliers(samples: Sequence[float], k: float = 5.0) -> list[int]:
    """Indices further than k robust deviations from the median: flagged, never removed."""
    mid = median(samples)
    mad = median([abs(s - mid) for s in samples])
    scale = max(1.4826 * mad, 0.01 * abs(mid))
    return [i for i, s in enumerate(samples) if abs(s - mid) > k * scale]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Second against first: `faster`, `slower` or `unclear`, with the evidence."""

    verdict: str
    ratio: float
    low: float
    high: float


def compare(first: Sequence[float], second: Sequence[float], threshold: float = 0.01) -> Verdict:
    """Is `second` faster than `first`? Unclear unless the intervals of the medians leave a gap over the threshold."""
    a_low, a_high = median_interval(first)
    b_low, b_high = median_interval(second)
    ratio, low, high = median(second) / median(first), b_low / a_high, b_high / a_low
    if high < 1 and ratio < 1 - threshold:
        word = "faster"
    elif low > 1 and ratio > 1 + threshold:
        word = "slower"
    else:
        word = "unclear"
    return Verdict(word, ratio, low, high)
