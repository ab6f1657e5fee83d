"""The steps of one model on one engine: every operator's time, and the step as the engine plays it on the timeline."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache, partial
from math import inf
from typing import Any, NamedTuple

from chip import engines
from chip.dtypes import Precision
from chip.engines import Engine
from chip.engines.playing import Played, Weighted
from chip.engines.terms import Terms
from chip.engines.versions import EngineVersion
from chip.models.decoder import Decoder
from chip.models.lower import body, head
from chip.predict.estimator import Estimator
from chip.predict.limits import Answer, held_s_of, of_a_share, scaled, seconds_of
from chip.predict.phase import Line, Phase, Rows, interval, line_of, lines_of, within_power
from chip.predict.template import Ask, SecondStream, Template, TimedCall, attending
from chip.records import replace
from chip.timeline import LaunchBlock, Recorded, Timeline
from chip.types import Op, Program, Scenario, Step

ENGINE = "engine"  # source and kind of the rows that belong to no operator
GAPS, AROUND, WAITING, BEFORE = "gaps", "around_the_model", "waiting_for_host", "before_first_step"
ENGINE_ROWS = ((GAPS, "launch"), (AROUND, "launch"), (WAITING, "host"), (BEFORE, "host"))  # role and bound
RECOVERY = "clock_recovery"
# How much is remembered: operators, sequences of each, lowered programs, and steps and prefills of one model.
MOST_ASKED, MOST_SEQS, MOST_PROGRAMS, MOST_STEPS, MOST_PREFILLS = 4096, 256, 64, 64, 8
FEW_REQUESTS = 16  # below this a step of half a request more takes clearly longer
NOTHING_S = 1e-12  # a shorter row is rounding

TimedRows = Sequence[tuple[Rows, float]]  # the operators of steps, and how many steps each stands for
PlayedSteps = list[tuple[Played, float]]  # the same as engines play them


class EngineTerms(NamedTuple):
    """What an engine and its host add: as expected, at the least and at the most."""

    value: Terms
    low: Terms
    high: Terms


class OnTimeline(NamedTuple):
    """A phase played on the timeline: its seconds, and those of them that belong to no operator."""

    seconds: float
    engine_s: tuple[float, ...]  # as `ENGINE_ROWS`


class TimedSteps(NamedTuple):
    """The steps of a phase with their operators' times, to be played under any terms."""

    model: StepModel
    steps: PlayedSteps
    prefill_of: Scenario | None  # the question, where the steps are its prefill
    slower: float  # factor on all operators' times

    def seconds(self, terms: Terms, scale: float = 1.0) -> float:
        """`scale`: another factor on all operators' times."""
        return self.model.played(self.steps, terms, scale * self.slower, self.prefill_of).seconds


