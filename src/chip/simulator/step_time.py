"""What one step of the engine takes, from the same predictor as `chip predict`. The only file of the simulator that
knows the predictor: everything else goes through `StepPredictor`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from chip import ops
from chip.decoders.decoder import Decoder
from chip.engines import Engine
from chip.engines.server import NONE, ServerCost
from chip.engines.timeline import Terms, Timeline
from chip.predictor import parallel
from chip.predictor.clock import Settling
from chip.predictor.operator_time import OperatorTime
from chip.predictor.phase import interval
from chip.predictor.program import TimedBlock
from chip.predictor.request import setting
from chip.predictor.roof import Roof
from chip.predictor.steps import StepModel
from chip.question import Question
from chip.types import Scenario, Seq, Step


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


@dataclass(frozen=True, eq=False)
class StepPredictor:
    """All that the simulator asks of the predictor. `layers`, `head` and `attention` together are a step."""

    steps: StepModel
    roof: Roof
    terms: tuple[Terms, Terms, Terms]  # as expected, at the least, at the most
    max_context: int
    gpu: str = ""
    pp: int = 1
    notes: tuple[str, ...] = ()
    host_name: str = ""
    server: ServerCost = NONE  # before an engine core of its own

    @property
    def kv_dtype(self) -> str:
        return self.steps.operators.precision.kv or self.steps.operators.precision.activation

    @property
    def windows(self) -> Collection[int]:
        return self.steps.operators.windows

    @property
    def settling(self) -> Settling | None:
        return self.steps.estimator.settling

    @property
    def graph_tokens(self) -> Sequence[int]:
        """Sizes of the engine's CUDA graphs."""
        return self.steps.engine.graph_tokens(self.steps.options)

    def step(self, seqs: tuple[Seq, ...]) -> Step:
        return self.steps.engine.step(seqs, self.steps.options)

    def layers(self, tokens: int, routed: int, decode: bool) -> Work:
        """Those of a step but attention, and what lies between all operators."""
        return self._work(self.steps.operators.layers(tokens, routed, decode))

    def head(self, rows: int) -> Work:
        """What follows the layers, and what the engine runs around a step."""
        return sum_of(self._work(self.steps.operators.head(rows)), Work(self.terms[0].step_s))

    def attention(self, step: Step) -> Work:
        return self._sum(
            [(repeat, "attention", answer) for repeat, answer in self.steps.operators.attention(step)], 0.0
        )

    def _work(self, rows: Sequence[TimedBlock]) -> Work:
        gaps = sum(repeat * calls.launches.operators for repeat, calls, _ in rows)
        answers = [(n, kind, answer) for n, calls, found in rows for kind, answer in zip(calls.kinds, found)]
        return self._sum(answers, gaps * self.terms[0].gap_s)

    def _sum(self, answers: Iterable[tuple[int, str, OperatorTime]], gaps_s: float) -> Work:
        """Of operators, with how often each runs."""
        bytes_per_s = self.steps.estimator.roof.memory
        took, held, by_clock, products, joules = gaps_s, 0.0, 0.0, 0.0, 0.0
        for n, kind, time in answers:
            if not time.seconds:
                continue
            took += n * time.seconds
            held += n * time.limited_s
            by_clock += n * max(0.0, time.seconds - time.bytes / bytes_per_s) if time.bound != "link" else 0.0
            products += n * time.flops if ops.multiplies(kind) else 0.0
            joules += n * time.joules
        return Work(took, held, by_clock, products, joules)

    def host(self, rows: int, tokens: int, decode: bool, graph: bool) -> Host:
        """As the engine plays one prompt of so many tokens, or so many single tokens."""
        terms = self.terms[0]
        like = Step((Seq(1, 1, tokens) if decode else Seq(max(2, tokens), 0, 1),), graph=graph)
        t = Timeline(1.0, terms.gap_s)
        self.steps.play(like, t)
        prepare_s = terms.prepare_s(like.rows)
        tail_s = t.device_s - max(t.host_s, prepare_s + t.worked_s) if t.host_s > prepare_s else 0.0
        step_s, seq_s = terms.host_step_s * self.server.core_step, terms.host_seq_s * self.server.core_seq
        return Host(step_s + rows * seq_s, t.host_s - prepare_s, max(0.0, tail_s))

    def request_s(self, prompt: int) -> float:
        return self.terms[0].request_s * self.server.core_request

    @property
    def host_step_s(self) -> float:
        """Of an engine in its caller's process."""
        return self.terms[0].host_step_s

    def wake_s(self) -> float:
        """Before the first step after the engine had nothing to do."""
        return self.terms[0].first_s

    def stages(self, step: Step) -> Stages:
        shares = parallel.stage_shares(self.steps.operators.decoder, self.pp, self.steps.rows(step))
        return Stages(tuple(shares), parallel.hop(self.steps, self.gpu, step.tokens).value)

    def within_power(self, joules: float, seconds: float) -> float:
        """What the power limit leaves of the joules above idle, in this time."""
        return self.roof.power.within(joules, seconds) if self.roof.power else joules

    def idle_w(self) -> float | None:
        return self.roof.power.idle_w if self.roof.power else None

    def seconds_by_source(self, step: Step) -> dict[str, float]:
        """The device's part by what it rests on."""
        by_source: dict[str, float] = {}
        for line in self.steps.lines(((step, 1.0),), False):
            by_source[line.source] = by_source.get(line.source, 0.0) + line.seconds
        return by_source

    def spread(self, step: Step) -> Spread:
        """Of the device's part."""
        seconds, low_s, high_s = interval(self.steps.lines(((step, 1.0),), False), self.steps.interval_scale)
        return Spread(low_s / seconds, high_s / seconds)

    def host_spread(self) -> Spread:
        value, low, high = (t.host_step_s for t in self.terms)
        return Spread(low / value, high / value) if value else Spread(1.0, 1.0)


def step_times(q: Question, server: ServerCost = NONE) -> StepPredictor:
    """The predictor of a question without `auto`."""
    s, of = q.scenario(1, 1, 1), setting(q)
    terms: tuple[Terms, Terms, Terms] = of.steps.terms or (Terms(), Terms(), Terms())
    notes = (*of.notes, *_notes(s, q.gpu, q.model, of.steps.engine))
    return StepPredictor(of.steps, of.roof, terms, q.model.max_context, q.gpu, q.pp, notes, of.host, server)


def _notes(s: Scenario, gpu: str, decoder: Decoder, engine: Engine) -> list[str]:
    """What must be said where there are several GPUs, or experts on about."""
    out = [f"{s.gpus} GPUs: {parallel.ONE_GPU}{parallel.link_text(gpu)}"] if s.gpus > 1 else []
    out += parallel.experts_note(s, decoder.experts, engine)
    if s.pp > 1:
        out.append(f"{parallel.stages_text(decoder.layer_count, s.pp)}, at most {s.pp} batches in flight")
    return out
