"""Nsight Compute's counters of one call beside our own counts of its bytes: achieved DRAM and L2 traffic, and time.

Clocks are left alone. Where the driver keeps its counters to the administrator the tool says so, and so do we.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
import subprocess
from typing import Any

from chip.files import measurements
from chip.hardware.roofline import Roofs, label
from chip.lab.kernels import once
from chip.lab.kernels.subjects import KernelSubject
from chip.types import ChipError, Op

SCHEMA = "chip.kernel_counters/1"
SECONDS = 300
METRICS = {
    "seconds": "gpu__time_duration.sum",
    "dram_read_bytes": "dram__bytes_read.sum",
    "dram_write_bytes": "dram__bytes_write.sum",
    "l2_bytes": "lts__t_bytes.sum",
    "tensor_share": "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
    "issue_share": "sm__inst_issued.avg.pct_of_peak_sustained_active",
}
SCALE = {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "nsecond": 1e-9, "usecond": 1e-6, "msecond": 1e-3,
         "second": 1.0, "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "%": 0.01, "inst": 1.0, "": 1.0}  # fmt: skip


def require() -> str:
    path = shutil.which("ncu") or "/usr/local/cuda/bin/ncu"
    if not os.access(path, os.X_OK):
        raise ChipError("Nsight Compute (ncu) is not installed; it comes with the CUDA toolkit")
    return path


def profile(s: KernelSubject, op: Op, roofs: Roofs | None) -> list[dict[str, Any]]:
    """A row for PyTorch's own and each of our variants: counters summed over the kernels of the call."""
    variants = [s.baseline, *(v.name for v in s.variants if not v.unusable)]
    return [{"kernel": s.name, "variant": v, **_counted(s, v, op, roofs)} for v in variants]


def _counted(s: KernelSubject, variant: str, op: Op, roofs: Roofs | None) -> dict[str, Any]:
    words = [require(), "--clock-control", "none", "--profile-from-start", "off", "--csv", "--page", "raw",
             "--metrics", ",".join(METRICS.values()), *once.command([(s.name, variant, [op])])]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS)
    counters = read(done.stdout, done.stderr)
    cost = op.cost()
    moved = counters["dram_read_bytes"] + counters["dram_write_bytes"]
    point = {
        "call": label(op),
        "op": measurements.record(op),
        "counted_bytes": cost.bytes,  # every input once, every output once
        "flops": cost.flops,
        "dram_bytes": moved,
        "dram_over_counted": moved / cost.bytes,
        "intensity": cost.flops / moved
        if moved
        else 0.0,  # with the bytes that really moved: its place on the roofline
        "flops_per_s": cost.flops / counters["seconds"],
        "dram_bytes_per_s": moved / counters["seconds"],
    }
    if roofs:
        point["share_of_hbm"] = point["dram_bytes_per_s"] / roofs.bandwidth(cost)
    return {**counters, **point}


def read(output: str, talk: str) -> dict[str, Any]:
    """Counters from the tool's CSV: sums over kernels, shares weighted by time."""
    if "ERR_NVGPUCTRPERM" in output + talk:
        raise ChipError(
            "the driver keeps GPU counters to the administrator (ERR_NVGPUCTRPERM); run as root, or ask for "
            "NVreg_RestrictProfilingToAdminUsers=0"
        )
    lines = [line for line in output.splitlines() if line.startswith('"')]
    if len(lines) < 3:
        errors = [line for line in (output + talk).splitlines() if "error" in line.lower()] or ["no kernel was seen"]
        raise ChipError(f"Nsight Compute gave no counters: {errors[0].strip()[:200]}")
    header, units, *rows = csv.reader(io.StringIO("\n".join(lines)))
    kernels: list[dict[str, float]] = []
    names = []
    for row in rows:
        cells = dict(zip(header, zip(row, units)))
        counters = {n: cells.get(m, ("", "")) for n, m in METRICS.items()}
        kernels.append(
            {n: float(cell.replace(",", "") or 0) * SCALE.get(unit, 1.0) for n, (cell, unit) in counters.items()}
        )
        names.append(cells["Kernel Name"][0])
    total_s = sum(k["seconds"] for k in kernels)
    summed = {n: sum(k[n] for k in kernels) for n in METRICS if not n.endswith("_share")}
    shares = {n: sum(k[n] * k["seconds"] for k in kernels) / total_s for n in METRICS if n.endswith("_share")}
    return {**summed, **shares, "kernels": names}
