"""Matrix products per number format: the boost rate, in short bursts with pauses so that the power cap stays out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch

from chip.lab.measure.bench import DTYPES, Bench, ProbeCase, Skip
from chip.lab.measure.device import Device
from chip.lab.measure.journal import Outcome
from chip.lab.measure.stopping import Take
from chip.lab.measure.timing import Call, events, inner_for
from chip.stats import median

FORMATS = ("bf16", "fp16", "fp8", "tf32", "fp32")
FROM = {"tf32": (8, 0), "bf16": (8, 0), "fp8": (8, 9)}  # compute capability


def cases(bench: Bench) -> list[ProbeCase]:
    b = bench.budget
    seconds = (
        len(b.gemm_sizes) * len(b.gemm_layouts) * b.trial.min_samples * (b.burst_gap_s + 3 * b.burst_s)
        + 0.7 * b.burst.max_seconds
    )
    return [
        ProbeCase(f"matmul_{f}", (f"matmul_{f}",), seconds * has_format(bench.device, f), partial(_boost, dtype=f))
        for f in FORMATS
    ]


def has_format(device: Device, dtype: str) -> bool:
    """Whether the hardware multiplies in this format; the emulated rest is no ceiling."""
    capability = device.compute_capability
    if dtype in ("fp32", "fp16"):
        return True
    if capability is None:  # a CPU
        return dtype == "bf16"
    if capability.startswith("gfx"):
        return dtype == "bf16" or capability in ("gfx942", "gfx950")
    return tuple(int(n) for n in capability.split(".")) >= FROM[dtype]


def require_format(device: Device, dtype: str) -> None:
    if not has_format(device, dtype):
        raise Skip(f"no {dtype} matrix product on {device.compute_capability or 'a CPU'}")


@contextmanager
def arithmetic(dtype: str) -> Iterator[None]:
    """fp32 products in full fp32, or in tf32 when that is what is measured."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def product(bench: Bench, dtype: str, size: int, layout: str = "linear") -> Call:
    """size^3 on random normal data. "linear": the second operand transposed, as a layer's weight is; or "plain"."""
    shape = (size, size)
    if dtype == "fp8":
        eight = torch.float8_e4m3fnuz if bench.device.compute_capability == "gfx942" else torch.float8_e4m3fn
        a, b = (bench.normal(shape, torch.bfloat16).to(eight) for _ in range(2))
        one = torch.ones((), device=bench.device.torch_device)
        return lambda: torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)
    a, b = (bench.normal(shape, DTYPES[dtype]) for _ in range(2))
    second = b.t() if layout == "linear" else b
    out = torch.empty_like(a)
    return lambda: torch.mm(a, second, out=out)


def bursts(bench: Bench, call: Call) -> Take:
    """A pause, one call to wake the device, then a short timed burst."""
    device, budget = bench.device, bench.budget
    timed = events(device, [call], max(2, inner_for(device, [call], budget.burst_s, limit=100)))

    def take() -> int:
        time.sleep(budget.burst_gap_s)
        call()
        return timed()

    return timed if device.kind == "cpu" else take


def fits_memory(bench: Bench, size: int) -> bool:
    return 4 * size * size * 4 < bench.device.free_bytes()


def _trials(bench: Bench, dtype: str) -> Iterator[tuple[int, str, float]]:
    """Size, layout and rate of every candidate that memory and patience allow."""
    rate = 0.0
    for size in bench.budget.gemm_sizes:
        if not fits_memory(bench, size) or (rate and 2 * size**3 / rate > bench.budget.call_s):
            continue
        for layout in ("linear",) if dtype == "fp8" else bench.budget.gemm_layouts:
            samples = bench.collect(bursts(bench, product(bench, dtype, size, layout)), bench.budget.trial)
            rate = 2 * size**3 / (median(samples.samples_ns) * 1e-9)
            yield size, layout, rate


def _boost(bench: Bench, dtype: str) -> Outcome:
    require_format(bench.device, dtype)
    with arithmetic(dtype):
        tried = list(_trials(bench, dtype))
        if not tried:
            raise Skip("not enough free memory for the smallest matrix")
        size, layout, _ = max(tried, key=lambda t: t[2])
        call = product(bench, dtype, size, layout)
        samples = bench.collect(bursts(bench, call), bench.budget.burst)
    others = ", ".join(f"{s} {name} {r / 1e12:.4g}" for s, name, r in tried)
    method = f"{size}^3 {layout}, random normal, bursts with pauses, events; best of TFLOP/s: {others}"
    rate = bench.rate(samples, 2 * size**3, "FLOP/s", method)
    return Outcome(ceilings={f"matmul_{dtype}": bench.check_compute(dtype, rate, samples.clocks_hz)})
