"""What one step of the engine takes, from the same predictor as `chip predict`. The only file of the simulator that
knows the predictor: everything else goes through `StepTimes`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from chip import ops
from chip.engines.terms import Terms
from chip.engines.vllm import NAME
from chip.engines.vllm import schedule as vllm
from chip.models.decoder import Decoder
from chip.predict import pipeline, several
from chip.predict.clock import Settling
from chip.predict.limits import Answer
from chip.predict.phase import Rows, interval, lines_of
from chip.predict.request import setting
from chip.predict.roof import Roof
from chip.predict.steps import StepModel
from chip.question import Question
from chip.timeline import Timeline
from chip.types import ChipError, Scenario, Seq, Step

GRAPH_TOKENS = vllm.GRAPH_TOKENS  # sizes of the engine's CUDA graphs


class Work(NamedTuple):
    """What a part of a step asks of the device, at the clock of its measured points."""

    seconds: float
    held_s: float = 0.0  # at the power limit
    by_clock_s: float = 0.0  # that memory does not set
    flops: float = 0.0  # of products
    joules: float = 0.0  # above idle


def sum_of(*parts: Work) -> Work:
    return Work(*map(sum, zip(*parts)))


class Host(NamedTuple):
    """The host's part of a step: it prepares the step, then launches it; the device can work while it launches."""

    prepare_s: float
    launch_s: float
    tail_s: float = 0.0  # that the device works on, after the last launch of a step that waits for the host


class Spread(NamedTuple):
    """A factor's 90 % interval around 1."""

    low: float
    high: float


class Stages(NamedTuple):
    """A step over a pipeline: each stage's share of its time, and seconds to hand it to the next stage."""

    shares: tuple[float, ...]
    hop_s: float


class StepTimes(Protocol):
    """All that the simulator asks of a predictor. `layers`, `head` and `attention` together are a step."""

    @property
    def max_context(self) -> int: ...
    @property
    def windows(self) -> Collection[int]: ...
    @property
    def settling(self) -> Settling | None: ...
    @property
    def notes(self) -> tuple[str, ...]: ...
    @property
    def host_name(self) -> str: ...
    @property
    def kv_dtype(self) -> str: ...
    def layers(self, tokens: int, routed: int, decode: bool) -> Work: ...
    def head(self, rows: int) -> Work: ...
    def attention(self, step: Step) -> Work: ...
    def host(self, rows: int, tokens: int, decode: bool, graph: bool) -> Host: ...
    def request_s(self, prompt: int) -> float: ...
    def wake_s(self) -> float: ...
    def stages(self, step: Step) -> Stages: ...
    def within_power(self, joules: float, seconds: float) -> float: ...
    def idle_w(self) -> float | None: ...
    def spread(self, step: Step) -> Spread: ...
    def host_spread(self) -> Spread: ...


def step(seqs: tuple[Seq, ...]) -> Step:
    """One step as vLLM runs it: padded to the next graph size where one is large enough."""
    tokens = sum(s.new * s.count for s in seqs)
    return Step(seqs, vllm.padded(tokens) - tokens, tokens <= vllm.GRAPH_TOKENS[-1])


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

    @property
    def windows(self) -> Collection[int]:
        return self.steps.windows

    @property
    def settling(self) -> Settling | None:
        return self.steps.estimator.settling

    def layers(self, tokens: int, routed: int, decode: bool) -> Work:
        """Those of a step but attention, and what lies between all operators."""
        return self._work(self.steps.beside_attention(tokens, routed, decode))

    def head(self, rows: int) -> Work:
        """What follows the layers, and what the engine runs around a step."""
        return sum_of(self._work(self.steps.head(rows)), Work(self.terms[0].step_s))

    def attention(self, step: Step) -> Work:
        return self._sum([(repeat, "attention", answer) for repeat, answer in self.steps.attention(step)], 0.0)

    def _work(self, rows: Rows) -> Work:
        gaps = sum(repeat * calls.launches.operators for repeat, calls, _ in rows)
        answers = [(n, kind, answer) for n, calls, found in rows for kind, answer in zip(calls.kinds, found)]
        return self._sum(answers, gaps * self.terms[0].gap_s)

    def _sum(self, answers: Iterable[tuple[int, str, Answer]], gaps_s: float) -> Work:
        """Of operators, with how often each runs."""
        bytes_per_s = self.steps.estimator.roof.memory
        took, held, by_clock, products, joules = gaps_s, 0.0, 0.0, 0.0, 0.0
        for n, kind, (seconds, _, _, bound, _, flops, moved, held_s, own_joules) in answers:
            if not seconds:
                continue
            took += n * seconds
            held += n * held_s
            by_clock += n * max(0.0, seconds - moved / bytes_per_s) if bound != "link" else 0.0
            products += n * flops if ops.multiplies(kind) else 0.0
            joules += n * own_joules
        return Work(took, held, by_clock, products, joules)

    def host(self, rows: int, tokens: int, decode: bool, graph: bool) -> Host:
        """As the engine plays one prompt of so many tokens, or so many single tokens."""
        terms = self.terms[0]
        like = Step((Seq(1, 1, tokens) if decode else Seq(max(2, tokens), 0, 1),), graph=graph)
        t = Timeline(1.0, terms.gap_s)
        self.steps.play(like, t)
        prepare_s = terms.prepare_s(like.rows)
        tail_s = t.device_s - max(t.host_s, prepare_s + t.worked_s) if t.host_s > prepare_s else 0.0
        return Host(terms.prepare_s(rows), t.host_s - prepare_s, max(0.0, tail_s))

    def request_s(self, prompt: int) -> float:
        return self.terms[0].request_s

    def wake_s(self) -> float:
        """Before the first step after the engine had nothing to do."""
        return self.terms[0].first_s

    def stages(self, step: Step) -> Stages:
        shares = pipeline.stage_shares(self.steps.decoder, self.pp, self.steps.rows(step))
        return Stages(tuple(shares), several.hop(self.steps, self.gpu, step.tokens).value)

    def within_power(self, joules: float, seconds: float) -> float:
        """What the power limit leaves of the joules above idle, in this time."""
        return self.roof.power.within(joules, seconds) if self.roof.power else joules

    def idle_w(self) -> float | None:
        return self.roof.power.idle_w if self.roof.power else None

    def spread(self, step: Step) -> Spread:
        """Of the device's part."""
        seconds, low_s, high_s = interval(lines_of(self.steps.timed(((step, 1.0),), False)), self.steps.interval_scale)
        return Spread(low_s / seconds, high_s / seconds)

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