class StepModel:
    """One model on one engine, under one estimator."""

    def __init__(
        self, decoder: Decoder, precision: Precision, tp: int, engine: str, estimator: Estimator, options: Any,
        terms: EngineTerms | None = None, version: EngineVersion | None = None, ep: int = 1,
        interval_scale: float = 1.0,
    ) -> None:  # fmt: skip
        """`options`: of the engine. `version`: None for its newest. `ep`: GPUs that experts lie on."""
        self.decoder, self.precision, self.tp, self.interval_scale = decoder, precision, tp, interval_scale
        version = version or next(iter(engines.get(engine).VERSIONS), None)
        self.run_on(engines.get(engine), estimator, options, terms, version)
        self._second = SecondStream(version.beside_tokens if version else 0, estimator.roof.memory)
        programs = _programs(decoder, precision, tp, ep, engine)
        unsplit = _programs(decoder, precision, 1, 1, engine) if tp > 1 else (None, None, None)
        one, several, last = (self._template(program, whole) for program, whole in zip(programs, unsplit))
        self._one, self._several, self._last = one, several, last
        calls_of_one, calls_of_several, _ = ([c for b in p.blocks for c in b.calls] for p in programs)
        self.windows = frozenset({getattr(c.op, "window", 0) for c in calls_of_one} - {0})
        # Bound to a function, not to a method, as in `Template`: no reference cycle.
        self.rows = lru_cache(maxsize=MOST_STEPS)(partial(_rows, one, several, last, self.windows))
        self._remarking = [
            op for op in dict.fromkeys(c.op for c in calls_of_several) if type(op).remark is not Op.remark
        ]

    def run_on(
        self, engine: Engine, estimator: Estimator, options: Any, terms: EngineTerms | None,
        version: EngineVersion | None = None,
    ) -> None:  # fmt: skip
        """What of the engine and the host does not depend on the model."""
        self.engine, self.estimator, self.terms, self.options = engine, estimator, terms, options
        self.overlaps = version.overlaps_steps if version else engine.OVERLAPS_STEPS
        self.ahead = not estimator.roof.is_cpu  # whether the host launches while the device works
        self.prefill_steps = _prefill_steps(engine, options)
        self._prefills: dict[tuple[Weighted, int], Phase] = {}

    def under(self, terms: EngineTerms | None, options: Any) -> StepModel:
        """The same operators on another host, or with another schedule."""
        made = StepModel.__new__(StepModel)  # `copy.copy` without its module, which a cold answer would import
        vars(made).update(vars(self), terms=terms, options=options, _prefills={})
        made.prefill_steps = _prefill_steps(self.engine, options)
        return made

    def _template(self, program: Program, whole: Program | None) -> Template:
        """`whole`: the same program on one GPU, where this one is split over several."""
        blocks = []
        for i, block in enumerate(program.blocks):
            on_one = {c.role: c.op for c in whole.blocks[i].calls} if whole else {}
            blocks.append((block.repeat, [self._call(c.role, c.op, on_one.get(c.role)) for c in block.calls]))
        return Template(blocks, self._second)

    def _call(self, role: str, op: Op, whole: Op | None) -> TimedCall:
        ask = _ask(self.estimator, op)
        of_more_gpus = getattr(op, "ranks", 1) != getattr(whole, "ranks", 1)  # whole experts on each
        if whole is not None and whole != op and whole.kind == op.kind and not of_more_gpus:
            ask = of_a_share(ask, _ask(self.estimator, whole), self.tp)
        kernels = self.engine.KERNELS.get(op.kind, op.KERNELS)
        flop_per_s = self.estimator.peaks.compute.get(op.compute, inf)
        return TimedCall(role, op.kind, kernels, op.OF_SEQUENCES, op.ROUTED, flop_per_s, ask)

    def remarks(self, s: Scenario) -> list[str]:
        """Why slightly longer prompts may take less time, as operators know it."""
        is_measured = self.estimator.kernels.has
        steps = self.prefill_steps(s) if self._remarking else ()
        seqs = dict.fromkeys([seq for step, _ in steps for seq in step.seqs if seq.new > 1])
        found = [next(filter(None, [op.remark(seq, is_measured) for seq in seqs]), "") for op in self._remarking]
        return list(dict.fromkeys(filter(None, found)))

    def beside_attention(self, tokens: int, routed: int, decode: bool) -> Rows:
        """The layers of a step of so many tokens, attention at no time. `decode`: a single new token of each
        sequence."""
        return (self._one if decode else self._several).rows(tokens, routed, ())

    def head(self, rows: int) -> Rows:
        """What follows the layers, for so many sequences."""
        return self._last.rows(rows, rows, ())

    def attention(self, step: Step) -> list[tuple[int, Answer]]:
        """Each kind of attention of a step, with how often the step runs it."""
        return (self._one if step.decode else self._several).attention(attending(step, self.windows))

    # -- operators of a step ----------------------------------------------------------------------------------------
    def timed(self, steps: Weighted, first: bool) -> list[tuple[Rows, float]]:
        """The operators of steps, with arithmetic at the clock it runs at. `first`: a prefill, which starts on a rested
        GPU; decode steps run on one that has settled."""
        found = [(self.rows(step), weight) for step, weight in steps]
        settling = self.estimator.settling
        if settling is None:
            return found
        if first:
            factor = settling.factor(
                sum([w * n * sum(map(held_s_of, answers)) for rows, w in found for n, _, answers in rows])
            )
        else:
            factor = settling.settled
        return [(_at_clock(rows, factor - 1), weight) for rows, weight in found]

    # -- phases -----------------------------------------------------------------------------------------------------
    def prefill(self, s: Scenario) -> Phase:
        """Remembered, since it hardly depends on the output: a grid over outputs asks for it again and again."""
        steps = self.prefill_steps(s)
        found = self._prefills.get((steps, s.batch))
        if found is None:
            if len(self._prefills) >= MOST_PREFILLS:
                self._prefills.clear()
            found = self._prefills[steps, s.batch] = self._phase(steps, s)
        return found

    def decode(self, s: Scenario) -> Phase:
        """The mean step."""
        return self._phase(self._decode_steps(s), None, s)

    def _slower(self, lines: Sequence[Line], s: Scenario) -> float:
        """The factor on the operators of a mean decode step while the clock, which fell under the prompt, recovers.
        Only what the clock sets takes longer, not the traffic of memory and links."""
        settling, read_per_s = self.estimator.settling, self.estimator.roof.memory
        if settling is None:
            return 1.0
        prompt = self.prefill(s)
        busy_s = prompt.seconds - prompt.seconds_by_source.get(ENGINE, 0.0)
        seconds = sum([line.seconds for line in lines])
        part = settling.recovery(min(prompt.matmul_flops / settling.flop_per_s, busy_s), (s.output - 1) * seconds)
        by_clock_s = sum([max(0.0, n.seconds - n.bytes / read_per_s) for n in lines if n.bound != "link"])
        return 1 + part * by_clock_s / seconds

    def _decode_steps(self, s: Scenario) -> Weighted:
        """All steps after the last first token, by their share of them. The last ones may be of fewer requests, on
        average of a broken number: then of the whole numbers below and above it."""
        last, batch = self.ending(s)
        steps = s.output - 1
        if not last:
            return ((self.engine.decode(s, self.options), 1.0),)
        found = list[tuple[Step, float]]()
        if last < steps:
            full = self.engine.decode(replace(s, output=s.output - last), self.options)
            found.append((full, (steps - last) / steps))
        low = int(batch)
        parts = ((low, 1 - (batch - low)), (low + 1, batch - low)) if batch < FEW_REQUESTS else ((round(batch), 1.0),)
        for requests, part in parts:
            if part:
                ends = replace(s, batch=requests, prompt=s.prompt + steps - last, output=1 + last)
                found.append((self.engine.decode(ends, self.options), last * part / steps))
        return tuple(found)

    def ending(self, s: Scenario) -> tuple[int, float]:
        """How many of the last decode steps are of fewer requests, and of how many on average; (0, 0) where none are.
        Requests with an early first token decode while others prefill, and end as many steps before these."""
        if s.batch == 1 or s.output < 2:
            return 0, 0.0
        left, early, gone = float(s.output - 1), float(s.batch * s.prompt), 0.0
        for step, weight in reversed(self.prefill_steps(s)):
            # n steps before the last one as many end as have their first token n steps before the prefill's last
            decoding = step.seqs[0].count if step.seqs[0].past >= s.prompt else 0
            early -= (step.tokens - step.pad_tokens - decoding) * weight
            requests, count = max(0, round(early)) // s.prompt, min(weight, left)
            gone, left = gone + requests * count, left - count
            if not requests or not left:
                break
        last = s.output - 1 - round(left) if gone else 0
        return (last, max(1.0, s.batch - gone / last)) if last else (0, 0.0)

    def request_tpot_s(self, s: Scenario, step_s: float) -> float:
        """Mean over the requests of (last token - first token) / (output - 1), as traffic is measured. `step_s`: the
        mean step after the last first token. A request that has its token early decodes beside other prompts."""
        steps, terms = self.prefill_steps(s), self.terms.value if self.terms else Terms()
        if len(steps) < 2 or s.output < 2:
            return step_s
        t, more_s = Timeline(1.0, terms.gap_s, self.ahead), 0.0
        for (step, _), (played, weight) in zip(steps, _playable(steps, self.timed(steps, True))):
            before_s = t.device_s
            self.engine.play(t, played, terms)
            along = step.seqs[0].count if step.seqs[0].new == 1 and step.seqs[0].past >= s.prompt else 0
            more_s += weight * along * (t.device_s - before_s - step_s)
        return step_s + more_s / (s.batch * (s.output - 1))

    def _phase(self, steps: Weighted, prefill_of: Scenario | None, after: Scenario | None = None) -> Phase:
        """`prefill_of`: the question, where the steps are its prefill. `after`: the question whose prefill they follow;
        None to leave out the recovery of the clock."""
        rows = self.timed(steps, prefill_of is not None)
        lines = lines_of(rows)
        spans = interval(lines, self.interval_scale)
        (seconds, low_s, high_s), power = spans, self.estimator.roof.power
        if self.terms is None or not seconds:
            return Phase(within_power(lines, power, seconds), low_s, high_s)
        slower = self._slower(lines, after) if after else 1.0
        if slower > 1:
            more_s = [(slower - 1) * s for s in spans]
            lines.append(line_of((RECOVERY, ENGINE, 1.0, *more_s, "compute", ENGINE, 0.0, 0.0, 0.0)))
        played = _playable(steps, rows)
        value, least, most = [
            self.played(played, terms, slower * s / seconds, prefill_of) for terms, s in zip(self.terms, spans)
        ]
        for (role, bound), own_s, least_s, most_s in zip(ENGINE_ROWS, value.engine_s, least.engine_s, most.engine_s):
            # a device may wait for the host as expected and not at its slowest, or the other way round
            if own_s > NOTHING_S or most_s > NOTHING_S:
                own_s = own_s if own_s > NOTHING_S else 0.0
                lines.append(line_of((role, ENGINE, 1.0, own_s, least_s, most_s, bound, ENGINE, 0.0, 0.0, 0.0)))
        return Phase(within_power(lines, power, value.seconds), least.seconds, most.seconds)

    def played(self, steps: PlayedSteps, terms: Terms, scale: float, prefill_of: Scenario | None) -> OnTimeline:
        """Steps on the timeline, every operator's time multiplied by `scale`. Those of a prefill follow each other on
        one timeline; decode steps are played one by one and averaged."""
        worked = seconds = gaps = around = 0.0
        before = terms.first_s + terms.request_s * prefill_of.batch if prefill_of else 0.0
        t = Timeline(scale, terms.gap_s, self.ahead)
        t.prepare("submit", before)
        for played, weight in steps:
            if prefill_of is None:
                t = Timeline(scale, terms.gap_s, self.ahead)
            host_s, worked_s = t.host_s, t.worked_s
            self.engine.play(t, played, terms)
            worked += weight * (t.worked_s - worked_s)
            if prefill_of is None:
                prepared_s = terms.prepare_s(played.sequences)  # during the step before, where steps overlap
                seconds += weight * (max(t.host_s, t.device_s - prepared_s) if self.overlaps else t.device_s)
            elif weight != 1.0:
                t.skip(weight - 1, t.host_s - host_s, t.worked_s - worked_s)
            gaps += weight * played.operators * terms.gap_s
            around += weight * terms.step_s
        if prefill_of is not None:
            seconds = t.device_s
        return OnTimeline(seconds, (gaps, around, max(0.0, seconds - worked - before), before))

    def subject(self, s: Scenario, first: bool) -> TimedSteps:
        """A phase whose operators are timed and whose terms are to be fitted. `first`: the prefill."""
        steps = self.prefill_steps(s) if first else self._decode_steps(s)
        rows = self.timed(steps, first)
        slower = 1.0 if first else self._slower(lines_of(rows), s)
        return TimedSteps(self, _playable(steps, rows), s if first else None, slower)

    def timeline(self, step: Step) -> Recorded:
        """One step played kernel by kernel."""
        t = Recorded(1.0, self.terms.value.gap_s if self.terms else 0.0, self.ahead)
        self.play(step, t)
        return t

    def play(self, step: Step, t: Timeline) -> None:
        """One step alone, as the engine plays it."""
        steps: Weighted = ((step, 1.0),)
        ((played, _),) = _playable(steps, self.timed(steps, False))
        self.engine.play(t, played, self.terms.value if self.terms else Terms())


