"""native and vLLM on one GPU, measured in turn (`benchmarks/native_beside_vllm.py`)."""

from __future__ import annotations

from chip import stats
from chip.files import codec
from chip.show.report.pairs import IN_TURN, add_line
from chip.show.report.sources import Opened
from chip.show.report.summary import Summary
from chip.types import Scenario

SCHEMAS = ("chip.benchmark_native_beside_vllm",)
ORDER = 3
METRICS = {"TTFT": "ttft_s", "TPOT": "tpot_s"}


def collect(opened: Opened, out: Summary) -> int:
    made, rows = opened.data["made"], opened.data["rows"]
    for row in rows:
        point = Scenario(row["batch"], row["prompt"], made["output"], "bf16").name
        about = {"model": made["model"], "point": point, "kind": IN_TURN, "source": opened.name}
        for metric, key in METRICS.items():
            vllm, native = row[f"vllm_{key}_rounds"], row[f"native_{key}_rounds"]
            line = {"metric": metric, "unit": "s", "first": stats.median(vllm), "second": stats.median(native)}
            line |= codec.to_json(stats.compare(vllm, native))
            add_line(out, line, **{**about, "first": "vllm", "second": "native"})
    return len(rows)
