"""native and vLLM on one GPU, measured in turn (`benchmarks/native_beside_vllm.py`)."""

from __future__ import annotations

from chip import stats
from chip.report.pairs import IN_TURN
from chip.report.sources import Opened
from chip.report.summary import Summary
from chip.types import Scenario

SCHEMAS = ("chip.benchmark_native_beside_vllm",)
ORDER = 3
METRICS = {"TTFT": "ttft_s", "TPOT": "tpot_s"}


def collect(opened: Opened, out: Summary) -> int:
    about, rows = opened.data["made"], opened.data["rows"]
    for row in rows:
        for metric, key in METRICS.items():
            vllm, native = row[f"vllm_{key}_rounds"], row[f"native_{key}_rounds"]
            verdict = stats.compare(vllm, native)
            out.add(
                "comparisons",
                model=about["model"],
                point=Scenario(row["batch"], row["prompt"], about["output"], "bf16").name,
                kind=IN_TURN,
                first="vllm",
                second="native",
                metric=metric,
                unit="s",
                first_value=stats.median(vllm),
                second_value=stats.median(native),
                ratio=verdict.ratio,
                low=verdict.low,
                high=verdict.high,
                verdict=verdict.verdict,
                source=opened.name,
            )
    return len(rows)
