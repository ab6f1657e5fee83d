"""How wrong points are at shapes that none of them has: `python benchmarks/unseen_operators.py POINTS MEASUREMENTS...`

POINTS is a folder that `chip fit` wrote (the bundled one: src/chip/data/points/h200), MEASUREMENTS are files of
`chip profile` that it was not made from; a shape that is among the points is left out. By kernel and context: the error
of shapes that take 5 us and more, the part of them within their 90 % interval, and that of shorter ones in us.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from math import exp, log
from pathlib import Path

from chip import stats
from chip.files import measurements
from chip.hardware import points
from chip.lab.measure.fit import medians
from chip.lab.measure.limits import is_sustained
from chip.predictor.clock import Settling
from chip.predictor.interpolate import Z90, Points
from chip.types import ChipError
from chip.units import table

LONG_S = 5e-6  # from here on errors are judged as parts


def main(folder: Path, files: Iterable[str]) -> int:
    found = [m for file in files for m in measurements.read(Path(file))[1]]
    about = points.about(folder / f"linear{points.SUFFIX}")
    times = medians(found, Settling.read(about["settling"]) if "settling" in about else None)
    rows = []
    every: list[float] = []
    for (kind, kernel, dtype, context), measured in sorted(times.items()):
        groups = points.read(folder / f"{kind}{points.SUFFIX}").groups if kind in points.kinds(folder) else ()
        own = [g for g in groups if (g.kernel, g.dtype, g.context) == (kernel, dtype, context)]
        if not own or own[0].base is None:
            continue
        known, asked = {*own[0].ops}, Points(own[0], own[0].base)
        errors, inside, short_us = [], [], []
        for op, seconds in measured.items():
            if op in known or (context == "layer" and is_sustained(op)):  # whose time there is that of `cold`
                continue
            answer = asked.seconds(op)
            if seconds < LONG_S:
                short_us.append(abs(answer.seconds - seconds) * 1e6)
                continue
            errors.append(answer.seconds / seconds - 1)
            inside.append(abs(log(answer.seconds / seconds)) <= Z90 * answer.spread)
        every += errors
        rows.append({
            "operator": kind, "kernel": kernel, "context": context, "shapes": len(errors), **_spread(errors),
            "inside": f"{100 * sum(inside) / len(inside):.0f} %" if inside else "-",
            "below 5 us": len(short_us), "p90, us": f"{stats.quantile(short_us, 0.9):.2f}" if short_us else "-",
        })  # fmt: skip
    print(table(rows, right=("shapes", "median", "p90", "bias", "inside", "below 5 us", "p90, us")))
    found_all = _spread(every)
    print(f"all {len(every)} of 5 us and more: {found_all['median']}, {found_all['p90']} (bias {found_all['bias']})")
    return 0


def _spread(errors: list[float]) -> dict[str, str]:
    if not errors:
        return {"median": "-", "p90": "-", "bias": "-"}
    off = [abs(e) for e in errors]
    bias = exp(stats.median([log(1 + e) for e in errors])) - 1
    return {"median": f"{100 * stats.median(off):.1f} %", "p90": f"{100 * stats.quantile(off, 0.9):.1f} %",
            "bias": f"{100 * bias:+.1f} %"}  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    try:
        sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
    except ChipError as e:
        sys.exit(f"unseen_operators: {e}")
