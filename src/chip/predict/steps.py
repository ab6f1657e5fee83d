"""The steps of one model on one engine: every operator's time, and the step as the engine plays it on the timeline.

A program is lowered once, for one token: every operator but attention grows with the tokens along one axis, so that a
step of n tokens needs no lowering of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from math import sqrt
from operator import attrgetter
from typing import Any, NamedTuple

from chip import engines
from chip.dtypes import Precision
from chip.engines.context import PANELS
from chip.engines.playing import Played, Weighted
from chip.engines.terms import Terms
from chip.models.decoder import Decoder
from chip.models.lower import body, head, is_placeholder
from chip.ops.masked_attention import MASK_PIECE, MaskedAttention, WindowedAttention
from chip.predict.clock import FREE, Settling
from chip.predict.estimator import INTERPOLATED, Estimator
from chip.predict.limits import Answer, of_a_share
from chip.timeline import LaunchBlock, Recorded, Timeline
from chip.types import Op, Program, Scenario, Step

ATTENTION = "attention"  # the kind of attention over pages
MASKED = (MaskedAttention, WindowedAttention)  # attention that meets a mask, or may
ENGINE = "engine"  # source and kind of rows that no operator has
GAPS, ATTENDING, AROUND = "gaps", "attention_in_engine", "around_the_model"
WAITING, BEFORE = "waiting_for_host", "before_first_step"
REMEMBERED = 64  # sizes of steps, so that a sweep of any length runs in bounded memory
EXPERTS = frozenset({"moe_experts", "moe_experts_composed", "scaled_experts", "packed_experts"})
PRODUCTS = frozenset({
    "linear", "bmm", "attention", "masked_attention", "growing_attention", "mla", "alibi_attention", "float_attention",
    "sink_attention", "scaled_linear", "packed_linear", "scaled_experts", "packed_experts", "fp8_attention",
    "fp8_cache_attention", "moe_experts", "moe_experts_composed", "moe_router", "moe_router_composed",
})  # fmt: skip
# Largest ratio between the ceilings of two H200s: a card differs from the next by so much.
BETWEEN_CARDS = 1.035
NOTHING_S = 1e-12  # a row shorter than this is rounding


class Line(NamedTuple):
    """A row of the breakdown: all calls of one role in a phase."""

    role: str
    kind: str
    calls: float
    seconds: float
    low_s: float
    high_s: float
    bound: str
    source: str
    flops: float
    bytes: float


class EngineTerms(NamedTuple):
    """What an engine and its host add: as expected, at the least and at the most."""

    value: Terms
    low: Terms
    high: Terms


class Phase:
    """Prefill (until the last first token) or the mean decode step: its lines, longest first, and their sums."""

    __slots__ = ("bytes", "high_s", "lines", "low_s", "matmul_flops", "seconds")

    def __init__(self, lines: Iterable[Line], low_s: float, high_s: float) -> None:
        self.lines = sorted(lines, key=attrgetter("seconds"), reverse=True)
        self.seconds = sum([n.seconds for n in self.lines])
        self.low_s, self.high_s = min(low_s, self.seconds), max(high_s, self.seconds)
        self.bytes = sum([n.bytes for n in self.lines])
        self.matmul_flops = sum([n.flops for n in self.lines if n.kind in PRODUCTS])


def interval(lines: Sequence[Line], scale: float = 1.0) -> tuple[float, float, float]:
    """Seconds of all lines, at the least and at the most. What rests on one roof errs together; what was measured errs
    each on its own; and cards differ, then in everything. `scale` is that of the kind of GPU
    (`chip.predict.interval_class`)."""
    seconds = sum([n.seconds for n in lines])
    below = above = (seconds * (BETWEEN_CARDS - 1)) ** 2
    together: dict[str, tuple[float, float]] = {}
    for _, _, _, own_s, low_s, high_s, _, source, _, _ in lines:
        low, high = own_s - low_s, high_s - own_s
        if source == INTERPOLATED:
            below += low * low
            above += high * high
        else:
            less, more = together.get(source, (0.0, 0.0))
            together[source] = (less + low, more + high)
    for low, high in together.values():
        below += low * low
        above += high * high
    low_s, high_s = max(0.0, seconds - sqrt(below)), seconds + sqrt(above)
    if scale != 1.0 and seconds:
        low_s, high_s = (seconds * (s / seconds) ** scale for s in (low_s, high_s))
    return seconds, low_s, high_s


class TimedCall(NamedTuple):
    """One call of a block: how it is answered for tokens, or, where it attends, for sequences."""

    role: str
    kind: str
    kernels: int
    ask: Callable[[Any], Answer]


Row = tuple[str, str, int, Answer]  # role, kind, kernels, answer
Rows = list[tuple[int, list[Row]]]
Attends = list[tuple[int, TimedCall]]  # calls that attend and where among the others, from the last on
Template = list[tuple[int, list[TimedCall], Attends]]  # blocks: how often, what, and what of it attends
Body = tuple[int, list[Row], Attends]


class StepModel:
    """One model on one engine, under one estimator."""

    def __init__(
        self, decoder: Decoder, precision: Precision, tp: int, engine: str, estimator: Estimator,
        terms: EngineTerms | None = None, overlaps: bool | None = None, ep: int = 1,
        interval_scale: float = 1.0,
    ) -> None:  # fmt: skip
        """`overlaps`: whether steps do, of another version than the engine's newest. `ep`: GPUs that experts lie on."""
        self.interval_scale = interval_scale
        self.decoder, self.precision, self.tp = decoder, precision, tp
        self.engine = engines.get(engine)
        self.overlaps = self.engine.OVERLAPS_STEPS if overlaps is None else overlaps
        self.estimator, self.terms = estimator, terms
        self._asked: dict[Op, Callable[[Any], Answer]] = {}
        programs, whole = self._programs(tp, ep), self._programs(1, 1) if tp > 1 else (None, None, None)
        one_token = programs[0]
        self._decode, self._prefill, self._head = (self._template(p, w) for p, w in zip(programs, whole))
        self._masks = dict.fromkeys(c.op for b in programs[1].blocks for c in b.calls if isinstance(c.op, MASKED))
        self.windows = {getattr(c.op, "window", 0) for b in one_token.blocks for c in b.calls} - {0}
        # of templates, not of this object: what refers to itself waits for a collection of garbage to be freed
        remembered = lru_cache(maxsize=REMEMBERED)
        self._body = {d: remembered(partial(_body_rows, t)) for d, t in ((True, self._decode), (False, self._prefill))}
        self._last = remembered(partial(_head_rows, self._head))

    def _programs(self, tp: int, ep: int) -> tuple[Program, Program, Program]:
        """What the engine runs for one token of each sequence, for several, and after the last layer."""
        d, rewrite = self.decoder, self.engine.rewrite
        layers = body(d, 1, self.precision, tp, ep)
        last = head(d, 1, self.precision, tp)
        return (
            rewrite(layers, True, d.architecture), rewrite(layers, False, d.architecture),
            rewrite(last, False, d.architecture),
        )  # fmt: skip

    def _template(self, program: Program, whole: Program | None) -> Template:
        """`whole`: the same on one GPU, where the program is one of several GPUs'."""
        blocks = whole.blocks if whole else ()
        unsplit = [{c.role: c.op for c in b.calls} for b in blocks] or [{}] * len(program.blocks)
        made: Template = []
        for b, of_one in zip(program.blocks, unsplit):
            calls: list[TimedCall] = []
            attends: Attends = []
            for c in b.calls:
                entry = self._entry(c.role, c.op, of_one.get(c.role))
                if is_placeholder(c.op):
                    attends.insert(0, (len(calls), entry))
                else:
                    calls.append(entry)
            made.append((b.repeat, calls, attends))
        return made

    def _entry(self, role: str, op: Op, whole: Op | None) -> TimedCall:
        ask = self._ask(op)
        of_more_gpus = getattr(op, "ranks", 1) != getattr(whole, "ranks", 1)  # whole experts on each
        if whole is not None and whole != op and whole.kind == op.kind and not of_more_gpus:
            ask = of_a_share(ask, self._ask(whole), self.tp)
        return TimedCall(role, op.kind, self.engine.KERNELS.get(op.kind, op.KERNELS), ask)

    def _ask(self, op: Op) -> Callable[[Any], Answer]:
        ask = self._asked.get(op)
        if ask is None:
            attends = is_placeholder(op)
            made = lru_cache(maxsize=REMEMBERED)(self.estimator.over(op)) if attends else self.estimator.along(op)
            ask = self._asked[op] = made
        return ask

    def panels(self, s: Scenario) -> int:
        """How finely the growing context of a decode is integrated. A step's time is linear in its context but for the
        bend where that outgrows a sliding window and the stairs of waves and splits: over a short stretch the middle
        does."""
        if any(s.prompt < w < s.prompt + s.output for w in self.windows):
            return PANELS
        return 1 if 4 * s.output > s.prompt else 0

    def unaligned(self, s: Scenario, memory_bytes: float) -> int:
        """Keys under the mask of a prefill whose rows begin at odd places, which points show to take longer; 0 where
        there is none."""
        for op in self._masks:
            for seq in (seq for step, _ in self.engine.prefill(s, memory_bytes) for seq in step.seqs if seq.new > 1):
                placed = op.over(seq)
                odd = isinstance(placed, MaskedAttention) and placed.kv_len % MASK_PIECE
                if odd and self.estimator.points(placed):
                    return placed.kv_len
        return 0

    # -- operators of a step ----------------------------------------------------------------------------------------
    def rows(self, step: Step) -> Rows:
        """Every operator of a step, in order."""
        found: Rows = []
        for repeat, calls, attends in self._body[step.decode](step.tokens, step.routed_tokens):
            if attends:
                calls = calls.copy()
                for at, e in attends:  # from the last on, so that places stay what they are
                    calls[at:at] = [(e.role, e.kind, e.kernels, e.ask(seq)) for seq in step.seqs]
            found.append((repeat, calls))
        return found + self._last(step.rows)

    def clocked(self, found: Sequence[tuple[Rows, float]], first: bool) -> list[tuple[Rows, float]]:
        """With arithmetic at the clock it runs at: a prefill finds a rested GPU, decode steps one that has settled."""
        settling = self.estimator.settling
        if settling is None:
            return list(found)
        factor = settling.settled
        if first:
            factor = settling.factor(sum([w * n * r[3][0] for rows, w in found for n, calls in rows for r in calls]))
        free = FREE * settling.flop_per_s  # up to this rate nothing changes

        def clocked(calls: list[Row]) -> list[Row]:
            if not [r for r in calls if r[3][5] > free * r[3][0]]:
                return calls
            return [r if r[3][5] <= free * r[3][0] else _at(r, factor, settling) for r in calls]

        return [([(n, clocked(calls)) for n, calls in rows], w) for rows, w in found]

    # -- phases -----------------------------------------------------------------------------------------------------
    def prefill(self, s: Scenario, memory_bytes: float) -> Phase:
        return self._phase(self.engine.prefill(s, memory_bytes), s)

    def decode(self, s: Scenario, memory_bytes: float) -> Phase:
        return self._phase(self.engine.decode(s, memory_bytes, self.panels(s), self.windows), None)

    def _phase(self, steps: Weighted, asked: Scenario | None) -> Phase:
        """`asked` where the steps end with the first tokens."""
        found = self.clocked([(self.rows(step), weight) for step, weight in steps], asked is not None)
        lines = lines_of(found)
        seconds, low_s, high_s = interval(lines, self.interval_scale)
        if self.terms is None or not seconds:
            return Phase(lines, low_s, high_s)
        known = _known(steps, found)
        scaled = zip(self.terms, (1.0, low_s / seconds, high_s / seconds))
        times = [self._played(known, terms, scale, asked) for terms, scale in scaled]
        value, least, most = times
        lines += [
            Line(role, ENGINE, calls, v if v > NOTHING_S else 0.0, lo, hi, bound, ENGINE, 0.0, 0.0)
            for (role, calls, bound), v, lo, hi in zip(ADDED, value.parts, least.parts, most.parts)
            if hi > NOTHING_S
        ]  # fmt: skip
        return Phase(lines, least.seconds, most.seconds)

    def _played(self, found: PlayedSteps, terms: Terms, scale: float, asked: Scenario | None) -> Added:
        """The steps on the timeline, every operator's time times `scale`."""
        worked = seconds = gaps = attending = around = 0.0
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
                seconds += weight * self._period(t, terms)
            elif weight != 1.0:
                t.skip(weight - 1, t.host_s - host_s, t.worked_s - worked_s)
            gaps += weight * played.kernels * terms.gap_s
            attending += weight * played.attentions * terms.attention_s
            around += weight * terms.step_s
        if asked is not None:
            seconds = t.device_s
        return Added(seconds, (gaps, attending, around, max(0.0, seconds - worked - before), before))

    def _period(self, t: Timeline, terms: Terms) -> float:
        """What a decode step takes among its like: where the host prepares the next one meanwhile, the longer of what
        either queue needs."""
        if not self.overlaps:
            return t.device_s
        return max(t.host_s, t.device_s - terms.host_step_s)

    def subject(self, s: Scenario, memory_bytes: float, first: bool) -> TimedSteps:
        """A phase whose operators are known, to be timed under any terms."""
        if first:
            steps = self.engine.prefill(s, memory_bytes)
        else:
            steps = self.engine.decode(s, memory_bytes, self.panels(s), self.windows)
        found = self.clocked([(self.rows(step), weight) for step, weight in steps], first)
        return TimedSteps(self, _known(steps, found), s if first else None)

    def timeline(self, step: Step) -> Recorded:
        """One step played kernel by kernel."""
        ((played, _),) = _known(((step, 1.0),), self.clocked([(self.rows(step), 1.0)], False))
        terms = self.terms.value if self.terms else Terms()
        t = Recorded(1.0, terms.gap_s)
        self.engine.play(t, played, terms)
        return t


