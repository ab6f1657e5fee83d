"""Times between the tokens of a request as their reader sees them: what tools call inter-token latency (ITL).

They count one value for each chunk after a request's first, over all requests. Many requests get their next token from
one step, so gaps are kept as counts of whole microseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

Gaps = Counter[int]


def add(gaps: Gaps, gap_s: float, count: int) -> None:
    if count:
        gaps[round(gap_s * 1e6)] += count


def seconds(engines: Iterable[Gaps]) -> list[tuple[float, int]]:
    """In order, each with how often it was."""
    every: Gaps = Counter()
    for one in engines:
        every.update(one)
    return [(us / 1e6, n) for us, n in sorted(every.items())]
