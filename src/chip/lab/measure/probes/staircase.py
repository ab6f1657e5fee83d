"""FLOP/s of one SM: time of a matrix product against its tiles, as waves fill; the fitted time of one more wave."""

from __future__ import annotations

import torch

from chip.lab.measure import limits
from chip.lab.measure.bench import Bench, ProbeCase, Skip
from chip.lab.measure.curve_shapes import fit_staircase
from chip.lab.measure.journal import Outcome
from chip.lab.measure.timing import graph, inner_for, rested
from chip.stats import median
from chip.types import Ceiling, Curve

TILE = 128
ROWS = 8  # tiles in a column: m = 1024, so that weights do not make it memory-bound
DEPTH = 4096
WAVES = 5  # of 128 x 128 tiles, one a unit


def cases(bench: Bench) -> list[ProbeCase]:
    step = max(1, bench.budget.staircase_step)
    points = WAVES * bench.device.sm_count / ROWS / step
    seconds = points * (0.03 + bench.budget.trial.max_seconds / 3) if bench.device.kind == "cuda" else 0.0
    return [ProbeCase("sm_staircase", ("sm_staircase",), seconds, _staircase)]


def _staircase(bench: Bench) -> Outcome:
    device = bench.device
    if device.kind == "cpu":
        raise Skip("a CPU runs no waves of tiles")
    clock_hz = device.clock_hz() or device.boost_hz
    ideal = limits.flop_limit(device.compute_capability, "bf16", device.sm_count, device.boost_hz)
    basis = f"{device.sm_count} {device.sm_word} x FLOP a clock x the boost clock"
    if ideal is None:
        ideal, basis = bench.need("matmul_bf16").value, "matmul_bf16: the architecture's rate is not known"
    tiles, times = _times(bench)
    fit = fit_staircase(tiles, times, range(device.sm_count // 2, 4 * device.sm_count + 1))
    if fit.low <= 0:
        raise Skip("no staircase in the times: a further wave takes no longer")
    per_wave = fit.tiles_per_wave * 2 * TILE * TILE * DEPTH
    method = (
        f"bf16 {ROWS * TILE} x n x {DEPTH}, graph; {fit.tiles_per_wave} tiles of {TILE}x{TILE} a wave, "
        f"{fit.per_wave * 1e6:.4g} us a wave, ramp {fit.ramp * 1e6:.4g} us, fit explains {fit.explained:.1%}; "
        f"FLOP/s of a further wave over {basis}"
    )
    flags = () if fit.explained > 0.9 else (f"fit explains {fit.explained:.0%} only",)
    factor = Ceiling(
        per_wave / fit.per_wave / ideal,
        per_wave / fit.high / ideal,
        per_wave / fit.low / ideal,
        "1",
        method,
        clock_hz=clock_hz,
        flags=flags,
    )
    curve = Curve("tiles of 128x128", "1", "time", "s", tuple(map(float, tiles)), tuple(times), method)
    return Outcome(factors={"sm_staircase": factor}, curves={"staircase": curve})


def _times(bench: Bench) -> tuple[list[int], list[float]]:
    device = bench.device
    x = bench.normal((ROWS * TILE, DEPTH), torch.bfloat16)
    last = WAVES * device.sm_count // ROWS
    weights = bench.normal((last * TILE, DEPTH), torch.bfloat16)
    tiles, times = [], []
    for columns in range(1, last + 1, bench.budget.staircase_step):
        w = weights[: columns * TILE]
        out = torch.empty(ROWS * TILE, columns * TILE, device=x.device, dtype=x.dtype)
        calls = [lambda w=w, out=out: torch.mm(x, w.t(), out=out)]
        inner = inner_for(device, calls, 5e-4, 50)
        samples = bench.collect(rested(device, graph(device, calls, inner), inner), bench.budget.trial)
        tiles.append(ROWS * columns)
        times.append(median(samples.samples_ns) * 1e-9)
    return tiles, times
