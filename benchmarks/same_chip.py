"""How far off times are that are carried over from one GPU to another of the same chip.

    python benchmarks/same_chip.py            # from an H200 to an H100

Both were measured by others with one tool (data/points/imported), so that the times of one say how well those of the
other are carried over (chip.predictor.peaks), operator by operator. The 90th percentile gives its SPREAD.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import log

from chip import stats
from chip.hardware import gpus, points
from chip.predictor.estimator import carried_from, estimator_of
from chip.predictor.interpolate import Z90
from chip.predictor.peaks import peaks_of
from chip.predictor.roof import roof_of

FROM, TO = "h200", "h100"
KINDS = ("linear", "attention", "moe_experts", "bmm")


def errors() -> Iterator[tuple[str, str, float]]:
    """Kind, format, and logarithm of carried over measured, of every operator that both have."""
    carried = carried_from(estimator_of(gpus.find(FROM)), roof_of(gpus.find(TO)), peaks_of(gpus.find(TO)))
    for kind in KINDS:
        one, other = (points.read(gpus.IMPORTED / gpu / f"{kind}{points.SUFFIX}") for gpu in (FROM, TO))
        known = {(g.kernel, g.context, g.dtype): dict(zip(g.ops, g.seconds)) for g in other.groups}
        for g in one.groups:
            measured = known.get((g.kernel, g.context, g.dtype), {})
            for op, seconds in zip(g.ops, g.seconds):
                if op in measured:
                    flops, read, written = op.cost()
                    yield kind, g.dtype, log(carried.seconds(op, flops, read + written, seconds) / measured[op])


def main() -> None:
    by = defaultdict[tuple[str, str], list[float]](list)
    for kind, dtype, error in errors():
        by[kind, dtype].append(error)
        by["all", ""].append(error)
    for (kind, dtype), found in sorted(by.items()):
        off = [abs(e) for e in found]
        most = stats.quantile(off, 0.9)
        print(
            f"{kind:12} {dtype:5} {len(off):5} operators: median {stats.median(off):5.1%}, p90 {most:5.1%}, "
            f"bias {stats.median(found):+.1%}, spread {most / Z90:.3f}"
        )


if __name__ == "__main__":
    main()
