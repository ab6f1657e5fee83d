"""Measurements of quantised operators out of runs under vLLM: what their kernels took in the engine.

    python benchmarks/points_of_runs.py RUNS.json ... --alone quant.jsonl -o in-engine.jsonl
    chip fit in-engine.jsonl quant.jsonl --profile PROFILE -o FOLDER

A run holds the profiler's sum for each kernel's name in one step. A kernel that has one shape in a step gives that
shape's mean time. The products of a layer share a name: their sum is divided among them in proportion to their base
times, and the base is fitted to what comes out, together with what `--alone` timed, until it no longer changes. That is
coarser than `chip profile --suite quant`, which times each shape alone, and is for formats of which a GPU has runs and
little of that suite. Of a kernel that was timed alone at prompts only steps of few rows are taken: a product alone runs
at a settled clock, as predictions hold points to, in a prompt at one between that and the highest.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from chip import dtypes, engines, stats
from chip.decoders import describe
from chip.decoders.lower import body
from chip.files import measurements, runs
from chip.files.runs import Run
from chip.hardware import gpus
from chip.lab.measure import fit
from chip.ops import BaseTime
from chip.ops.quantised import PackedLinear, ScaledLinear
from chip.types import HardwareProfile, Measurement, Op

# kind -> implementation, and how its kernels are called
KERNELS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {  # words that all are there, and that none is
    "scaled_linear": ("cutlass", ("cutlass_3x_gemm",), ()),
    "packed_linear": ("machete", ("machete::", "GemmUniversal"), ()),
    "add_rms_norm_quant": ("compiled", ("clamp", "fused_add_rms_norm"), ()),
    "silu_mul_quant": ("compiled", ("clamp", "silu"), ()),
    "quantize": ("compiled", ("clamp",), ("silu", "rms_norm")),
}
DECODES = 128  # rows: products of more set the clock, which a step of few does not
ZEROED = "Memset"  # the workspace of Machete's split sums, a kernel before the product
ROUNDS = 6
METHOD = "in a step of vLLM, by the profiler; products of a layer by their share of the sum"


def layers_of(run: Run, config: Mapping[str, Any], decode: bool) -> list[tuple[int, list[Op]]]:
    """(how often, operators) of the layers of one step."""
    d, s = describe(config, run.model, run.model), run.scenario
    p = dtypes.precision(s.dtype)
    if d.quantization and d.dtype == s.dtype:
        p = replace(p, per_layer=True)
    program = engines.get("vllm").rewrite(
        body(d, s.batch if decode else s.batch * s.prompt, p, 1), decode, d.architecture
    )
    return [(b.repeat, [c.op for c in b.calls]) for b in program.blocks]


def sums(kernels: list[list[Any]], kind: str, least: int) -> float:
    """Microseconds of a step under the names of this kind's kernels: once a layer or more."""
    _, words, others = KERNELS[kind]
    found = [
        k for k in kernels if k[1] >= least and all(w in k[0] for w in words) and not any(w in k[0] for w in others)
    ]
    beside = (
        [k for k in kernels if k[0].startswith(ZEROED) and k[1] >= least] if found and kind == "packed_linear" else []
    )
    return float(sum(k[2] for k in [*found, *beside]))


class Shared(NamedTuple):
    """Calls that one sum of the profiler is of."""

    kind: str
    calls: tuple[tuple[int, Op], ...]  # how often, and what
    seconds: float
    device: str

    def times(self, base: BaseTime) -> dict[Op, float]:
        """Seconds of each, by their share."""
        expected_s = sum(count * base.seconds(op) for count, op in self.calls)
        return {op: base.seconds(op) * self.seconds / expected_s for _, op in self.calls}


def of_run(run: Run, config: Mapping[str, Any]) -> Iterator[Shared]:
    for phase, kernels in run.settings.get("kernels", {}).items():
        layers = layers_of(run, config, phase == "decode")
        depth = max(repeat for repeat, _ in layers)
        for kind in KERNELS:
            found = [(repeat, op.like_measured()) for repeat, each in layers for op in each if op.kind == kind]
            calls = tuple((repeat, op) for repeat, op in found if op is not None)
            seconds = sums(kernels, kind, depth - 1) * 1e-6
            if seconds and len(calls) == len(found) > 0:
                yield Shared(kind, calls, seconds, run.device)


def base_of(shared: list[Shared], alone: list[tuple[Op, float]], profile: HardwareProfile) -> BaseTime:
    """The base under which sums and single times agree with each other. The rate of memory is the calibrated one: a sum
    cannot tell it from a floor, and it is the same whatever is read."""
    kind, context = shared[0].kind, context_of(shared[0].calls[0][1])
    base = fit.start(kind, KERNELS[kind][0], context, shared[0].calls[0][1], profile)
    for _ in range(ROUNDS):
        found = [*alone, *(pair for s in shared for pair in s.times(base).items())]
        fitted = fit.fit_base(base, [op for op, _ in found], [seconds for _, seconds in found])
        base = replace(fitted, bytes_per_s=base.bytes_per_s)
    return base


def rows_of(op: Op) -> int:
    return int(op.m if isinstance(op, (ScaledLinear, PackedLinear)) else op.rows)  # type: ignore[attr-defined]


def context_of(op: Op) -> str:
    return "cold" if isinstance(op, (ScaledLinear, PackedLinear)) else "hot"


def timed_alone(path: Path | None, kind: str) -> list[tuple[Op, float]]:
    found = measurements.ok(measurements.read(path)[1]) if path else []
    asked = [
        (measurements.operator(m.op), m) for m in found if m.op["op"] == kind and m.implementation == KERNELS[kind][0]
    ]
    return [
        (op, stats.median(m.samples_ns) * 1e-9)
        for op, m in asked
        if op.kernel_of("") == "" and op.like_measured() == op
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--alone", type=Path, help="measurements of the same kernels, each shape alone")
    args = parser.parse_args()
    profile = gpus.find("h200").profile
    assert profile
    shared: list[Shared] = []
    ids: list[str] = []
    for path in args.runs:
        about, found = runs.read(path)
        ids += [runs.id_of(run) for run in found.runs]
        shared += [s for run in found.runs for s in of_run(run, found.configs[run.model])]
    measurements.start(args.output, shared[0].device, about.environment, ids)
    for kind, (implementation, _, _) in KERNELS.items():
        alone = timed_alone(args.alone, kind)
        prompts = any(
            rows_of(op) > DECODES for op, _ in alone
        )  # timed alone, at the clock that points are held to be at
        own = [s for s in shared if s.kind == kind and not (prompts and rows_of(s.calls[0][1]) > DECODES)]
        base = base_of(own, alone, profile)
        times: dict[Op, list[int]] = {}
        for s in own:
            for op, seconds in s.times(base).items():
                times.setdefault(op, []).append(round(seconds * 1e9))
        for op, samples in times.items():
            m = Measurement(measurements.record(op), implementation, context_of(op), "ok", samples_ns=tuple(samples))
            measurements.add(args.output, replace(m, method=METHOD, device=own[0].device))
    print(f"{args.output}: {len(shared)} sums", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
