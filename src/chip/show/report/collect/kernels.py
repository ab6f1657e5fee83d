"""Kernels of our own beside what PyTorch ships, as `chip kernels bench` timed them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chip.files import measurements
from chip.hardware import roofline
from chip.show.report.sources import Opened
from chip.show.report.summary import Summary

SCHEMAS = ("chip.kernel_bench",)
ORDER = 3


def collect(opened: Opened, out: Summary) -> int:
    data = opened.data
    rows = data["rows"]
    timed = {_key(r): r for r in rows}
    of_roof = {(one["call"], rung["rung"]): rung["of_roof"] for one in data["ladder"] for rung in one["rungs"]}
    own: dict[tuple[str, str, str], float | None] = {}  # PyTorch's way, which is timed first
    for r in rows:
        own.setdefault(_key(r, "any"), r["p50_s"])
        if r["ours"] and r["measurement"]["status"] == "ok":
            theirs = timed.get(_key(r, r["against"]))
            _kernel(out, opened.name, data["kernel"], r, theirs, own[_key(r, "any")], of_roof)
    return len(rows)


def _key(row: Mapping[str, Any], implementation: str = "") -> tuple[str, str, str]:
    m = row["measurement"]
    return measurements.key(m["op"], implementation or m["implementation"], m["context"])


def _kernel(
    out: Summary,
    source: str,
    kernel: str,
    r: Mapping[str, Any],
    baseline: Mapping[str, Any] | None,
    pytorch_s: float | None,
    of_roof: Mapping[tuple[str, str], float | None],
) -> None:
    m = r["measurement"]
    op = measurements.operator(m["op"])
    cost, name, shape = op.cost(), m["implementation"], roofline.label(op)
    theirs = baseline or {}
    out.add(
        "kernels",
        kernel=kernel,
        step="" if name == "triton" else name.removeprefix(f"{kernel}_"),
        language="triton" if name == "triton" else "cuda",
        shape=shape.removeprefix(f"{op.kind} ").removesuffix(f" {m['op'].get('dtype')}"),
        dtype=m["op"].get("dtype"),
        device=m["device"],
        baseline=r["against"],
        baseline_p50_us=_us(theirs.get("p50_s")),
        baseline_p95_us=_us(theirs.get("p95_s")),
        optimised_p50_us=_us(r["p50_s"]),
        optimised_p95_us=_us(r["p95_s"]),
        speedup_p50=r["speedup_p50"],
        speedup_p95=r["speedup_p95"],
        verdict=r["verdict"],
        max_abs_error=r["max_error"],
        flops=cost.flops,
        bytes=cost.bytes,
        intensity=cost.intensity,
        flops_per_s=r["flops_per_s"],
        baseline_flops_per_s=theirs.get("flops_per_s"),
        bytes_per_s=r["bytes_per_s"],
        share_of_roof=of_roof.get((shape, name), r["share_of_copy"]),
        joules_per_call=r["joules"],
        pytorch_p50_us=_us(pytorch_s),
        over_pytorch=pytorch_s / r["p50_s"] if pytorch_s else None,
        source=source,
    )


def _us(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e6
