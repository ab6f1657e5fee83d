"""What `chip validate` shows of live traffic: each run and figure, and the median errors over runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chip.cli.text import number, percent, table


def gpus(p: Mapping[str, Any]) -> int:
    return int(max(p["tp"], p["ep"]))


def render(a: Mapping[str, Any]) -> str:
    rows = [
        {
            "gpu": f"{gpus(p)} x {p['gpu']}" if gpus(p) > 1 else p["gpu"],
            "model": p["model"],
            "workload": p["workload"],
            "rate/s": f"{p['rate_per_s']:.4g}" if p["rate_per_s"] else "at once",
            "metric": p["metric"].replace("_ms.", " ").replace("output_tokens_per_s", "tok/s"),
            "measured": number(p["measured"], 4),
            "simulated": number(p["predicted"], 4),
            "error": f"{100 * p['error']:+.1f} %",
            "in the interval": {True: "yes", False: "no", None: "-"}[p["inside"]],
            "by request": f"{percent(p['by_request']['median'])}, {percent(p['by_request']['p90'])}"
            if "by_request" in p
            else "",
        }
        for p in a["points"]
    ]
    over = [
        {
            "metric": m["metric"],
            "runs": str(m["runs"]),
            "median error": percent(m["median_error"]),
            "worst": percent(m["worst_error"]),
            "bias": f"{100 * m['bias']:+.1f} %",
            "target": percent(m["target"]) if m["target"] else "-",
            "met": {True: "yes", False: "no", None: "-"}[m["met"]],
        }
        for m in a["metrics"]
    ]
    right = (
        "measured",
        "simulated",
        "error",
        "runs",
        "median error",
        "worst",
        "bias",
        "target",
        "rate/s",
        "by request",
    )
    return f"{table(rows, right=right)}\n\n{table(over, right=right, keep=tuple(over[0]))}"