def _body_rows(template: Template, tokens: int, routed: int) -> list[Body]:
    """Rows of a step of so many tokens but those that attend. `routed`: tokens that choose experts."""
    known: dict[Callable[[Any], Answer], Answer] = {}  # norms, additions and halves of a gate are alike
    found: list[Body] = []
    for n, calls, attends in template:
        rows: list[Row] = []
        for role, kind, kernels, ask in calls:
            answer = known.get(ask)
            if answer is None:
                answer = known[ask] = ask(routed if kind in EXPERTS else tokens)
            rows.append((role, kind, kernels, answer))
        found.append((n, rows, attends))
    return found


def _head_rows(template: Template, rows: int) -> Rows:
    return [(n, [(e.role, e.kind, e.kernels, e.ask(rows)) for e in calls]) for n, calls, _ in template]


class TimedSteps(NamedTuple):
    """Steps with their operators' times."""

    model: StepModel
    found: PlayedSteps
    asked: Scenario | None

    def seconds(self, terms: Terms) -> float:
        return self.model._played(self.found, terms, 1.0, self.asked).seconds


PlayedSteps = list[tuple[Played, float]]  # and how many steps each stands for


def _known(steps: Weighted, found: Sequence[tuple[Rows, float]]) -> PlayedSteps:
    made = []
    known: dict[int, LaunchBlock] = {}  # steps share what does not attend
    for (step, weight), (rows, _) in zip(steps, found):
        blocks = []
        for repeat, calls in rows:
            block = known.get(id(calls))
            if block is None:
                block = LaunchBlock.of(repeat, [(role, n, a[0]) for role, _, n, a in calls])
                known[id(calls)] = block
            blocks.append(block)
        attentions, decode = 0.0, step.decode
        if decode:
            attentions = sum([repeat * sum([r[1] == ATTENTION for r in calls]) for repeat, calls in rows])
        seconds = sum([b.repeat * b.seconds for b in blocks])
        kernels = sum([b.repeat * b.kernels for b in blocks])
        made.append((Played(blocks, seconds, kernels, attentions, step.graph, decode), weight))
    return made


