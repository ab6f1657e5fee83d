"""Steps of decodes alone, many at once: each takes a little longer than the last, by the same amount."""

from __future__ import annotations

from math import ceil, inf, sqrt


def total_s(first: float, slope: float, count: int) -> float:
    """Of `count` steps."""
    return count * first + slope * count * (count - 1) / 2


def steps_until(first: float, slope: float, room_s: float) -> int:
    """The least number of steps that take at least so long."""
    if room_s <= 0:
        return 0
    if room_s == inf:
        return 1 << 60
    if slope <= 1e-15:
        return ceil(room_s / first)
    b = first - slope / 2
    count = ceil((sqrt(b * b + 2 * slope * room_s) - b) / slope)
    while count > 0 and total_s(first, slope, count - 1) >= room_s:
        count -= 1
    while total_s(first, slope, count) < room_s:
        count += 1
    return count
