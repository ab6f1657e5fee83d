"""A step explained: the sum of its kernels against the whole, as `chip explain` reports it."""

from __future__ import annotations

from chip.show.report.sources import Opened
from chip.show.report.summary import Summary

SCHEMAS = ("chip.comparison_report",)
ORDER = 3
TIER = ("method", "unique_kernels", "launches", "captured_us", "total_us")
KERNEL = ("kernel", "tier", "launches", "captured_us", "replayed_us", "error_percent")


def collect(opened: Opened, out: Summary) -> int:
    data = opened.data
    kernels, energy = data.get("kernels") or {}, data.get("energy") or {}
    same = {"title": data["title"], "source": opened.name}
    out.add(
        "replays",
        device=data["device"],
        whole=data["full_model"],
        full_model_us=data["full_model_inference_us"],
        from_kernels_us=data["predicted_from_kernels_us"],
        error_percent=data["error_percent"],
        busy_error_percent=data.get("error_percent_gpu_busy"),
        unexplained_percent=data["unexplained_percent"],
        launches_covered=data["coverage"]["launches"],
        time_covered=data["coverage"]["gpu_time"],
        kernel_error_percent=kernels.get("median_abs_error_percent"),
        kernel_error_us=kernels.get("median_abs_error_us"),
        same_kernel=data["tier_breakdown"]["tier2_cublas"].get("same_kernel_share"),
        energy_low_percent=energy.get("kernels_error_percent"),
        energy_high_percent=energy.get("error_percent"),
        **same,
    )
    for name, tier in data["tier_breakdown"].items():
        out.add("replay_tiers", tier=name, **{key: tier[key] for key in TIER}, **same)
    for order, term in enumerate(data["breakdown"], 1):
        total = bool(term.get("total"))
        out.add("replay_terms", order=order, term=term["label"], us=term["us"], total=total, **same)
    for kernel in data["worst_kernels"]:
        out.add("replay_kernels", **{key: kernel[key] for key in KERNEL}, **same)
    return 1
