"""docs/concepts.md: what the prototypes' factors are in a prediction, from the bundled points and profile of an H200.

What a factor buys is seen by taking it away: the error of base times over all points of their kernels, with the number
as it is fitted and with the value at which it does nothing, all other numbers as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from math import exp, inf, log

from chip import stats
from chip.hardware import gpus, points
from chip.hardware.points import PointGroup
from chip.ops import BaseTime
from chip.predictor import estimator
from chip.predictor.estimator import Estimator
from chip.predictor.peaks import peaks_of
from chip.predictor.roof import roof_of
from chip.predictor.stages import Stage
from chip.validate import judge
from chip.validate.judge import Validation
from chip.validate.points import Point
from doc_figures.accuracy import RECORDS, class_of

GPU = "h200"
QUANTISED = (
    "add_rms_norm_quant", "fp8_attention", "kv_append_fp8", "packed_experts", "packed_linear", "quantize",
    "rms_norm_quant", "scaled_experts", "scaled_linear", "silu_mul_quant",
)  # fmt: skip


@cache
def _group(kind: str, kernel: str, context: str) -> PointGroup:
    found = points.read(gpus.POINTS / GPU / f"{kind}.csv").groups
    return next(g for g in found if (g.kernel, g.context, g.dtype) == (kernel, context, "bf16"))


def _error(base: BaseTime, of: PointGroup) -> str:
    """Median and 90th percentile of how far off base times are, whichever way."""
    off = [exp(abs(log(base.seconds(op) / s))) - 1 for op, s in zip(of.ops, of.seconds)]
    return f"{100 * stats.median(off):.1f} %, {100 * stats.quantile(off, 0.9):.0f} %"


def _numbers(kind: str, kernel: str, context: str, **neutral: float) -> tuple[str, str, str]:
    of = _group(kind, kernel, context)
    assert of.base is not None
    return f"{len(of.ops)} of {kind}", _error(of.base, of), _error(replace(of.base, **neutral), of)


def _written() -> tuple[str, str, str]:
    """Sums of what was just written, by what was fitted to those that read from memory."""
    hot, cold = (_group("add", "torch", context) for context in ("hot", "cold"))
    assert hot.base is not None
    assert cold.base is not None
    return f"{len(hot.ops)} of add, in cache", _error(hot.base, hot), _error(cold.base, hot)


def _tensor_cores() -> tuple[str, str, str]:
    peak = gpus.find(GPU).profile.ceilings["matmul_bf16"].value  # type: ignore[union-attr]
    return _numbers("linear", "torch", "cold", flop_per_s=peak)


def _curve(name: str, at: Callable[[float], str], least: float, most: float) -> str:
    """The ends of a measured curve between two x."""
    curve = gpus.find(GPU).profile.curves[name]  # type: ignore[union-attr]
    inside = [(x, y) for x, y in zip(curve.x, curve.y) if least <= x <= most]
    (x1, y1), (x2, y2) = inside[0], inside[-1]
    return f"{at(y1)} at {_size(x1)} to {at(y2)} at {_size(x2)}"


def _size(count: float) -> str:
    return f"{count / 2**20:.0f} MiB" if count >= 2**20 else f"{count:.0f}"


def _share(value: float) -> str:
    return f"{value:.2f}"


def rows() -> Iterator[str]:
    yield "| factor | its curve on an H200 | where it enters | points | with it | without |"
    yield "|---|---|---|---|---|---|"
    terabytes, us = (lambda v: f"{v / 1e12:.1f} TB/s"), (lambda v: f"{1e6 * v:.0f} us")
    for name, curve, enters, (what, with_it, without) in (
        (
            "write to read", "`turnaround_by_chunk`: " + _curve("turnaround_by_chunk", _share, 0, inf),
            "passes over what was just written are timed so, and have a base time of their own", _written(),
        ),
        (
            "SM staircase", "`staircase`: " + _curve("staircase", us, 60, 140) + " tiles",
            "`fill` and `split_k` of products: how far few tiles leave SMs idle; `imbalance` of attention",
            _numbers("linear", "torch", "cold", fill=0.0),
        ),
        (
            "the same, attention", "", "`imbalance`: how much of the last wave counts",
            _numbers("attention", "fa3", "layer", imbalance=0.0),
        ),
        (
            "tensor-core utilisation", "`matmul_bf16`, boost and settled",
            "`flop_per_s` of each kernel, not a share of a ceiling", _tensor_cores(),
        ),
        (
            "irregular sizes", "", "whole tiles; `odd_heads`: heads that a kernel pads",
            _numbers("attention", "fa3", "layer", odd_heads=1.0),
        ),
        (
            "hierarchy", "`read_by_working_set`: " + _curve("read_by_working_set", terabytes, 2**23, 2**31),
            "`late`, `knee_bytes` of passes: what comes from memory instead of cache",
            _numbers("rms_norm", "compiled", "hot", late=0.0),
        ),
        (
            "the same, attention", "", "`stream_bytes_per_s`: what SMs take in together, from wherever",
            _numbers("attention", "fa3", "layer", stream_bytes_per_s=1e30),
        ),
    ):  # fmt: skip
        yield f"| {name} | {curve} | {enters} | {what} | {with_it} | {without} |"


# --- what a calibration alone predicts
OF_METRIC = {"tpot": "vLLM TPOT, GPU-bound", "ttft": "vLLM TTFT, >= 4096 tokens"}


def of_runs(metric: str) -> str:
    """Median and 90th percentile of a class of vLLM's runs."""
    title = OF_METRIC[metric]
    off = [abs(p.error) for p in _judged().points if class_of(title).has(p)]
    return f"{100 * stats.median(off):.1f} %, {100 * stats.quantile(off, 0.9):.1f} %"


