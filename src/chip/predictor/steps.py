"""The steps of one model on one engine: prefill and decode, played on the timeline as the engine plays them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from chip import engines
from chip.decoders.decoder import Decoder
from chip.dtypes import Precision
from chip.engines import Engine, EngineVersion
from chip.engines.recorded import Recorded
from chip.engines.timeline import LaunchBlock, Played, RoleLaunches, Terms, Timeline, Weighted
from chip.predictor.estimator import Estimator
from chip.predictor.phase import ENGINE, Line, Operators, Phase, StepPhase, line_of
from chip.predictor.program import TimedBlock, TimedOperators, TimedStep
from chip.predictor.schedule import Schedule, schedule
from chip.types import Scenario, Step

GAPS, AROUND, WAITING, BEFORE = "gaps", "around_the_model", "waiting_for_host", "before_first_step"
ENGINE_ROWS = ((GAPS, "launch"), (AROUND, "launch"), (WAITING, "host"), (BEFORE, "host"))  # role and bound
RECOVERY = "clock_recovery"
NOTHING_S = 1e-12  # a shorter row is rounding


class EngineTerms(NamedTuple):
    """What an engine and its host add: as expected, at the least and at the most."""

    value: Terms
    low: Terms
    high: Terms


class OnTimeline(NamedTuple):
    """A phase played on the timeline: its seconds, and those of them that belong to no operator."""

    seconds: float
    engine_s: tuple[float, ...]  # as `ENGINE_ROWS`
    early_tokens: float = 0.0  # that early requests decode beside other prompts
    early_s: float = 0.0  # what these tokens took together


class PlayableStep(Played):
    """A timed step as an engine plays it on the timeline. Its blocks are made where they are launched one by one."""

    __slots__ = ("_blocks", "_slower", "timed")

    def __init__(self, timed: TimedStep, slower: float) -> None:
        """`slower`: the part that seconds at the power limit take more."""
        run, layers, attention, last = timed
        layers_s, last_s = layers.sums, last.sums
        seconds = layers_s.seconds + last_s.seconds + slower * (layers_s.limited_s + last_s.limited_s)
        for call, time in zip(layers.shape.attention_calls, attention):
            seconds += call.repeat * (time.seconds + slower * time.limited_s)
        operators = layers.shape.operators + last.shape.operators
        super().__init__(seconds, operators, run.step.graph, run.step.decode, run.rows)
        self.timed, self._slower = timed, slower
        self._blocks: list[LaunchBlock] = []

    @property
    def launches(self) -> Sequence[tuple[float, RoleLaunches]]:
        return [*self.timed.layers.shape.launches, *self.timed.head.shape.launches]

    @property
    def blocks(self) -> Sequence[LaunchBlock]:
        if not self._blocks:
            self._blocks = self.timed.launch_blocks(self._slower)
        return self._blocks


class PhaseSteps(NamedTuple):
    """The steps of a phase with their operators' times, to be played under any terms."""

    model: StepModel
    steps: Sequence[PlayableStep]
    prefill_of: Scenario | None  # the question, where the steps are its prefill
    slower: float  # factor on all operators' times

    def seconds(self, terms: Terms, scale: float = 1.0) -> float:
        """`scale`: another factor on all operators' times."""
        return self.model.played(self.steps, terms, scale * self.slower, self.prefill_of).seconds


