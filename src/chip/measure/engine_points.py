"""Runs of small models as the fits of engines read them: what was measured, beside what the operators alone should
take."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from chip import hardware, stats
from chip.models import describe
from chip.ops.attention import Attention
from chip.predict.request import composer, predict
from chip.predict.stages import Stage
from chip.runs import Run
from chip.types import ChipError, Scenario

HOST_BOUND = 0.7  # of the step the device worked: below it the host sets the pace
ONE_QUEUE = {"prefill": 1.0, "decode": 1.0}  # a CPU is host and device at once: it never waits for itself
STEADY = 1.15  # between the paces of a host before and after a repeat


class Point(NamedTuple):
    run: Run
    base: str  # its model but for the depth
    family: str  # its architecture
    layers: int
    device_s: Mapping[str, float]  # "prefill", "decode": what the operators alone should take
    kernels: Mapping[str, float]
    attention_s: float  # of a decode step, alone
    lowered: float  # how far its prompt lowered the clock
    busy: Mapping[str, float]  # share of each phase that the device worked, where it is known
    host: int  # runs of one file are of one
    # its host's pace over the one that the host's terms are to hold at
    slower: Mapping[str, float] = {"prefill": 1.0, "decode": 1.0}

    @property
    def measured_s(self) -> dict[str, float]:
        return {"prefill": self.run.ttft_s, "decode": self.run.tpot_s}

    @property
    def pace_ns(self) -> dict[str, float]:
        """Such that what was measured over it is the median of what each repeat took over its own pace; of repeats in
        which the host kept its pace, where there are any."""
        around = list(pairwise(self.run.launch_ns))
        calm = [max(pair) <= STEADY * min(pair) for pair in around]
        kept = calm if any(calm) else [True] * len(calm)
        samples = {"prefill": self.run.ttft_ns, "decode": [sum(steps) / len(steps) for steps in self.run.step_ns]}
        return {
            phase: self.measured_s[phase]
            / stats.median([s * 1e-9 / (sum(pair) / 2) for s, pair, keep in zip(each, around, kept) if keep])
            for phase, each in samples.items()
        }

    def kernel_time_s(self, phase: str, like: str = "") -> float | None:
        """What its kernels took under the profiler, or those alone whose names hold `like`; where the run tells."""
        table = self.run.settings.get("kernels", {}).get(phase)
        return sum(us for name, _, us in table if like in name) * 1e-6 if table else None

    def waits(self, phase: str) -> bool:
        """Whether the host alone set the pace of its steps."""
        return self.busy.get(phase, 1.0) < HOST_BOUND

    @property
    def graph(self) -> bool:
        """Whether its prefill ran as (pieces of) graphs."""
        return bool(self.kernels["graphed"])


def usable(asked: Sequence[Run], configs: Mapping[str, Mapping[str, Any]], engine: str) -> list[Run]:
    """The runs, where one model at least ran at two depths and all are of one version and one setting: else terms would
    be told apart by what they are not."""
    if unknown := {r.model for r in asked} - set(configs):
        raise ChipError(f"the runs do not have the config of {min(unknown)}")
    depths: dict[str, set[int]] = {}
    for r in asked:
        depths.setdefault(_base(configs[r.model]), set()).add(configs[r.model]["num_hidden_layers"])
    most = max(map(len, depths.values()), default=0)
    if most < 2 and len(depths) > 1:
        raise ChipError(f"the terms of {engine} need two runs of one model, its depth alone may differ")
    if most < 2:
        raise ChipError(f"the terms of {engine} need runs of two depths of one model, found {most}")
    for what, seen in (("versions", {r.engine_version for r in asked}), ("settings", {r.variant for r in asked})):
        if len(seen) > 1:
            each = " and ".join(sorted(repr(s) for s in seen))
            raise ChipError(f"the runs of {engine} are of several {what}, {each}: keep them apart with -o")
    return list(asked)


def _base(config: Mapping[str, Any]) -> str:
    return json.dumps({k: v for k, v in config.items() if k != "num_hidden_layers"}, sort_keys=True)


def point(run: Run, host: int, configs: Mapping[str, Mapping[str, Any]], gpu: str) -> Point:
    decoder = describe(dict(configs[run.model]), run.model, run.model)
    s = run.scenario
    made = predict(decoder, gpu, run.engine, s, Stage.TABLES)
    assert made.decode is not None
    c, roof = composer(decoder, gpu, run.engine, s.dtype, s.tp, Stage.TABLES)
    first = c.work(c.engine.prefill(s, roof.memory_bytes), s)
    step = c.work(c.engine.decode(s, roof.memory_bytes), None)
    return Point(
        run,
        _base(configs[run.model]),
        decoder.architecture,
        c.layers,
        {"prefill": made.prefill.seconds, "decode": made.decode.seconds},
        {"prefill": first.kernels, "decode": step.kernels / step.steps, "graphed": first.graph_layers},
        sum(line.seconds for line in made.decode.lines if line.kind == Attention.kind),
        c.lowered(made.prefill),
        ONE_QUEUE if _is_cpu(gpu) else run.busy,
        host,
    )


def _is_cpu(gpu: str) -> bool:
    profile = hardware.find(gpu).profile
    return profile is not None and profile.kind == "cpu"


def pairs(points: Sequence[Point]) -> list[tuple[Point, Point]]:
    """(shallow, deep) of one model and scenario on one host."""
    by: dict[tuple[Scenario, str, int], list[Point]] = {}
    for p in sorted(points, key=lambda p: p.layers):
        by.setdefault((p.run.scenario, p.base, p.host), []).append(p)
    return [(same[0], same[-1]) for same in by.values() if same[0].layers < same[-1].layers]
