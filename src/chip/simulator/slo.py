"""What users are promised: `ttft=500ms,tpot=40ms` of each request, or `ttft_p99=500ms` of a percentile of them."""

from __future__ import annotations

import re
from typing import NamedTuple

from chip.types import ChipError

METRICS = ("ttft", "tpot", "e2e", "queue")
PERCENTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
UNITS = {"ms": 1e-3, "s": 1.0, "us": 1e-6}
_WORD = re.compile(r"(\w+?)(?:_(p50|p90|p95|p99))?=([0-9.eE+-]+)(ms|us|s)$")


class Target(NamedTuple):
    metric: str
    percentile: str  # "" where it is of each request
    seconds: float

    @property
    def name(self) -> str:
        return f"{self.metric}_{self.percentile}" if self.percentile else self.metric

    def __str__(self) -> str:
        return f"{self.name}={self.seconds * 1e3:g}ms"


def parse(text: str, percentiles: bool) -> tuple[Target, ...]:
    """`percentiles`: whether targets are of percentiles (then p99 where none is named) or of each request."""
    found = []
    for word in (w.strip() for w in text.split(",")):
        match = _WORD.match(word)
        example = "ttft_p99=500ms,tpot_p99=40ms" if percentiles else "ttft=500ms,tpot=40ms"
        if not match or match[1] not in METRICS:
            raise ChipError(f"--slo {word[:40]!r}: must be like {example}; of {', '.join(METRICS)}, in ms, us or s")
        try:
            seconds = float(match[3]) * UNITS[match[4]]
        except ValueError:
            seconds = -1.0
        if not 0 < seconds < 1e9:
            raise ChipError(f"--slo {word[:40]!r}: must be a time above 0")
        if match[2] and not percentiles:
            raise ChipError(f"--slo {word[:40]!r}: here a target is of each request, without a percentile: {example}")
        found.append(Target(match[1], (match[2] or "p99") if percentiles else "", seconds))
    return tuple(found)
