"""90 % intervals: the whole simulation again and again, with times that err as the predictor says they may."""

from __future__ import annotations

import math
import random
from typing import Any

from chip.simulator import figures
from chip.simulator.answer import answer
from chip.simulator.jobs import Pool, spread_out
from chip.simulator.machine import machine_of
from chip.simulator.setup import Fleet, Setup, run, setup
from chip.simulator.step_time import Spread
from chip.simulator.surface import Factors
from chip.simulator.workload import Workload
from chip.types import Seq, Step

Z90 = 1.645
DECODES = 16  # in the steps whose intervals stand for all


def intervals(fleet: Fleet, w: Workload, seed: int, draws: int, pool: Pool | None) -> dict[str, Any]:
    tasks = [(fleet, w, factors) for factors in _factors(setup(fleet), w, seed, draws)]
    rows = spread_out(_redo, tasks, pool)
    out: dict[str, Any] = {"draws": draws}
    for name in rows[0]:
        values = sorted(r[name] for r in rows)
        low = values[int(0.05 * len(values))]
        high = values[min(len(values) - 1, math.ceil(0.95 * len(values)) - 1)]
        figure, _, part = name.partition(".")
        if part:
            out.setdefault(figure, {})[part] = low, high
        else:
            out[name] = low, high
    return out


def _redo(task: tuple[Fleet, Workload, Factors]) -> dict[str, float]:
    fleet, w, factors = task
    made = setup(fleet, factors)
    found = answer(fleet, made, w, run(made, fleet, w), 0)
    out = {"output_tokens_per_s": found.output_tokens_per_s}
    for name in figures.FIGURES:
        got = getattr(found, f"{name}_s")
        out |= {f"{name}_s.{k}": v for k, v in got._asdict().items()} if got else {}
    return out


def spreads_of(made: Setup, w: Workload) -> tuple[Spread, Spread, Spread]:
    """Of decode steps, mixed steps and host, at the workload's mean lengths."""
    fitted = machine_of(made.host).spreads
    if fitted:
        return fitted
    times, (mixed, decode) = made.surface.times, typical_steps(made, w)
    return times.spread(decode), times.spread(mixed), times.host_spread()


def typical_steps(made: Setup, w: Workload) -> tuple[Step, Step]:
    """One with a prompt beside decodes, and one of decodes alone, at the workload's mean lengths."""
    prompt = max(1, min(sum(w.prompt) // len(w), made.settings.max_num_batched_tokens))
    context = max(1, min(made.longest, prompt + sum(w.output) // len(w) // 2))
    decodes = Seq(1, context, DECODES)
    step = made.surface.times.step
    return step((decodes, Seq(prompt, 0, 1))), step((decodes,))


def _factors(made: Setup, w: Workload, seed: int, draws: int) -> list[Factors]:
    spreads = spreads_of(made, w)
    draw = random.Random(f"intervals {seed}")
    return [Factors(*(_drawn(s, draw.gauss(0.0, 1.0)) for s in spreads)) for _ in range(draws)]


def _drawn(spread: Spread, z: float) -> float:
    """Lognormal on each side of 1, with the predictor's 90 % interval."""
    edge = spread.high if z > 0 else spread.low
    return float(max(edge, 1e-3) ** (abs(z) / Z90))
