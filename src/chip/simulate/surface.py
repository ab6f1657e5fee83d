"""The time of any step of an engine: what grows with its tokens, what grows with its sequences, and attention.

Layers without attention are asked for at some numbers of tokens, with straight lines between; attention is asked for as
each step has it. Steps of decodes alone are lines over their context, so that thousands can be taken together.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from chip.simulate.step_time import GRAPH_TOKENS, Host, Stages, StepTimes, Work, step, sum_of
from chip.types import Seq

# Mean contexts of decodes. Kernels take keys in blocks, and times jump where one begins: nodes lie between.
NODES = (1, *range(16, 512, 32), *(n << k for k in range(6, 19) for n in (9, 11, 13, 15)))
TOKENS = (
    *GRAPH_TOKENS, *range(576, 2049, 64), *range(2304, 8193, 256), *(n << k for k in range(11, 22) for n in (5, 6, 8))
)  # fmt: skip
MOST_GRAPH = GRAPH_TOKENS[-1]
EXACT_TOKENS = 4096


class DecodeLine(NamedTuple):
    """Decode steps of one size while their mean context grows from `mean` by one token a step, up to `until`."""

    seconds: float
    slope: float  # more seconds for each token of mean context
    joules: float
    until: float
    by_clock_s: float  # that memory does not set


class Factors(NamedTuple):
    """What the predictor's times are multiplied by, for intervals: 1 for its own answer."""

    decode: float = 1.0
    mixed: float = 1.0
    host: float = 1.0


PLAIN = Factors()


class Surface:
    def __init__(self, times: StepTimes, factors: Factors = PLAIN, known: Surface | None = None) -> None:
        """`known`: another surface of the same predictor, whose answers are shared."""
        self.times, self.factors = times, factors
        self._layers: dict[tuple[int, int, bool], Work] = known._layers if known else {}
        self._heads: dict[int, Work] = known._heads if known else {}
        self._decodes: dict[tuple[int, int], Work] = known._decodes if known else {}
        self._stages: dict[tuple[int, int], Stages] = known._stages if known else {}
        self._hosts: dict[tuple[int, int, bool], Host] = {}
        bends = {n for window in times.windows for n in (window, window + 1)}
        self._contexts = tuple(sorted({*NODES, *bends}))
        s = times.settling
        self._settled = s.settled if s else 1.0

    def decode(self, seqs: int, mean: float) -> DecodeLine:
        """At the clock that lasts."""
        nodes = self._contexts
        i = min(max(bisect_right(nodes, mean) - 1, 0), len(nodes) - 2)
        low, high = nodes[i], nodes[i + 1]
        a, b = self._decode_at(seqs, low), self._decode_at(seqs, high)
        ahead, f = (mean - low) / (high - low), self.factors.decode
        slope = (b.seconds - a.seconds) / (high - low) * f
        return DecodeLine(
            max(a.seconds * f + slope * (mean - low), 0.0), slope, a.joules + (b.joules - a.joules) * ahead, high,
            a.by_clock_s + (b.by_clock_s - a.by_clock_s) * ahead,
        )  # fmt: skip

    def _decode_at(self, seqs: int, context: int) -> Work:
        found = self._decodes.get((seqs, context))
        if found is None:
            attention = self.times.attention(step((Seq(1, context, seqs),)))
            found = sum_of(self._whole(seqs, True), self._head(seqs), attention)
            found = found._replace(seconds=found.seconds + (self._settled - 1) * found.held_s)
            self._decodes[seqs, context] = found
        return found

    def mixed(self, seqs: int, mean: float, chunks: Sequence[tuple[int, int]]) -> Work:
        """A step of `seqs` decodes and of prompts' chunks of (new, past) tokens, at the clock of its points."""
        same = Counter(chunks) if len(chunks) > 1 else {chunks[0]: 1}
        sequences = [Seq(new, past, count) for (new, past), count in same.items()]
        if seqs:
            sequences.insert(0, Seq(1, round(mean), seqs))
        as_run = step(tuple(sequences))
        layers = self._whole(as_run.tokens - as_run.pad_tokens, as_run.decode)
        work = sum_of(layers, self._head(seqs + len(chunks)), self.times.attention(as_run))
        return work._replace(seconds=work.seconds * self.factors.mixed)

    def _whole(self, tokens: int, decode: bool) -> Work:
        """The layers of a step of so many tokens, without attention."""
        key = (tokens, tokens, decode)
        known = self._layers.get(key)
        if known is None:
            known = self._layers[key] = self._between(tokens, decode)
        return known

    def _between(self, tokens: int, decode: bool) -> Work:
        i = bisect_right(TOKENS, tokens - 1)
        high = TOKENS[i]
        if tokens == high or MOST_GRAPH < tokens <= EXACT_TOKENS:
            return self.times.layers(tokens, tokens, decode)
        if tokens <= MOST_GRAPH:
            return self.times.layers(high, tokens + 1, decode)  # padded with one token repeated
        low = max(TOKENS[i - 1], MOST_GRAPH + 1)  # the last graph is no neighbour of what runs without one
        part = (tokens - low) / (high - low)
        a, b = self._whole(low, decode), self._whole(high, decode)
        return Work(*[x + (y - x) * part for x, y in zip(a, b)])

    def _head(self, rows: int) -> Work:
        found = self._heads.get(rows)
        if found is None:
            found = self._heads[rows] = self.times.head(rows)
        return found

    def host(self, rows: int, tokens: int, decode: bool) -> Host:
        node = TOKENS[bisect_right(TOKENS, tokens - 1)]
        found = self._hosts.get((rows, node, decode))
        if found is None:
            f = self.factors.host
            prepare_s, launch_s, tail_s = self.times.host(rows, node, decode, tokens <= MOST_GRAPH)
            found = self._hosts[rows, node, decode] = Host(prepare_s * f, launch_s * f, tail_s)
        return found

    def request_s(self, prompt: int) -> float:
        return self.times.request_s(prompt) * self.factors.host

    def stages(self, tokens: int, mean: float) -> Stages:
        """Of a step of so many tokens, decodes alone with this mean context, or, where that is 0, with prompts."""
        key = (bisect_right(TOKENS, tokens - 1), bisect_right(NODES, mean))
        found = self._stages.get(key)
        if found is None:
            node, past = TOKENS[key[0]], NODES[key[1] - 1] if key[1] else 0
            found = self._stages[key] = self.times.stages(step((Seq(1, past, node) if past else Seq(node, 0, 1),)))
        return found

    def wake_s(self) -> float:
        return self.times.wake_s() * self.factors.host
