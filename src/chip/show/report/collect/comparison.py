"""What `chip compare --json` said of two files of runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chip.show.report.pairs import OTHER, REPEAT, add_line
from chip.show.report.sources import Opened
from chip.show.report.summary import Summary

SCHEMAS = ("chip.comparison",)
ORDER = 3


def collect(opened: Opened, out: Summary) -> int:
    for pair in opened.data["pairs"]:
        first, second, scenario = pair["first"], pair["second"], pair["first"]["scenario"]
        about = {"model": first["model"], "first": _who(first), "second": _who(second), "source": opened.name}
        about["point"] = f"pp{scenario['prompt']}+tg{scenario['output']}xb{scenario['batch']}"
        about["kind"] = OTHER if _who(first) != _who(second) else REPEAT
        for line in pair["metrics"]:
            add_line(out, line, **about)
    return len(opened.data["pairs"])


def _who(run: Mapping[str, Any]) -> str:
    return f"{run['engine']} {run['variant']}".strip()