@cache
def _judged() -> Validation:
    return judge.judge(judge.read([RECORDS / "runs"]), GPU, stage=Stage.CALIBRATE_ONLY)


@cache
def _operators(timed: bool) -> list[float]:
    """How far off the recorded points of kernels are, timed ones or those of others, that a calibration never saw."""
    h = gpus.find(GPU)
    library = estimator.library(h, Stage.CALIBRATED)
    assert library is not None
    known = {(k, b[0]) for k in h.profile.operators for b in library.bases(k)}  # type: ignore[union-attr]
    off = []
    for kind in points.kinds(gpus.POINTS / GPU):
        for g in points.read(gpus.POINTS / GPU / f"{kind}.csv").groups:
            if g.dtype != "bf16" or kind in QUANTISED or g.kernel == "chip" or ((kind, g.kernel) in known) != timed:
                continue
            runs_as = {kind: f"{g.implementation} {g.context}"}
            times = Estimator(roof_of(h), library, runs_as, peaks=peaks_of(h))
            off += [abs(times.time(op).seconds / s - 1) for op, s in zip(g.ops, g.seconds)]
    return off


def operators(which: str) -> str:
    off = _operators(which == "timed")
    return f"{100 * stats.median(off):.1f} %, {100 * stats.quantile(off, 0.9):.1f} % of {len(off)} points"


# --- a CPU
@cache
def _on_cpu() -> list[Point]:
    folder = RECORDS.parent / "cpu"
    found = judge.judge(
        judge.read(sorted(folder.glob("runs-2-cores-*.json"))), str(folder / "calibration-2-cores.json")
    )
    return [p for p in found.points if p.metric in ("ttft", "tpot")]


def cpu() -> str:
    """How many runs of a recorded CPU come out within 15 %, and inside their interval; the median error."""
    off = [abs(p.error) for p in _on_cpu()]
    near, inside = sum(e <= 0.15 for e in off), sum(bool(p.inside) for p in _on_cpu())
    return (
        f"{100 * stats.median(off):.0f} % in the median, {near} of {len(off)} within 15 %, {inside} inside the interval"
    )


def cpu_rows() -> Iterator[str]:
    yield "| model | format | TTFT, prompts of 128 and 512 | TPOT | inside |"
    yield "|---|---|---|---|---|"
    for model, dtype in dict.fromkeys((p.model, p.scenario.dtype) for p in _on_cpu()):
        mine = [p for p in _on_cpu() if (p.model, p.scenario.dtype) == (model, dtype)]
        ttft, tpot = (", ".join(f"{100 * p.error:+.1f} %" for p in mine if p.metric == m) for m in ("ttft", "tpot"))
        yield f"| {model} | {dtype} | {ttft} | {tpot} | {sum(bool(p.inside) for p in mine)} of {len(mine)} |"
