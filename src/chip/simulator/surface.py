"""The time of any step of an engine: what grows with its tokens, what grows with its sequences, and attention.

Layers without attention are asked for at some numbers of tokens, with straight lines between; attention is asked for as
each step has it. Steps of decodes alone are lines over their context, so that thousands can be taken together.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from chip.simulator.step_time import Host, Stages, StepPredictor, Work, sum_of
from chip.types import Seq

# Mean contexts of decodes. Kernels take keys in blocks, and times jump where one begins: nodes lie between.
NODES = (1, *range(16, 512, 32), *(n << k for k in range(6, 19) for n in (9, 11, 13, 15)))
# Tokens of steps beyond the largest CUDA graph
TOKENS = (*range(64, 2049, 64), *range(2304, 8193, 256), *(n << k for k in range(11, 22) for n in (5, 6, 8)))
EXACT_TOKENS = 4096
MOST_MIXED = 20_000  # steps with prompts that are remembered


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

    def times(self, other: Factors) -> Factors:
        return Factors(*(a * b for a, b in zip(self, other)))


PLAIN = Factors()


class Surface:
    def __init__(self, times: StepPredictor, factors: Factors = PLAIN, known: Surface | None = None) -> None:
        """`known`: another surface of the same predictor, whose answers are shared."""
        self.times, self.factors = times, factors
        self._layers: dict[tuple[int, int, bool], Work] = known._layers if known else {}
        self._heads: dict[int, Work] = known._heads if known else {}
        self._decodes: dict[tuple[int, int], Work] = known._decodes if known else {}
        self._mixed: dict[tuple[Any, ...], Work] = known._mixed if known else {}
        self._stages: dict[tuple[int, int], Stages] = known._stages if known else {}
        self._hosts: dict[tuple[int, int, bool], Host] = known._hosts if known else {}
        bends = {n for window in times.windows for n in (window, window + 1)}
        self._contexts = tuple(sorted({*NODES, *bends}))
        self.most_graph = max(times.graph_tokens, default=0)
        self._tokens = (*times.graph_tokens, *(n for n in TOKENS if n > self.most_graph))
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
            attention = self.times.attention(self.times.step((Seq(1, context, seqs),)))
            found = sum_of(self._whole(seqs, True), self._head(seqs), attention)
            found = found._replace(seconds=found.seconds + (self._settled - 1) * found.held_s)
            self._decodes[seqs, context] = found
        return found

    def mixed(self, seqs: int, mean: float, chunks: Sequence[tuple[int, int]]) -> Work:
        """A step of `seqs` decodes and of prompts' chunks of (new, past) tokens, at the clock of its points."""
        key = (seqs, round(mean), *chunks)
        work = self._mixed.get(key)
        if work is None:
            if len(self._mixed) >= MOST_MIXED:
                self._mixed.clear()
            work = self._mixed[key] = self._mixed_of(seqs, round(mean), chunks)
        return work._replace(seconds=work.seconds * self.factors.mixed)

    def _mixed_of(self, seqs: int, mean: int, chunks: Sequence[tuple[int, int]]) -> Work:
        same = Counter(chunks) if len(chunks) > 1 else {chunks[0]: 1}
        sequences = [Seq(new, past, count) for (new, past), count in same.items()]
        if seqs:
            sequences.insert(0, Seq(1, mean, seqs))
        as_run = self.times.step(tuple(sequences))
        layers = self._whole(as_run.tokens - as_run.pad_tokens, as_run.decode)
        return sum_of(layers, self._head(seqs + len(chunks)), self.times.attention(as_run))

    def _whole(self, tokens: int, decode: bool) -> Work:
        """The layers of a step of so many tokens, without attention."""
        key = (tokens, tokens, decode)
        known = self._layers.get(key)
        if known is None:
            known = self._layers[key] = self._between(tokens, decode)
        return known

    def _between(self, tokens: int, decode: bool) -> Work:
        i = bisect_right(self._tokens, tokens - 1)
        high = self._tokens[i]
        if tokens == high or self.most_graph < tokens <= EXACT_TOKENS:
            return self.times.layers(tokens, tokens, decode)
        if tokens <= self.most_graph:
            return self.times.layers(high, tokens + 1, decode)  # padded with one token repeated
        low = max(self._tokens[i - 1], self.most_graph + 1)  # the last graph is no neighbour of what runs without one
        part = (tokens - low) / (high - low)
        a, b = self._whole(low, decode), self._whole(high, decode)
        return Work(*[x + (y - x) * part for x, y in zip(a, b)])

    def _head(self, rows: int) -> Work:
        found = self._heads.get(rows)
        if found is None:
            found = self._heads[rows] = self.times.head(rows)
        return found

    def host(self, rows: int, tokens: int, decode: bool) -> Host:
        node = self._tokens[bisect_right(self._tokens, tokens - 1)]
        found = self._hosts.get((rows, node, decode))
        if found is None:
            found = self._hosts[rows, node, decode] = self.times.host(rows, node, decode, tokens <= self.most_graph)
        f = self.factors.host
        return found if f == 1.0 else Host(found.prepare_s * f, found.launch_s * f, found.tail_s)

    def request_s(self, prompt: int) -> float:
        return self.times.request_s(prompt) * self.factors.host

    def stages(self, tokens: int, mean: float) -> Stages:
        """Of a step of so many tokens, decodes alone with this mean context, or, where that is 0, with prompts."""
        key = (bisect_right(self._tokens, tokens - 1), bisect_right(NODES, mean))
        found = self._stages.get(key)
        if found is None:
            node, past = self._tokens[key[0]], NODES[key[1] - 1] if key[1] else 0
            found = self._stages[key] = self.times.stages(
                self.times.step((Seq(1, past, node) if past else Seq(node, 0, 1),))
            )
        return found

    def wake_s(self) -> float:
        return self.times.wake_s() * self.factors.host
