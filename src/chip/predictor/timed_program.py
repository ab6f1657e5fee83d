"""The operators of an engine's programs, timed for steps of any size.

A program is lowered once, for one token. Every operator but attention grows with the tokens along one axis, so a step
of n tokens needs no lowering of its own. Attention is timed for the sequences of a step (`chip.predictor.attending`).
Shared experts may run beside the routed ones, on a second stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import inf
from typing import NamedTuple

from chip import engines
from chip.decoders.decoder import Decoder
from chip.decoders.lower import body, head
from chip.decoders.roles import EXPERTS, ROUTER, SHARED, SHARED_ADD
from chip.dtypes import Precision
from chip.engines.timeline import LaunchBlock, Played, RoleLaunches, Weighted
from chip.predictor.attending import StepGroup, attending, runs_of
from chip.predictor.estimator import Curve, Estimator
from chip.predictor.operator_time import OperatorTime, weighted_sum
from chip.predictor.phase import Line, RoleTotal
from chip.types import Op, Program, Seq, Step

MOST_PROGRAMS, MOST_SIZES = 64, 128  # remembered: lowered programs, and sizes of each


class CallBlock(NamedTuple):
    """Operators in the order of their calls."""

    kinds: tuple[str, ...]
    launches: RoleLaunches


class TimedBlock(NamedTuple):
    """A block of a program, with the time of one call of each operator."""

    repeat: int
    calls: CallBlock
    times: list[OperatorTime]


class TimedCall(NamedTuple):
    """An operator of a block, and its time over the number of tokens or, for attention, over a sequence."""

    op: Op
    curve: Curve
    whole: Curve | None  # of the same operator on one GPU, where this one is split
    gpus: int
    flop_per_s: float  # at most

    def time(self, size: int | Seq) -> OperatorTime:
        """A GPU's share is never more than `gpus` times as fast as the whole operator on one GPU. A base time may say
        more, where fewer heads fill a GPU better or are not copied, but nobody measured that."""
        time: OperatorTime = self.curve(size)
        return time.at_least(self.whole(size).seconds / self.gpus) if self.whole else time


class ProgramBlock(NamedTuple):
    repeat: int
    calls: CallBlock
    timed: Sequence[int]  # each call's place among the distinct calls of the program; -1 where it attends
    routed: Sequence[int]  # places of the routed experts
    shared: Sequence[int]  # of the shared experts


class AttentionCall(NamedTuple):
    """Where a program attends."""

    role: str
    kind: str
    repeat: int
    block: int
    place: int  # among the calls of the block


ATTENTION = OperatorTime(0.0, 0.0, 0.0, "", "", 0.0, 0.0)  # stands where attention will be


class ProgramTimes:
    """A program for so many tokens: its blocks, with no time for attention."""

    __slots__ = ("_launches", "_slower", "attention_calls", "blocks", "limited_s", "operators")

    def __init__(self, blocks: Sequence[TimedBlock], attention_calls: Sequence[AttentionCall] = ()) -> None:
        self.blocks, self.attention_calls = blocks, attention_calls
        self.limited_s = sum([repeat * sum([t.limited_s for t in times]) for repeat, _, times in blocks])
        self.operators = sum([repeat * calls.launches.operators for repeat, calls, _ in blocks])
        self._launches: list[LaunchBlock] = []
        self._slower = -1.0

    def launch_blocks(self, slower: float) -> list[LaunchBlock]:
        """`slower`: the part that seconds at the power limit take more; decode steps ask for the same again and
        again."""
        if slower != self._slower:
            self._slower = slower
            self._launches = [
                LaunchBlock(repeat, calls.launches, [t.seconds + slower * t.limited_s for t in times])
                for repeat, calls, times in self.blocks
            ]
        return self._launches


NOTHING = ProgramTimes(())


class TimedStep(NamedTuple):
    """A step with the time of every operator, at the clock at which its points were measured."""

    run: StepGroup
    layers: ProgramTimes
    attention: Sequence[OperatorTime]  # of the calls in `layers` that attend, in their order
    head: ProgramTimes

    @property
    def limited_s(self) -> float:
        """Seconds at the power limit."""
        attention_s = [call.repeat * t.limited_s for call, t in zip(self.layers.attention_calls, self.attention)]
        return self.layers.limited_s + self.head.limited_s + sum(attention_s)

    def blocks(self, slower: float = 0.0) -> list[TimedBlock]:
        """All operators of the step, in order. `slower`: the part that seconds at the power limit take more."""
        blocks = [TimedBlock(repeat, calls, list(times)) for repeat, calls, times in self.layers.blocks]
        for call, time in zip(self.layers.attention_calls, self.attention):
            blocks[call.block].times[call.place] = time
        blocks += self.head.blocks
        if not slower:
            return blocks
        return [
            b._replace(times=[t.scaled(1 + slower * t.limited_s / t.seconds) if t.limited_s else t for t in b.times])
            for b in blocks
        ]


class TimedProgram:
    """One program on one GPU, lowered for one token."""

    def __init__(
        self, program: Program, whole: Program | None, engine_kernels: Mapping[str, int], estimator: Estimator, tp: int,
        shared_tokens: int,
    ) -> None:  # fmt: skip
        """`whole`: the same program on one GPU, where this one is split over `tp`. `shared_tokens`: of a step whose
        shared experts run on a second stream, at most."""
        self.memory, self.shared_tokens = estimator.roof.memory, shared_tokens
        self.blocks: list[ProgramBlock] = []
        self.attention_calls: list[AttentionCall] = []
        self.attention_timed: list[TimedCall] = []
        distinct: dict[TimedCall, int] = {}  # norms and additions are alike: they are timed once
        for i, block in enumerate(program.blocks):
            on_one = {c.role: c.op for c in whole.blocks[i].calls} if whole else {}
            timed = []
            for place, (role, op) in enumerate((c.role, c.op) for c in block.calls):
                call = _timed_call(estimator, op, on_one.get(role), tp)
                timed.append(-1 if op.OF_SEQUENCES else distinct.setdefault(call, len(distinct)))
                if op.OF_SEQUENCES:
                    self.attention_calls.append(AttentionCall(role, op.kind, block.repeat, i, place))
                    self.attention_timed.append(call)
            roles, operators = tuple(c.role for c in block.calls), [c.op for c in block.calls]
            launches = RoleLaunches(roles, tuple(engine_kernels.get(op.kind, op.KERNELS) for op in operators))
            routed = [at for at, role in enumerate(roles) if role in (ROUTER, EXPERTS)]
            shared = [at for at, role in enumerate(roles) if role.startswith(SHARED) and role != SHARED_ADD]
            calls = CallBlock(tuple(op.kind for op in operators), launches)
            self.blocks.append(ProgramBlock(block.repeat, calls, timed, routed, shared))
        self.distinct = list(distinct)
        self.is_routed = any(call.op.ROUTED for call in distinct)
        self._sizes: dict[tuple[int, int], ProgramTimes] = {}  # the latest last

    def at(self, tokens: int, routed: int) -> ProgramTimes:
        """For so many tokens. `routed`: those that choose experts, which padding does not."""
        size = tokens, routed if self.is_routed else 0
        program = self._sizes.pop(size, None) or self._timed(tokens, routed)
        self._sizes[size] = program
        if len(self._sizes) > MOST_SIZES:
            del self._sizes[next(iter(self._sizes))]
        return program

    def _timed(self, tokens: int, routed: int) -> ProgramTimes:
        times = [call.time(routed if call.op.ROUTED else tokens) for call in self.distinct]
        times.append(ATTENTION)
        blocks = [TimedBlock(b.repeat, b.calls, [times[i] for i in b.timed]) for b in self.blocks]
        if tokens <= self.shared_tokens:
            for own, block in zip(self.blocks, blocks):
                if own.routed and own.shared:
                    self._run_at_once(own, block.times)
        return ProgramTimes(blocks, self.attention_calls)

    def _run_at_once(self, block: ProgramBlock, times: list[OperatorTime]) -> None:
        """Shortens the times of two streams: together they take as long as the longer one, and no less than memory
        takes for what both move, or the SMs for what arithmetic binds. Each call keeps that time and a share of the
        rest."""
        streams_s = [sum([times[i].seconds for i in stream]) for stream in (block.routed, block.shared)]
        busy_s = {}
        for i in (*block.routed, *block.shared):
            t, flop_per_s = times[i], self.distinct[block.timed[i]].flop_per_s
            alone_s = min(t.seconds, max(t.bytes / self.memory, t.flops / flop_per_s))
            busy_s[i] = t.seconds if t.bound == "compute" else alone_s
        total_s, least_s = sum(streams_s), sum(busy_s.values())
        rest = (max(*streams_s, least_s) - least_s) / (total_s - least_s) if total_s > least_s else 0.0
        for i, own_s in busy_s.items():
            seconds = times[i].seconds
            times[i] = times[i].scaled((own_s + rest * (seconds - own_s)) / seconds)

    def attention(self, seqs: Sequence[tuple[Seq, float]]) -> list[OperatorTime]:
        """Of every call that attends, over these sequences with weights."""
        return [weighted_sum([(call.time(seq), weight) for seq, weight in seqs]) for call in self.attention_timed]


def _timed_call(estimator: Estimator, op: Op, whole: Op | None, tp: int) -> TimedCall:
    of_more_gpus = getattr(op, "ranks", 1) != getattr(whole, "ranks", 1)  # whole experts on each
    split = whole is not None and whole != op and whole.kind == op.kind and not of_more_gpus
    flop_per_s = estimator.peaks.compute.get(op.compute, inf)
    return TimedCall(op, estimator.curve(op), estimator.curve(whole) if whole and split else None, tp, flop_per_s)


class TimedOperators:
    """One model on one engine and GPU: what it runs for one token of each sequence, for several, and after the last
    layer."""

    def __init__(
        self, decoder: Decoder, precision: Precision, tp: int, ep: int, engine: str, estimator: Estimator,
        shared_tokens: int,
    ) -> None:  # fmt: skip
        self.decoder, self.precision, self.tp = decoder, precision, tp
        programs = lowered(decoder, precision, tp, ep, engine)
        unsplit = lowered(decoder, precision, 1, 1, engine) if tp > 1 else (None, None, None)
        kernels = engines.get(engine).KERNELS
        self.decode, self.prompts, self.last = (
            TimedProgram(program, whole, kernels, estimator, tp, shared_tokens)
            for program, whole in zip(programs, unsplit)
        )
        calls = (*self.decode.distinct, *self.decode.attention_timed)
        self.windows = frozenset({getattr(call.op, "window", 0) for call in calls} - {0})

    def layers(self, tokens: int, routed: int, decode: bool) -> Sequence[TimedBlock]:
        """The layers of a step of so many tokens, attention at no time. `decode`: a single new token of each
        sequence."""
        return (self.decode if decode else self.prompts).at(tokens, routed).blocks

    def head(self, rows: int) -> Sequence[TimedBlock]:
        """What follows the layers, for so many sequences."""
        return self.last.at(rows, rows).blocks

    def attention(self, step: Step) -> list[tuple[int, OperatorTime]]:
        """Each kind of attention of a step, with how often the step runs it."""
        program = self.decode if step.decode else self.prompts
        times = program.attention(attending(step, self.windows))
        return [(call.repeat, time) for call, time in zip(program.attention_calls, times)]

    def time(self, run: StepGroup) -> TimedStep:
        step = run.step
        program = self.decode if step.decode else self.prompts
        tokens = step.tokens
        layers = program.at(tokens, step.routed_tokens if step.pad_tokens else tokens)
        return TimedStep(run, layers, program.attention(run.attending), self.last.at(run.rows, run.rows))

    def runs(self, steps: Weighted, prompt: int = 0) -> list[StepGroup]:
        """`prompt`: tokens of each request, where the steps are a prefill."""
        return runs_of(steps, prompt, self.windows)


@lru_cache(maxsize=MOST_PROGRAMS)  # a ranking asks for the same on every GPU
def lowered(d: Decoder, p: Precision, tp: int, ep: int, engine: str) -> tuple[Program, Program, Program]:
    """What the engine runs for one token of each sequence, for several, and after the last layer."""
    layers, last, rewrite = body(d, 1, p, tp, ep), head(d, 1, p, tp), engines.get(engine).rewrite
    return (
        rewrite(layers, True, d.architecture), rewrite(layers, False, d.architecture),
        rewrite(last, False, d.architecture),
    )  # fmt: skip


def lines_of(steps: Sequence[TimedStep], slower: float) -> list[Line]:
    """A line for each role, all steps added up by their weights. Steps of as many tokens share all but attention.
    `slower`: the part that seconds at the power limit take more."""
    weights: dict[ProgramTimes, float] = {}
    totals: dict[str, RoleTotal] = {}
    for timed in steps:
        weight = timed.run.weight
        for part in (timed.layers, timed.head):
            weights[part] = weights.get(part, 0.0) + weight
        for call, time in zip(timed.layers.attention_calls, timed.attention):
            if call.role not in totals:
                totals[call.role] = RoleTotal()
            totals[call.role].add(call.kind, time, weight * call.repeat)
    for part, weight in weights.items():
        for repeat, (kinds, launches), times in part.blocks:
            for role, kind, time in zip(launches.names, kinds, times):
                if time is not ATTENTION:
                    if role not in totals:
                        totals[role] = RoleTotal()
                    totals[role].add(kind, time, weight * repeat)
    return [total.line(role, slower) for role, total in totals.items()]


class PlayableStep(NamedTuple):
    """A step as an engine plays it on the timeline."""

    played: Played
    run: StepGroup


def playable_steps(steps: Sequence[TimedStep], slower: float) -> list[PlayableStep]:
    """`slower`: the part that seconds at the power limit take more."""
    playable = []
    for run, layers, attention, last in steps:
        blocks = [*layers.launch_blocks(slower), *last.launch_blocks(slower)]
        for call, time in zip(layers.attention_calls, attention):
            blocks[call.block] = blocks[call.block].with_time(call.place, time.seconds + slower * time.limited_s)
        seconds = sum([b.repeat * b.seconds for b in blocks])
        operators = layers.operators + last.operators
        played = Played(blocks, seconds, operators, run.step.graph, run.step.decode, run.rows)
        playable.append(PlayableStep(played, run))
    return playable
