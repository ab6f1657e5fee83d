"""The steps of one model on one engine: every operator's time, and the step as the engine plays it on the timeline."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

from chip import engines
from chip.dtypes import Precision
from chip.engines.playing import Played, Weighted
from chip.engines.terms import Terms
from chip.engines.versions import EngineVersion
from chip.models.decoder import Decoder
from chip.models.lower import body, head
from chip.predict.estimator import Estimator
from chip.predict.limits import Answer, of_a_share
from chip.predict.phase import Line, Phase, Rows, interval, line_of, lines_of
from chip.predict.template import Ask, Beside, Template, TimedCall, attending
from chip.records import replace
from chip.timeline import LaunchBlock, Recorded, Timeline
from chip.types import Op, Program, Scenario, Step

ENGINE = "engine"  # source and kind of rows that no operator has
GAPS, AROUND = "gaps", "around_the_model"
WAITING, BEFORE, RECOVERY = "waiting_for_host", "before_first_step", "clock_recovery"
MOST_ASKED, MOST_SEQS = 4096, 256  # operators, and sequences of each, that are remembered
MOST_PROGRAMS = 64
MOST_STEPS, MOST_PREFILLS = 64, 8  # of one model that are remembered
FEW = 16  # requests: half of one more makes a difference
NOTHING_S = 1e-12  # a row shorter than this is rounding


class EngineTerms(NamedTuple):
    """What an engine and its host add: as expected, at the least and at the most."""

    value: Terms
    low: Terms
    high: Terms


class StepModel:
    """One model on one engine, under one estimator."""

    def __init__(
        self, decoder: Decoder, precision: Precision, tp: int, engine: str, estimator: Estimator,
        terms: EngineTerms | None = None, version: EngineVersion | None = None, ep: int = 1,
        interval_scale: float = 1.0,
    ) -> None:  # fmt: skip
        """`version`: the engine's newest where it is not given. `ep`: GPUs that experts lie on."""
        self.interval_scale = interval_scale
        self.decoder, self.precision, self.tp = decoder, precision, tp
        self.engine = engines.get(engine)
        version = version or next(iter(self.engine.VERSIONS), None)
        self.overlaps = version.overlaps_steps if version else self.engine.OVERLAPS_STEPS
        self._beside = Beside(version.beside_tokens if version else 0, estimator.roof.ideal["memory"])
        self.estimator, self.terms = estimator, terms
        self._prefills: dict[tuple[Weighted, int], Phase] = {}
        self.prefill_steps = lru_cache(maxsize=MOST_PREFILLS)(self.engine.prefill)
        programs = _programs(decoder, precision, tp, ep, engine)
        whole = _programs(decoder, precision, 1, 1, engine) if tp > 1 else (None, None, None)
        one_token = programs[0]
        one, several, last = (self._template(p, w) for p, w in zip(programs, whole))
        # of its parts, not of this object: what refers to itself waits for a collection of garbage to be freed
        self.windows = frozenset({getattr(c.op, "window", 0) for b in one_token.blocks for c in b.calls} - {0})
        self.rows = lru_cache(maxsize=MOST_STEPS)(partial(_rows, one, several, last, self.windows))
        of_prompts = dict.fromkeys(c.op for b in programs[1].blocks for c in b.calls)
        self._remarking = [op for op in of_prompts if type(op).remark is not Op.remark]

    def _template(self, program: Program, whole: Program | None) -> Template:
        """`whole`: the same on one GPU, where the program is one of several GPUs'."""
        blocks = whole.blocks if whole else ()
        unsplit = [{c.role: c.op for c in b.calls} for b in blocks] or [{}] * len(program.blocks)
        return Template(
            [
                (b.repeat, [self._call(c.role, c.op, of_one.get(c.role)) for c in b.calls])
                for b, of_one in zip(program.blocks, unsplit)
            ],
            self._beside,
        )

    def _call(self, role: str, op: Op, whole: Op | None) -> TimedCall:
        ask = _ask(self.estimator, op)
        of_more_gpus = getattr(op, "ranks", 1) != getattr(whole, "ranks", 1)  # whole experts on each
        if whole is not None and whole != op and whole.kind == op.kind and not of_more_gpus:
            ask = of_a_share(ask, _ask(self.estimator, whole), self.tp)
        return TimedCall(role, op.kind, self.engine.KERNELS.get(op.kind, op.KERNELS), op.OF_SEQUENCES, op.ROUTED, ask)

    def remarks(self, s: Scenario, memory_bytes: float) -> list[str]:
        """Why prompts of a little more may take less time, as operators know it."""
        is_measured = self.estimator.kernels.has
        steps = self.prefill_steps(s, memory_bytes) if self._remarking else ()
        seqs = dict.fromkeys([seq for step, _ in steps for seq in step.seqs if seq.new > 1])
        found = [next(filter(None, [op.remark(seq, is_measured) for seq in seqs]), "") for op in self._remarking]
        return list(dict.fromkeys(filter(None, found)))

    # -- operators of a step ----------------------------------------------------------------------------------------
    def timed(self, steps: Weighted, first: bool) -> list[tuple[Rows, float]]:
        """With arithmetic at the clock it runs at: a prefill finds a rested GPU, decode steps one that has settled."""
        found = [(self.rows(step), weight) for step, weight in steps]
        settling = self.estimator.settling
        if settling is None:
            return found
        factor = settling.settled
        if first:
            factor = settling.factor(
                sum([w * n * sum([a[0] for a in answers]) for rows, w in found for n, _, answers in rows])
            )
        more = factor - 1
        return [
            ([(n, calls, [_at(a, more) if a[7] else a for a in answers]) for n, calls, answers in rows], weight)
            for rows, weight in found
        ]

    # -- phases -----------------------------------------------------------------------------------------------------
    def prefill(self, s: Scenario, memory_bytes: float) -> Phase:
        """Whatever the output, it is mostly the same: a grid asks for it once."""
        steps = self.prefill_steps(s, memory_bytes)
        found = self._prefills.get((steps, s.batch))
        if found is None:
            if len(self._prefills) >= MOST_PREFILLS:
                self._prefills.clear()
            found = self._prefills[steps, s.batch] = self._phase(steps, s)
        return found

    def decode(self, s: Scenario, memory_bytes: float) -> Phase:
        """The mean step."""
        return self._phase(self._decode_steps(s, memory_bytes), None, (s, memory_bytes))

    def _slower(self, lines: Sequence[Line], seconds: float, s: Scenario, memory_bytes: float) -> float:
        """How many times as long the operators of a mean decode step take because the GPU's clock, which fell under the
        prompt, recovers step by step. What memory or a link takes is not longer."""
        settling, read_per_s = self.estimator.settling, self.estimator.roof.ideal["memory"]
        if settling is None:
            return 1.0
        prompt = self.prefill(s, memory_bytes)
        busy_s = prompt.seconds - prompt.seconds_by_source.get(ENGINE, 0.0)
        part = settling.recovery(min(prompt.matmul_flops / settling.flop_per_s, busy_s), (s.output - 1) * seconds)
        by_clock_s = sum([max(0.0, n[3] - n[9] / read_per_s) for n in lines if n[6] != "link"])
        return 1 + part * by_clock_s / seconds

    def _decode_steps(self, s: Scenario, memory_bytes: float) -> Weighted:
        """All steps after the last first token. The last of them are of fewer requests, in the mean of `batch`."""
        last, batch = self.ending(s, memory_bytes)
        steps = s.output - 1
        if not last:
            return ((self.engine.decode(s, memory_bytes), 1.0),)
        found = list[tuple[Step, float]]()
        if last < steps:
            full = self.engine.decode(replace(s, output=s.output - last), memory_bytes)
            found.append((full, (steps - last) / steps))
        low = int(batch)
        parts = ((low, 1 - (batch - low)), (low + 1, batch - low)) if batch < FEW else ((round(batch), 1.0),)
        for some, part in parts:
            ends = replace(s, batch=some, prompt=s.prompt + steps - last, output=1 + last)
            if part:
                found.append((self.engine.decode(ends, memory_bytes), last * part / steps))
        return tuple(found)

    def ending(self, s: Scenario, memory_bytes: float) -> tuple[int, float]:
        """Requests that had their first token in an earlier step than others have decoded along since, and end as many
        steps before them: how many steps are of fewer requests, and of how many in the mean. (0, 0) where none are."""
        if s.batch == 1 or s.prompt == 1 or s.output < 2:
            return 0, 0.0
        along = list[tuple[int, float]]()
        for step, weight in self.prefill_steps(s, memory_bytes):
            if step.decode and len(step.seqs) == 1:  # between waves of requests, not all of which run at once
                return 0, 0.0
            if step.seqs[0].new == 1:
                along.append((step.seqs[0].count, weight))
        steps = sum([weight for _, weight in along])
        if not (last := min(round(steps), s.output - 1)):
            return 0, 0.0
        gone, left = 0.0, float(last)  # those of a step before the end are those that decoded along as long before
        for count, weight in reversed(along):
            gone += count * min(weight, left)
            left -= min(weight, left)
        return last, max(1.0, s.batch - gone / last)

    def _phase(self, steps: Weighted, asked: Scenario | None, after: tuple[Scenario, float] | None = None) -> Phase:
        """`asked` where the steps end with the first tokens. `after`: the question whose prompts they follow, and the
        GPU's memory."""
        found = self.timed(steps, asked is not None)
        lines = lines_of(found)
        seconds, low_s, high_s = interval(lines, self.interval_scale)
        if self.terms is None or not seconds:
            return Phase(lines, low_s, high_s)
        slower = self._slower(lines, seconds, *after) if after else 1.0
        if slower > 1:
            more_s = [(slower - 1) * s for s in (seconds, low_s, high_s)]
            lines.append(line_of((RECOVERY, ENGINE, 1.0, *more_s, "compute", ENGINE, 0.0, 0.0)))
        known = _known(steps, found)
        scaled = zip(self.terms, [slower * s / seconds for s in (seconds, low_s, high_s)])
        times = [self._played(known, terms, scale, asked) for terms, scale in scaled]
        value, least, most = times
        lines += [
            line_of((role, ENGINE, calls, v if v > NOTHING_S else 0.0, lo, hi, bound, ENGINE, 0.0, 0.0))
            for (role, calls, bound), v, lo, hi in zip(ADDED, value.parts, least.parts, most.parts)
            if v > NOTHING_S or hi > NOTHING_S  # a device at its slowest may not wait where one as expected does
        ]  # fmt: skip
        return Phase(lines, least.seconds, most.seconds)

    def _played(self, found: PlayedSteps, terms: Terms, scale: float, asked: Scenario | None) -> Added:
        """The steps on the timeline, every operator's time times `scale`."""
        worked = seconds = gaps = around = 0.0
        before = terms.first_s + terms.request_s * asked.batch if asked else 0.0
        t = Timeline(scale, terms.gap_s)
        t.prepare("submit", before)
        for played, weight in found:
            if asked is None:
                t = Timeline(scale, terms.gap_s)
            host_s, worked_s = t.host_s, t.worked_s
            self.engine.play(t, played, terms)
            worked += weight * (t.worked_s - worked_s)
            if asked is None:
                prepared_s = terms.prepare_s(played.sequences)  # while the step before runs, where steps overlap
                seconds += weight * (max(t.host_s, t.device_s - prepared_s) if self.overlaps else t.device_s)
            elif weight != 1.0:
                t.skip(weight - 1, t.host_s - host_s, t.worked_s - worked_s)
            gaps += weight * played.kernels * terms.gap_s
            around += weight * terms.step_s
        if asked is not None:
            seconds = t.device_s
        return Added(seconds, (gaps, around, max(0.0, seconds - worked - before), before))

    def subject(self, s: Scenario, memory_bytes: float, first: bool) -> TimedSteps:
        """A phase whose operators are known, to be timed under any terms."""
        steps = self.prefill_steps(s, memory_bytes) if first else self._decode_steps(s, memory_bytes)
        found = self.timed(steps, first)
        lines = lines_of(found)
        slower = 1.0 if first else self._slower(lines, interval(lines)[0], s, memory_bytes)
        return TimedSteps(self, _known(steps, found), s if first else None, slower)

    def timeline(self, step: Step) -> Recorded:
        """One step played kernel by kernel."""
        t = Recorded(1.0, self.terms.value.gap_s if self.terms else 0.0)
        self.play(step, t)
        return t

    def play(self, step: Step, t: Timeline) -> None:
        """One step alone, as the engine plays it."""
        ((played, _),) = _known(((step, 1.0),), self.timed(((step, 1.0),), False))
        self.engine.play(t, played, self.terms.value if self.terms else Terms())