class StepModel:
    """The steps of one model: its operators, timed, under an engine's options and the terms of engine and host."""

    def __init__(
        self, operators: TimedOperators, estimator: Estimator, engine: Engine, options: Any, version: EngineVersion,
        terms: EngineTerms | None = None, interval_scale: float = 1.0,
    ) -> None:  # fmt: skip
        """`options`: of the engine. `terms`: None for operators alone. `version`: of the engine."""
        self.operators, self.estimator, self.engine, self.options = operators, estimator, engine, options
        self.terms, self.interval_scale = terms, interval_scale
        self.overlaps = version.overlaps_steps
        self.ahead = not estimator.roof.is_cpu  # whether the host launches while the device works

    def schedule(self, s: Scenario) -> Schedule:
        return schedule(self.engine.NAME, s, self.options)

    def rows(self, step: Step) -> list[TimedBlock]:
        """Every operator of a step, in order, at the clock at which its points were measured."""
        return self._timed(((step, 1.0),))[0].blocks()

    # -- operators of steps -----------------------------------------------------------------------------------------
    def _timed(self, steps: Weighted, prompt: int = 0) -> list[TimedStep]:
        """`prompt`: tokens of each request, where the steps are a prefill."""
        return [self.operators.time(run) for run in self.operators.runs(steps, prompt)]

    def _slower(self, timed: Sequence[TimedStep], first: bool) -> float:
        """The part that seconds at the power limit take more than where points were measured. `first`: a prefill, which
        starts on a rested GPU; decode steps run on one that has settled."""
        settling = self.estimator.settling
        if settling is None:
            return 0.0
        if first:
            return settling.factor(sum([step.run.weight * step.limited_s for step in timed])) - 1
        return settling.settled - 1

    def at_clock(self, steps: Weighted, first: bool) -> list[tuple[list[TimedBlock], float]]:
        """Every operator of weighted steps, at the clock it runs at."""
        timed = self._timed(steps)
        slower = self._slower(timed, first)
        return [(step.blocks(slower), step.run.weight) for step in timed]

    def lines(self, steps: Weighted, first: bool) -> list[Line]:
        """A line for each role, all steps added up by their weights."""
        timed = self._timed(steps)
        return Operators(timed, self._slower(timed, first)).lines

    # -- phases -----------------------------------------------------------------------------------------------------
    def prefill(self, s: Scenario) -> Phase:
        return self.phase(self.schedule(s).prefill, prefill_of=s)

    def decode(self, s: Scenario, prefill: Phase | None = None) -> Phase:
        """The mean step. `prefill`: of the same question, where it is known."""
        return self.phase(self.schedule(s).decode, after=prefill or self.prefill(s), decode_steps=s.output - 1)

    def _recovery(self, operators: Operators, prompt: Phase, steps: int) -> float:
        """The factor on the operators of a mean decode step while the clock, which fell under the prompt, recovers.
        Only what the clock sets takes longer, not the traffic of memory and links."""
        settling = self.estimator.settling
        if settling is None:
            return 1.0
        busy_s = prompt.seconds - prompt.engine_s
        load_s = min(prompt.matmul_flops / settling.flop_per_s, busy_s)
        part = settling.recovery(load_s, steps * operators.seconds)
        return 1 + part * operators.by_clock_s(self.estimator.roof.memory) / operators.seconds

    def phase(
        self, steps: Weighted, prefill_of: Scenario | None = None, after: Phase | None = None, decode_steps: int = 0
    ) -> Phase:
        """`prefill_of`: the question, where the steps are its prefill. `after`: the prefill that so many decode steps
        follow; None to leave out the recovery of the clock."""
        timed = self._timed(steps, prefill_of.prompt if prefill_of else 0)
        slower = self._slower(timed, prefill_of is not None)
        operators, power = Operators(timed, slower, self.interval_scale), self.estimator.roof.power
        seconds, spans = operators.seconds, (operators.seconds, operators.low_s, operators.high_s)
        if self.terms is None or not seconds:
            return StepPhase(operators, (), *spans[1:], power, seconds)
        rows: list[Line] = []
        recovery = self._recovery(operators, after, decode_steps) if after else 1.0
        if recovery > 1:
            more_s = [(recovery - 1) * s for s in spans]
            rows.append(line_of((RECOVERY, ENGINE, 1.0, *more_s, "compute", ENGINE, 0.0, 0.0, 0.0)))
        playable = [PlayableStep(step, slower) for step in timed]
        value, least, most = [
            self.played(playable, terms, recovery * s / seconds, prefill_of) for terms, s in zip(self.terms, spans)
        ]
        for (role, bound), own_s, least_s, most_s in zip(ENGINE_ROWS, value.engine_s, least.engine_s, most.engine_s):
            # a device may wait for the host as expected and not at its slowest, or the other way round
            if own_s > NOTHING_S or most_s > NOTHING_S:
                own_s = own_s if own_s > NOTHING_S else 0.0
                rows.append(line_of((role, ENGINE, 1.0, own_s, least_s, most_s, bound, ENGINE, 0.0, 0.0, 0.0)))
        phase = StepPhase(operators, rows, least.seconds, most.seconds, power, value.seconds)
        phase.early_tokens, phase.early_s = value.early_tokens, value.early_s
        return phase

    # -- on the timeline --------------------------------------------------------------------------------------------
    def played(
        self, steps: Sequence[PlayableStep], terms: Terms, scale: float, prefill_of: Scenario | None
    ) -> OnTimeline:
        """Steps on the timeline, every operator's time multiplied by `scale`."""
        if prefill_of is None:
            return self._decode_played(steps, terms, scale)
        return self._prefill_played(steps, terms, scale, prefill_of)

    def _prefill_played(self, steps: Sequence[PlayableStep], terms: Terms, scale: float, s: Scenario) -> OnTimeline:
        """One after another."""
        worked = gaps = around = early_tokens = early_s = 0.0
        before_s = terms.first_s + terms.request_s * s.batch
        t = Timeline(scale, terms.gap_s, self.ahead)
        t.prepare("submit", before_s)
        for step in steps:
            _, weight, _, _, _, early = step.timed.run
            host_s, device_s, worked_s = t.host_s, t.device_s, t.worked_s
            self.engine.play(t, step, terms)
            worked += weight * (t.worked_s - worked_s)
            early_tokens += weight * early
            early_s += weight * early * (t.device_s - max(device_s, before_s))
            if weight != 1.0:
                t.skip(weight - 1, t.host_s - host_s, t.worked_s - worked_s)
            gaps += weight * step.operators * terms.gap_s
            around += weight * terms.step_s
        waiting_s = max(0.0, t.device_s - worked - before_s)
        return OnTimeline(t.device_s, (gaps, around, waiting_s, before_s), early_tokens, early_s)

    def _decode_played(self, steps: Sequence[PlayableStep], terms: Terms, scale: float) -> OnTimeline:
        """One by one, and averaged."""
        worked = seconds = gaps = around = 0.0
        for step in steps:
            weight = step.timed.run.weight
            t = Timeline(scale, terms.gap_s, self.ahead)
            self.engine.play(t, step, terms)
            worked += weight * t.worked_s
            prepared_s = terms.prepare_s(step.sequences)  # during the step before, where steps overlap
            seconds += weight * (max(t.host_s, t.device_s - prepared_s) if self.overlaps else t.device_s)
            gaps += weight * step.operators * terms.gap_s
            around += weight * terms.step_s
        return OnTimeline(seconds, (gaps, around, max(0.0, seconds - worked), 0.0))

    def phase_steps(self, s: Scenario, first: bool) -> PhaseSteps:
        """A phase whose operators are timed and whose terms are to be fitted. `first`: the prefill."""
        steps = self.schedule(s).prefill if first else self.schedule(s).decode
        timed = self._timed(steps, s.prompt if first else 0)
        slower = self._slower(timed, first)
        recovery = 1.0 if first else self._recovery(Operators(timed, slower), self.prefill(s), s.output - 1)
        return PhaseSteps(self, [PlayableStep(step, slower) for step in timed], s if first else None, recovery)

    def timeline(self, step: Step) -> Recorded:
        """One step played kernel by kernel."""
        t = Recorded(1.0, self.terms.value.gap_s if self.terms else 0.0, self.ahead)
        self.play(step, t)
        return t

    def play(self, step: Step, t: Timeline) -> None:
        """One step alone, as the engine plays it."""
        timed = self._timed(((step, 1.0),))
        playable = PlayableStep(timed[0], self._slower(timed, False))
        self.engine.play(t, playable, self.terms.value if self.terms else Terms())


def step_model(
    decoder: Decoder, precision: Precision, tp: int, engine: str, estimator: Estimator, options: Any,
    terms: EngineTerms | None = None, version: EngineVersion | None = None, ep: int = 1, interval_scale: float = 1.0,
    sampling: tuple[str, ...] = (),
) -> StepModel:  # fmt: skip
    """The steps of a model on an engine. `version`: None for the newest. `sampling`: beside the largest logit."""
    e = engines.get(engine)
    version = version or e.version("")
    operators = operators_of(
        decoder, precision, tp, ep, engine, estimator, version.beside_tokens, version.reduces_and_norms > 0, sampling
    )
    return StepModel(operators, estimator, e, options, version, terms, interval_scale)


operators_of = lru_cache(maxsize=256)(TimedOperators)