class Added(NamedTuple):
    """A phase on the timeline: its seconds, and those of them that no operator has."""

    seconds: float
    parts: tuple[float, ...]  # as ADDED


ADDED = (
    (GAPS, 1.0, "launch"), (ATTENDING, 1.0, "memory"), (AROUND, 1.0, "launch"), (WAITING, 1.0, "host"),
    (BEFORE, 1.0, "host"),
)  # fmt: skip


def _at(row: Row, factor: float, settling: Settling) -> Row:
    """At another clock, as far as it is arithmetic that draws all the power there is."""
    role, kind, kernels, (seconds, low_s, high_s, bound, source, flops, moved) = row
    held = settling.limited(flops / seconds)
    if not held or source != INTERPOLATED:
        return row
    factor = 1 + (factor - 1) * held
    return role, kind, kernels, (seconds * factor, low_s * factor, high_s * factor, bound, source, flops, moved)


def lines_of(found: Iterable[tuple[Rows, float]]) -> list[Line]:
    """Rows of one role added up; kind, bound and source are those of the longest."""
    merged: dict[str, tuple[Any, ...]] = {}
    for rows, weight in found:
        for repeat, calls in rows:
            n = weight * repeat
            for role, kind, _, (seconds, low_s, high_s, bound, source, flops, moved) in calls:
                own = role, kind, n, seconds * n, low_s * n, high_s * n, bound, source, flops * n, moved * n
                merged[role] = _added(merged[role], own) if role in merged else own
    return [tuple.__new__(Line, sums) for sums in merged.values()]  # twice as fast as Line's own


def _added(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
    role, kind, n, seconds, low_s, high_s, bound, source, flops, moved = one
    _, of, more, own_s, own_low_s, own_high_s, by, why, own_flops, own_moved = other
    if own_s >= seconds:
        kind, bound, source = of, by, why
    n, seconds, low_s, high_s = n + more, seconds + own_s, low_s + own_low_s, high_s + own_high_s
    return role, kind, n, seconds, low_s, high_s, bound, source, flops + own_flops, moved + own_moved