def _rows(one: Template, several: Template, head: Template, windows: Collection[int], step: Step) -> Rows:
    """Every operator of a step, in order, at the clock that its points were measured at. A prefill of one more prompt
    begins with the same steps."""
    tokens, rows = step.tokens, step.rows
    routed = step.routed_tokens if step.pad_tokens else tokens
    return (one if step.decode else several).rows(tokens, routed, attending(step, windows)) + head.rows(rows, rows, ())


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
    """How an operator is answered: for tokens, or, where it attends, for sequences."""
    if op.OF_SEQUENCES:
        return lru_cache(maxsize=MOST_SEQS)(estimator.over(op))
    return estimator.along(op)


class TimedSteps(NamedTuple):
    """Steps with their operators' times."""

    model: StepModel
    found: PlayedSteps
    asked: Scenario | None
    slower: float  # times that operators take as long as they were timed

    def seconds(self, terms: Terms, scale: float = 1.0) -> float:
        """`scale`: of every operator's time."""
        return self.model._played(self.found, terms, scale * self.slower, self.asked).seconds


PlayedSteps = list[tuple[Played, float]]  # and how many steps each stands for


def _known(steps: Weighted, found: Sequence[tuple[Rows, float]]) -> PlayedSteps:
    made = []
    for (step, weight), (rows, _) in zip(steps, found):
        blocks = [LaunchBlock(n, calls.launches, [a[0] for a in answers]) for n, calls, answers in rows]
        seconds = sum([b.repeat * b.seconds for b in blocks])
        kernels = sum([b.repeat * b.launches.kernel_count for b in blocks])
        made.append((Played(blocks, seconds, kernels, step.graph, step.decode, step.rows), weight))
    return made


class Added(NamedTuple):
    """A phase on the timeline: its seconds, and those of them that no operator has."""

    seconds: float
    parts: tuple[float, ...]  # as ADDED


ADDED = (
    (GAPS, 1.0, "launch"), (AROUND, 1.0, "launch"), (WAITING, 1.0, "host"),
    (BEFORE, 1.0, "host"),
)  # fmt: skip


def _at(answer: Answer, more: float) -> Answer:
    """At another clock, at which what the power limit holds takes so much more."""
    seconds, low_s, high_s, bound, source, flops, moved, held_s = answer
    factor = 1 + more * held_s / seconds
    return seconds * factor, low_s * factor, high_s * factor, bound, source, flops, moved, held_s