def _rows(one: Template, several: Template, last: Template, windows: Collection[int], step: Step) -> Rows:
    """Every operator of a step, in order, at the clock at which its points were measured. Remembered: a prefill of one
    more prompt begins with the same steps. `one`, `several`: the layers, for a single new token of each sequence and
    for several; `last`: what follows them."""
    tokens, rows = step.tokens, step.rows
    routed = step.routed_tokens if step.pad_tokens else tokens
    layers = one if step.decode else several
    return layers.rows(tokens, routed, attending(step, windows)) + last.rows(rows, rows, ())


@lru_cache(maxsize=MOST_PROGRAMS)  # a ranking asks for the same on every GPU
def _programs(d: Decoder, p: Precision, tp: int, ep: int, engine: str) -> tuple[Program, Program, Program]:
    """What the engine runs for one token of each sequence, for several, and after the last layer."""
    layers, last, rewrite = body(d, 1, p, tp, ep), head(d, 1, p, tp), engines.get(engine).rewrite
    return (
        rewrite(layers, True, d.architecture), rewrite(layers, False, d.architecture),
        rewrite(last, False, d.architecture),
    )  # fmt: skip


@lru_cache(maxsize=MOST_ASKED)  # models on several GPUs ask for their operators whole, too
def _ask(estimator: Estimator, op: Op) -> Ask:
    """The function that answers for an operator: of a sequence where it is attention, else of a number of tokens."""
    if op.OF_SEQUENCES:
        return lru_cache(maxsize=MOST_SEQS)(estimator.over(op))
    return estimator.along(op)


def _playable(steps: Weighted, timed: TimedRows) -> PlayedSteps:
    """Steps whose operators are timed, as the engine plays them."""
    made = []
    for (step, weight), (rows, _) in zip(steps, timed):
        blocks = [LaunchBlock(n, calls.launches, list(map(seconds_of, answers))) for n, calls, answers in rows]
        seconds = sum([b.repeat * b.seconds for b in blocks])
        operators = sum([b.repeat * b.launches.operators for b in blocks])
        made.append((Played(blocks, seconds, operators, step.graph, step.decode, step.rows), weight))
    return made


def _at_clock(rows: Rows, more: float) -> Rows:
    """The same operators at another clock: seconds that the power limit holds take this part more, others as long."""

    def slowed(answer: Answer) -> Answer:
        return scaled(answer, 1 + more * held_s_of(answer) / seconds_of(answer))

    return [(n, calls, [slowed(a) if held_s_of(a) else a for a in answers]) for n, calls, answers in rows]


def _prefill_steps(engine: Engine, options: Any) -> Callable[[Scenario], Weighted]:
    """The engine's steps of a prefill; a grid over outputs asks for the same again and again."""
    return lru_cache(maxsize=MOST_PREFILLS)(lambda s: engine.prefill(s, options))
