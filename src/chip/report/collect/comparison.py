"""What `chip compare --json` said of two files of runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chip.report.pairs import OTHER, REPEAT
from chip.report.sources import Opened
from chip.report.summary import Summary

SCHEMAS = ("chip.comparison",)
ORDER = 3


def collect(opened: Opened, out: Summary) -> int:
    for pair in opened.data["pairs"]:
        first, second = pair["first"], pair["second"]
        scenario = first["scenario"]
        for line in pair["metrics"]:
            out.add(
                "comparisons",
                model=first["model"],
                point=f"pp{scenario['prompt']}+tg{scenario['output']}xb{scenario['batch']}",
                kind=OTHER if _who(first) != _who(second) else REPEAT,
                first=_who(first),
                second=_who(second),
                metric=line["metric"],
                unit=line["unit"],
                first_value=line["first"],
                second_value=line["second"],
                ratio=line["ratio"],
                low=line["low"],
                high=line["high"],
                verdict=line["verdict"],
                source=opened.name,
            )
    return len(opened.data["pairs"])


def _who(run: Mapping[str, Any]) -> str:
    return f"{run['engine']} {run['variant']}".strip()
