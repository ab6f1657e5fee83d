"""Points of operators: their errors when each is predicted from the others."""

from __future__ import annotations

from chip import stats
from chip.hardware import points
from chip.show.report.sources import Opened
from chip.show.report.summary import Summary

SCHEMAS = (points.SCHEMA.rsplit("/", 1)[0],)
ORDER = 1


def collect(opened: Opened, out: Summary) -> int:
    found = points.read(opened.path).groups
    for g in found:
        errors = [abs(e) for e in g.loo]
        if errors:
            out.add(
                "accuracy",
                kind="operator",
                who="chip",
                name=f"{g.kind} ({g.kernel}, {g.dtype})",
                points=len(g.ops),
                median_percent=100 * stats.median(errors),
                p90_percent=100 * stats.quantile(errors, 0.9),
                source=opened.name,
            )
    return len(found)
