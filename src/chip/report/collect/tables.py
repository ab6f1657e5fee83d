"""Operator tables of `chip fit`: their errors on shapes they had not seen."""

from __future__ import annotations

from chip.predict.estimator import read_tables
from chip.report.sources import Opened
from chip.report.summary import Summary

SCHEMAS = ("chip.operator_tables",)
ORDER = 1


def collect(opened: Opened, out: Summary) -> int:
    found = read_tables(opened.path).operators
    for t in found:
        out.add(
            "accuracy",
            kind="operator",
            who="chip",
            name=f"{t.op} ({t.implementation}, {t.dtype})",
            points=t.points,
            median_percent=100 * t.median_error,
            p90_percent=100 * t.p90_error,
            source=opened.name,
        )
    return len(found)
