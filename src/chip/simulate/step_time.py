"""What one step of the engine takes, from the same predictor as `chip predict`. The only file of the simulator that
knows the predictor: everything else goes through `StepTimes`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

from chip import ops
from chip.engines.terms import Terms
from chip.engines.vllm import NAME
from chip.engines.vllm import schedule as vllm
from chip.models.decoder import Decoder
from chip.predict import pipeline, several
from chip.predict.phase import interval, lines_of
from chip.predict.request import setting
from chip.predict.roof import Power, Range, Roof
from chip.predict.steps import StepModel
from chip.question import Question
from chip.timeline import Timeline
from chip.types import ChipError, Scenario, Seq, Step

GRAPH_TOKENS = vllm.GRAPH_TOKENS  # sizes of the engine's CUDA graphs


class Host(NamedTuple):
    """The host's part of a step: it prepares the step, then launches it; the device can work while it launches."""

    prepare_s: float
    launch_s: float


class Spread(NamedTuple):
    """A factor's 90 % interval around 1."""

    low: float
    high: float


class Stages(NamedTuple):
    """A step over a pipeline: each stage's share of its time, and seconds to hand it to the next stage."""

    shares: tuple[float, ...]
    hop_s: float


class StepTimes(Protocol):
    """All that the simulator asks of a predictor."""

    @property
    def max_context(self) -> int: ...
    @property
    def notes(self) -> tuple[str, ...]: ...
    @property
    def host_name(self) -> str: ...
    @property
    def kv_dtype(self) -> str: ...
    def seconds(self, step: Step) -> float: ...
    def device_s(self, step: Step) -> float: ...
    def host(self, rows: int, tokens: int, decode: bool, graph: bool) -> Host: ...
    def request_s(self, prompt: int) -> float: ...
    def wake_s(self) -> float: ...
    def stages(self, step: Step) -> Stages: ...
    def rested(self, step: Step) -> float: ...
    def joules(self, step: Step) -> float | None: ...
    def idle_w(self) -> float | None: ...
    def spread(self, step: Step) -> Spread: ...
    def host_spread(self) -> Spread: ...


def step(seqs: tuple[Seq, ...]) -> Step:
    """One step as vLLM runs it: padded to the next graph size where one is large enough."""
    tokens = sum(s.new * s.count for s in seqs)
    return Step(seqs, vllm.padded(tokens) - tokens, tokens <= vllm.GRAPH_TOKENS[-1])


def end_of(start_s: float, host_end_s: float, device_s: float) -> float:
    """When the device has done a step that it can start at `start_s` while the host launches until `host_end_s`."""
    return start_s + max(host_end_s - start_s, device_s)


class OperatorTimes(NamedTuple):
    """A step's operators: as expected, at the least and at the most; what they compute and move."""

    seconds: float
    low_s: float
    high_s: float
    operators: float
    flops: float
    bytes: float


@dataclass(frozen=True, eq=False)
class PredictedSteps:
    """`StepTimes` of the predictor."""

    steps: StepModel
    roof: Roof
    terms: tuple[Terms, Terms, Terms]  # as expected, at the least, at the most
    max_context: int
    gpu: str = ""
    pp: int = 1
    notes: tuple[str, ...] = ()
    host_name: str = ""

    @property
    def kv_dtype(self) -> str:
        return self.steps.precision.kv or self.steps.precision.activation

    @lru_cache(maxsize=4096)  # noqa: B019 (one for each simulation, and gone with it)
    def _found(self, step: Step, rested: bool = False) -> OperatorTimes:
        timed = self.steps.timed(((step, 1.0),), rested)
        (rows, _), lines = timed[0], lines_of(timed)
        seconds, low_s, high_s = interval(lines, self.steps.interval_scale)
        operators = sum(n * calls.launches.operators for n, calls, _ in rows)
        flops = sum(line.flops for line in lines if ops.multiplies(line.kind))
        moved = sum(line.bytes for line in lines)
        return OperatorTimes(seconds, low_s, high_s, operators, flops, moved)

    def device_s(self, step: Step) -> float:
        found, terms = self._found(step), self.terms[0]
        return found.seconds + terms.gap_s * found.operators + terms.step_s

    def host(self, rows: int, tokens: int, decode: bool, graph: bool) -> Host:
        """As the engine plays one prompt of so many tokens, or so many single tokens."""
        terms = self.terms[0]
        like = Step((Seq(1, 1, tokens) if decode else Seq(max(2, tokens), 0, 1),), graph=graph)
        t = Timeline()
        self.steps.play(like, t)
        return Host(terms.prepare_s(rows), t.host_s - terms.prepare_s(like.rows))

    def seconds(self, step: Step) -> float:
        """One step alone, with all the host does for it: what the device takes after it was prepared."""
        decode = all(s.new == 1 for s in step.seqs)
        host = self.host(step.rows, step.tokens, decode, step.graph)
        return end_of(host.prepare_s, host.prepare_s + host.launch_s, self.device_s(step))

    def request_s(self, prompt: int) -> float:
        return self.terms[0].request_s

    def wake_s(self) -> float:
        """Before the first step after the engine had nothing to do."""
        return self.terms[0].first_s

    def stages(self, step: Step) -> Stages:
        shares = pipeline.stage_shares(self.steps.decoder, self.pp, self.steps.rows(step))
        return Stages(tuple(shares), several.hop(self.steps, self.gpu, step.tokens).value)

    def rested(self, step: Step) -> float:
        """The device's time of a step on a GPU that had nothing to do, over that under load: clocks are higher."""
        return self._found(step, True).seconds / self._found(step).seconds

    def joules(self, step: Step) -> float | None:
        """Of one GPU above idle: products and bytes of a step."""
        power = self._power()
        if power is None:
            return None
        found, zero = self._found(step), Range(0.0, 0.0, 0.0)
        return power.joules(self.steps.precision.matmul, zero, found.flops, found.bytes).value

    def idle_w(self) -> float | None:
        power = self._power()
        return power.idle_w.value if power else None

    def _power(self) -> Power | None:
        return self.roof.power

    def spread(self, step: Step) -> Spread:
        """Of the device's part."""
        found = self._found(step)
        return Spread(found.low_s / found.seconds, found.high_s / found.seconds)

    def host_spread(self) -> Spread:
        value, low, high = (t.host_step_s for t in self.terms)
        return Spread(low / value, high / value) if value else Spread(1.0, 1.0)


def step_times(q: Question) -> StepTimes:
    """The predictor of a question without `auto`; a ChipError where the engine has no scheduler to simulate."""
    if q.engine != NAME:
        raise ChipError(f"engine {q.engine[:40]!r} cannot be simulated: only {NAME} has a scheduler of live traffic")
    s = q.scenario(1, 1, 1)
    several.check(s, q.engine)
    of = setting(q)
    terms: tuple[Terms, Terms, Terms] = of.steps.terms or (Terms(), Terms(), Terms())
    notes = (*of.notes, *_notes(s, q.gpu, q.model))
    return PredictedSteps(of.steps, of.roof, terms, q.model.max_context, q.gpu, q.pp, notes, of.host)


def _notes(s: Scenario, gpu: str, decoder: Decoder) -> list[str]:
    """What must be said where there are several GPUs, or experts on several."""
    out = [f"{s.gpus} GPUs: {several.ONE_GPU}{several.link_text(gpu)}"] if s.gpus > 1 else []
    out += several.experts_note(s, decoder.experts)
    if s.pp > 1:
        out.append(f"{several.stages_text(decoder.layer_count, s.pp)}, at most {s.pp} batches in flight")
    return out
