"""Read bandwidth against working-set size, from cache to memory; the knee from the data; the cache's plateau."""

from __future__ import annotations

import math

import torch

from chip.lab.measure.bench import Bench, ProbeCase
from chip.lab.measure.curve_shapes import find_knee
from chip.lab.measure.journal import Outcome
from chip.lab.measure.probes.memory import BLOCK, reader
from chip.lab.measure.stopping import Samples, StopRule
from chip.lab.measure.timing import events, graph, inner_for
from chip.stats import median
from chip.types import Ceiling, Curve

LOOP_BYTES = 2 * 2**30  # what one sample reads at least: half a millisecond at 4 TB/s


def cases(bench: Bench) -> list[ProbeCase]:
    b = bench.budget
    return [ProbeCase("read", ("l2_read", "l2_knee"), len(sizes(bench)) * (b.trial.max_seconds / 2 + 0.02) + 1, _curve)]


def sizes(bench: Bench) -> list[int]:
    """Working sets in bytes, evenly spaced on a log axis, multiples of what the read loop takes at once."""
    b = bench.budget
    largest = bench.buffer_bytes(b.curve_to_bytes)
    octaves = math.log2(max(largest / b.curve_from_bytes, 1))
    count = max(2, round(octaves * b.curve_per_octave) + 1)
    unit = 4 * BLOCK
    points = (b.curve_from_bytes * 2 ** (octaves * i / (count - 1)) for i in range(count))
    return sorted({max(unit, round(p / unit) * unit) for p in points})


def _curve(bench: Bench) -> Outcome:
    x, y, ways = [], [], set()
    whole = bench.buffer(0, bench.buffer_bytes(bench.budget.curve_to_bytes))
    for size in sizes(bench):
        samples, work, way = _read(bench, whole[: size // 4], bench.budget.trial)
        x.append(float(size))
        y.append(work / (median(samples.samples_ns) * 1e-9))
        ways.add(way)
    method = f"median of repeated reads of one working set: {', '.join(sorted(ways))}"
    curve = Curve("working set", "B", "read bandwidth", "B/s", tuple(x), tuple(y), method)
    knee = find_knee(x, y)
    if knee is None:
        why = "no plateau above memory's bandwidth in the working-set curve"
        return Outcome(curves={"read_by_working_set": curve}, missing={"l2_read": why, "l2_knee": why})
    inside = max(4 * BLOCK, int(min(knee.at / 3, bench.device.l2_bytes / 8)) // (4 * BLOCK) * 4 * BLOCK)
    samples, work, way = _read(bench, whole[: inside // 4], bench.budget.rule)
    at = Ceiling(
        knee.at,
        knee.low,
        knee.high,
        "B",
        "working set that keeps 90 % of the cache's plateau; measured points around it",
    )
    plateau = bench.rate(samples, work, "B/s", f"{way}, working set {inside / 2**20:.3g} MiB")
    return Outcome(ceilings={"l2_read": plateau, "l2_knee": at}, curves={"read_by_working_set": curve})


def _read(bench: Bench, x: torch.Tensor, rule: StopRule) -> tuple[Samples, float, str]:
    """Samples, bytes of one sample, and the way it was read."""
    size = x.numel() * 4
    device = bench.device
    total = max(1, round(LOOP_BYTES / size)) * size
    if (loop := reader(device, x, total)) is not None:
        return bench.collect(events(device, [loop], 2), rule), total, "one Triton kernel reading past L1"
    out = torch.empty((), device=x.device)
    calls = [lambda: torch.sum(x, dim=0, out=out)]
    inner = inner_for(device, calls, bench.budget.sample_s / 2, 500)
    return bench.collect(graph(device, calls, inner), rule), size, "torch.sum, one kernel a pass"
