"""The operators of an engine's programs, timed for steps of any size.

A program is lowered once, for one token. Every operator but attention grows with the tokens along one axis, so a step
of n tokens needs no lowering of its own. Attention is timed for the sequences of a step (`chip.predictor.schedule`).
Shared experts may run beside the routed ones, on a second stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import inf
from typing import NamedTuple

from chip import engines, ops
from chip.decoders.decoder import Decoder
from chip.decoders.lower import body, head
from chip.decoders.roles import EXPERTS, ROUTER, SHARED, SHARED_ADD
from chip.dtypes import Precision
from chip.engines.fuse import apply, norm_with_reduce
from chip.engines.timeline import LaunchBlock, RoleLaunches, Weighted
from chip.predictor.estimator import Estimator, SplitCurve, TimeCurve
from chip.predictor.operator_time import OF_POINTS, OperatorTime, time_of, weighted_sum
from chip.predictor.schedule import StepGroup, attending, runs_of
from chip.types import Op, Program, Seq, Step

MOST_PROGRAMS, MOST_SIZES = 64, 512  # remembered: lowered programs, and sizes of each
# Programs are timed at every number of tokens up to EXACT, from there on at so many an octave and straight between. At
# 1,024 tokens these are 64 apart, which is a tile of rows.
EXACT, AN_OCTAVE = 512, 16
COLUMNS = ("seconds", "low_s", "high_s", "flops", "bytes", "joules", "limited_s")
ATTENDS = -1  # stands for a call that attends, whose time depends on the sequences of a step
UNTIMED = OperatorTime(0.0, 0.0, 0.0, "", "", 0.0, 0.0)  # its time until these are known


class CallBlock(NamedTuple):
    """A block of a program: its calls in order."""

    repeat: int
    kinds: tuple[str, ...]
    launches: RoleLaunches
    timed: Sequence[int]  # of each call, the place of its operator among the distinct ones, or `ATTENDS`


class Sums(NamedTuple):
    """All operators of a program together."""

    seconds: float
    limited_s: float  # at the power limit
    flops: float  # of products
    joules: float
    unmeasured_s: float  # that rest on no point


class TimedBlock(NamedTuple):
    """A block with the time of one call of each operator."""

    repeat: int
    calls: CallBlock
    times: list[OperatorTime]


class AttentionCall(NamedTuple):
    """Where a program attends."""

    role: str
    kind: str
    repeat: int
    block: int
    place: int  # among the calls of the block


class Shape:
    """The blocks of a program, and how often each role calls each distinct operator."""

    def __init__(self, blocks: Sequence[CallBlock]) -> None:
        self.blocks = blocks
        self.launches = [(b.repeat, b.launches) for b in blocks]
        self.operators = sum([b.repeat * b.launches.operators for b in blocks])
        self.attention_calls = [
            AttentionCall(b.launches.names[place], b.kinds[place], b.repeat, i, place)
            for i, b in enumerate(blocks)
            for place, operator in enumerate(b.timed)
            if operator == ATTENDS
        ]
        calls: dict[tuple[str, str, int], float] = {}
        for b in blocks:
            for role, kind, operator in zip(b.launches.names, b.kinds, b.timed):
                if operator != ATTENDS:
                    calls[role, kind, operator] = calls.get((role, kind, operator), 0.0) + b.repeat
        self.roles, self.kinds = [role for role, _, _ in calls], [kind for _, kind, _ in calls]
        self.counts = [(operator, count) for (_, _, operator), count in calls.items()]  # of each role
        self.products = [count for count, kind in zip(self.counts, self.kinds) if ops.multiplies(kind)]
        places = {role: i for i, role in enumerate(dict.fromkeys(self.roles))}
        self.places, self.role_count = [places[role] for role in self.roles], len(places)


class ProgramTimes:
    """A program for so many tokens: what all of its operators take together, and, as columns, what one call of each
    distinct operator takes. Attention has no time yet."""

    _ends: tuple[ProgramTimes, ProgramTimes, float]  # that it lies between, and how far

    __slots__ = ("_columns", "_ends", "bounds", "off_s", "shape", "shared_s", "sources", "sums")

    def __init__(
        self, shape: Shape, columns: Sequence[Sequence[float]], bounds: Sequence[str], sources: Sequence[str]
    ) -> None:
        """`columns`: as `COLUMNS`."""
        self.shape, self._columns, self.bounds, self.sources = shape, columns, bounds, sources
        seconds, low_s, high_s, flops, _, joules, limited_s = columns
        # how far off each role may be that rests on points, and of those at the power limit; all others by their source
        lows, highs, low_limited, high_limited = self.off_s = [[0.0] * shape.role_count for _ in range(4)]
        self.shared_s: dict[str, list[float]] = {}
        unmeasured_s = 0.0
        for (i, n), place in zip(shape.counts, shape.places):
            s, source = seconds[i], sources[i]
            low, high, limited = n * (s - low_s[i]), n * (high_s[i] - s), limited_s[i] / s
            if source in OF_POINTS:
                lows[place] += low
                highs[place] += high
                low_limited[place] += low * limited
                high_limited[place] += high * limited
            else:
                unmeasured_s += n * s
                off_s = low, high, low * limited, high * limited
                self.shared_s[source] = [a + b for a, b in zip(self.shared_s.get(source, (0.0,) * 4), off_s)]
        self.sums = Sums(
            sum([n * seconds[i] for i, n in shape.counts]), sum([n * limited_s[i] for i, n in shape.counts]),
            sum([n * flops[i] for i, n in shape.products]), sum([n * joules[i] for i, n in shape.counts]), unmeasured_s,
        )  # fmt: skip

    @classmethod
    def of(cls, shape: Shape, times: Sequence[OperatorTime]) -> ProgramTimes:
        """`times`: of one call of each distinct operator."""
        seconds, low_s, high_s, bounds, sources, flops, moved, limited_s, joules = zip(*times) if times else [()] * 9
        return cls(shape, (seconds, low_s, high_s, flops, moved, joules, limited_s), bounds, sources)

    def to(self, other: ProgramTimes, share: float) -> ProgramTimes:
        """The program for a number of tokens in between: this `share` of the way to `other`."""
        between = object.__new__(ProgramTimes)
        between.shape, between.bounds, between.sources, between._columns = self.shape, self.bounds, self.sources, ()
        between._ends = self, other, share
        between.off_s = [_between(a, b, share) for a, b in zip(self.off_s, other.off_s)]
        between.shared_s = {source: _between(a, other.shared_s[source], share) for source, a in self.shared_s.items()}
        between.sums = Sums(*_between(self.sums, other.sums, share))
        return between

    @property
    def columns(self) -> Sequence[Sequence[float]]:
        if not self._columns:
            below, above, share = self._ends
            self._columns = [_between(a, b, share) for a, b in zip(below.columns, above.columns)]
        return self._columns

    def blocks(self) -> list[TimedBlock]:
        seconds, low_s, high_s, flops, moved, joules, limited_s = self.columns
        rows = zip(seconds, low_s, high_s, self.bounds, self.sources, flops, moved, limited_s, joules)
        times = [*map(time_of, rows), UNTIMED]  # which ATTENDS points at
        return [TimedBlock(b.repeat, b, [times[i] for i in b.timed]) for b in self.shape.blocks]

    def launch_blocks(self, slower: float) -> list[LaunchBlock]:
        """`slower`: the part that seconds at the power limit take more."""
        each_s = [s + slower * limited_s for s, limited_s in zip(self.columns[0], self.columns[6])]
        each_s.append(0.0)
        return [LaunchBlock(b.repeat, b.launches, [each_s[i] for i in b.timed]) for b in self.shape.blocks]


def _between(a: Sequence[float], b: Sequence[float], share: float) -> list[float]:
    return [x + share * (y - x) for x, y in zip(a, b)]


NOTHING = ProgramTimes.of(Shape(()), ())


class TimedStep(NamedTuple):
    """A step with the time of every operator, at the clock at which its points were measured."""

    run: StepGroup
    layers: ProgramTimes
    attention: Sequence[OperatorTime]  # of the calls in `layers` that attend, in their order
    head: ProgramTimes

    @property
    def limited_s(self) -> float:
        """Seconds at the power limit."""
        calls = self.layers.shape.attention_calls
        attention_s = sum([call.repeat * t.limited_s for call, t in zip(calls, self.attention)])
        return self.layers.sums.limited_s + self.head.sums.limited_s + attention_s

    def launch_blocks(self, slower: float) -> list[LaunchBlock]:
        """`slower`: the part that seconds at the power limit take more."""
        blocks = [*self.layers.launch_blocks(slower), *self.head.launch_blocks(slower)]
        for call, time in zip(self.layers.shape.attention_calls, self.attention):
            blocks[call.block] = blocks[call.block].with_time(call.place, time.seconds + slower * time.limited_s)
        return blocks

    def blocks(self, slower: float = 0.0) -> list[TimedBlock]:
        """All operators of the step, in order. `slower`: the part that seconds at the power limit take more."""
        blocks = self.layers.blocks()
        for call, time in zip(self.layers.shape.attention_calls, self.attention):
            blocks[call.block].times[call.place] = time
        blocks += self.head.blocks()
        if not slower:
            return blocks
        return [
            b._replace(times=[t.scaled(1 + slower * t.limited_s / t.seconds) if t.limited_s else t for t in b.times])
            for b in blocks
        ]


class TimedCall(NamedTuple):
    """A distinct operator of a program."""

    op: Op
    curve: TimeCurve
    stream: int  # the block whose shared experts run beside its routed ones; -1 for all other operators


class TimedProgram:
    """One program on one GPU, lowered for one token."""

    def __init__(
        self, program: Program, whole: Program | None, engine_kernels: Mapping[str, int], estimator: Estimator, tp: int,
        shared_tokens: int,
    ) -> None:  # fmt: skip
        """`whole`: the same program on one GPU, where this one is split over `tp`. `shared_tokens`: of a step whose
        shared experts run on a second stream, at most."""
        self.memory, self.shared_tokens = estimator.roof.memory, shared_tokens
        self.attending: list[TimedCall] = []
        self.streams: list[tuple[list[int], list[int]]] = []  # operators of routed experts, and of shared ones
        self.distinct: list[TimedCall] = []  # norms and additions are alike: they are timed once
        distinct: dict[tuple[Op, Op | None, int], int] = {}
        blocks: list[CallBlock] = []
        for i, block in enumerate(program.blocks):
            on_one = {c.role: c.op for c in whole.blocks[i].calls} if whole else {}
            roles, operators = tuple(c.role for c in block.calls), [c.op for c in block.calls]
            routed = [role in (ROUTER, EXPERTS) for role in roles]
            shared = [role.startswith(SHARED) and role != SHARED_ADD for role in roles]
            at_once = any(routed) and any(shared)
            timed = []
            for place, (role, op) in enumerate(zip(roles, operators)):
                stream = i if at_once and (routed[place] or shared[place]) else -1
                if op.OF_SEQUENCES:
                    self.attending.append(TimedCall(op, _curve(estimator, op, on_one.get(role), tp), stream))
                    timed.append(ATTENDS)
                    continue
                known = distinct.setdefault((op, on_one.get(role), stream), len(distinct))
                if known == len(self.distinct):
                    self.distinct.append(TimedCall(op, _curve(estimator, op, on_one.get(role), tp), stream))
                timed.append(known)
            if at_once:
                self.streams.append(tuple([t for t, on in zip(timed, which) if on] for which in (routed, shared)))  # type: ignore[arg-type]
            kernels = tuple(engine_kernels.get(op.kind, op.KERNELS) for op in operators)
            kinds = tuple(op.kind for op in operators)
            blocks.append(CallBlock(block.repeat, kinds, RoleLaunches(roles, kernels), timed))
        self.shape, self._peak = Shape(blocks), estimator.peaks.compute
        self.is_routed = any(call.op.ROUTED for call in self.distinct)
        self._sizes: dict[tuple[int, int], ProgramTimes] = {}

    def at(self, tokens: int, routed: int) -> ProgramTimes:
        """For so many tokens. `routed`: those that choose experts, which padding does not."""
        if tokens <= EXACT:
            return self._node(tokens, routed)
        step = (1 << tokens.bit_length() - 1) // AN_OCTAVE
        beyond = tokens % step
        below = self._node(tokens - beyond, tokens - beyond)
        return below.to(self._node(tokens - beyond + step, tokens - beyond + step), beyond / step) if beyond else below

    def _node(self, tokens: int, routed: int) -> ProgramTimes:
        size = tokens, routed if self.is_routed else 0
        program = self._sizes.get(size)
        if program is None:
            if len(self._sizes) >= MOST_SIZES:
                self._sizes.clear()
            times = [call.curve.time(routed if call.op.ROUTED else tokens) for call in self.distinct]
            if tokens <= self.shared_tokens:
                for streams in self.streams:
                    self._run_at_once(streams, times)
            program = self._sizes[size] = ProgramTimes.of(self.shape, times)
        return program

    def _run_at_once(self, streams: tuple[list[int], list[int]], times: list[OperatorTime]) -> None:
        """Shortens the times of two streams: together they take as long as the longer one, and no less than memory
        takes for what both move, or the SMs for what arithmetic binds. Each call keeps that time and a share of the
        rest."""
        streams_s = [sum([times[i].seconds for i in stream]) for stream in streams]
        busy_s, least_s = {}, 0.0
        for i in (*streams[0], *streams[1]):
            t, flop_per_s = times[i], self._peak.get(self.distinct[i].op.compute, inf)
            alone_s = min(t.seconds, max(t.bytes / self.memory, t.flops / flop_per_s))
            busy_s[i] = t.seconds if t.bound == "compute" else alone_s
            least_s += busy_s[i]
        total_s = sum(streams_s)
        rest = (max(*streams_s, least_s) - least_s) / (total_s - least_s) if total_s > least_s else 0.0
        for i, alone_s in busy_s.items():
            seconds = times[i].seconds
            times[i] = times[i].scaled((alone_s + rest * (seconds - alone_s)) / seconds)

    def attention(self, seqs: Sequence[tuple[Seq, float]]) -> list[OperatorTime]:
        """Of every call that attends, over these sequences with weights."""
        return [weighted_sum([(call.curve.time(seq), weight) for seq, weight in seqs]) for call in self.attending]


def _curve(estimator: Estimator, op: Op, whole: Op | None, tp: int) -> TimeCurve:
    """`whole`: the same operator on one GPU, where a program is split over `tp`."""
    of_more_gpus = getattr(op, "ranks", 1) != getattr(whole, "ranks", 1)  # whole experts on each
    if whole is None or whole == op or whole.kind != op.kind or of_more_gpus:
        return estimator.curve(op)
    return SplitCurve(estimator.curve(op), estimator.curve(whole), tp)


class TimedOperators:
    """One model on one engine and GPU: what it runs for one token of each sequence, for several, and after the last
    layer."""

    def __init__(
        self, decoder: Decoder, precision: Precision, tp: int, ep: int, engine: str, estimator: Estimator,
        shared_tokens: int, reduces_and_norms: bool = False, sampling: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        """`reduces_and_norms`: in decodes an all-reduce and the norm after it are one kernel."""
        self.decoder, self.precision, self.tp = decoder, precision, tp
        decode, *others = lowered(decoder, precision, tp, ep, engine, sampling)
        programs = (apply(decode, norm_with_reduce) if reduces_and_norms else decode, *others)
        unsplit = lowered(decoder, precision, 1, 1, engine, sampling) if tp > 1 else (None, None, None)
        kernels = engines.get(engine).KERNELS
        self.decode, self.prompts, self.last = (
            TimedProgram(program, whole, kernels, estimator, tp, shared_tokens)
            for program, whole in zip(programs, unsplit)
        )
        calls = (*self.decode.distinct, *self.decode.attending)
        self.windows = frozenset({getattr(call.op, "window", 0) for call in calls} - {0})

    def layers(self, tokens: int, routed: int, decode: bool) -> Sequence[TimedBlock]:
        """The layers of a step of so many tokens, attention at no time. `decode`: a single new token of each
        sequence."""
        return (self.decode if decode else self.prompts).at(tokens, routed).blocks()

    def head(self, rows: int) -> Sequence[TimedBlock]:
        """What follows the layers, for so many sequences."""
        return self.last.at(rows, rows).blocks()

    def attention(self, step: Step) -> list[tuple[int, OperatorTime]]:
        """Each kind of attention of a step, with how often the step runs it."""
        program = self.decode if step.decode else self.prompts
        times = program.attention(attending(step, self.windows))
        return [(call.repeat, time) for call, time in zip(program.shape.attention_calls, times)]

    def time(self, run: StepGroup) -> TimedStep:
        step = run.step
        program = self.decode if step.decode else self.prompts
        tokens = run.tokens
        layers = program.at(tokens, step.routed_tokens if step.pad_tokens else tokens)
        return TimedStep(run, layers, program.attention(run.attending), self.last.at(run.rows, run.rows))

    def runs(self, steps: Weighted, prompt: int = 0) -> list[StepGroup]:
        """`prompt`: tokens of each request, where the steps are a prefill."""
        return runs_of(steps, prompt, self.windows)


@lru_cache(maxsize=MOST_PROGRAMS)  # a ranking asks for the same on every GPU
def lowered(
    d: Decoder, p: Precision, tp: int, ep: int, engine: str, sampling: tuple[str, ...] = ()
) -> tuple[Program, Program, Program]:
    """What the engine runs for one token of each sequence, for several, and after the last layer."""
    layers, last, rewrite = body(d, 1, p, tp, ep), head(d, 1, p, tp), engines.get(engine).rewrite
    last = rewrite(last, False, d.architecture)
    if sampling:
        last = engines.get(engine).sampled(last, sampling, d.vocab)
    return rewrite(layers, True, d.architecture), rewrite(layers, False, d.architecture), last
