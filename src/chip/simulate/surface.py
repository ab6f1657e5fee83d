"""The time of a step without asking the predictor each time: it is asked at nodes, once each and only where traffic
comes near, and what lies between is interpolated.

A step of decodes alone depends on how many there are and on their mean context. A mixed step is the sum of a prefill of
all its tokens, what its decodes attend to, and what its prompts attend to beside or beyond one whole prompt.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

from chip.simulate.step_time import GRAPH_TOKENS, Host, Stages, StepTimes, step
from chip.types import Seq

# Mean context of decodes, and past of a prompt's chunk. Kernels take keys in blocks, so times jump where one begins.
# Contexts in traffic are of all lengths: nodes lie midway between those of `chip.predict.rising_grid`.
NODES = (1, 16, 32, 48, *(n << k for k in range(3, 19) for n in (9, 13)))
TOKENS = (
    *GRAPH_TOKENS, *range(576, 2049, 64), *range(2304, 8193, 256), *(n << k for k in range(11, 22) for n in (5, 6, 8))
)  # fmt: skip
SEQS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096, 8192, 16384)
CHUNKS = (1, 16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384, 1 << 17, 1 << 20)
MOST_GRAPH = GRAPH_TOKENS[-1]
PROMPTS = (16, 64, 128, 256, 512, 1024, 2048, 4096)
FEW = 4  # prompts in a step where their share of it is found
ANCHOR = 16  # prompt tokens beside decodes where their share of a mixed step is found
PAIRS_AT = 2048  # prompt tokens where the time of one attended pair is found

Point = tuple[float, float]  # seconds of the device, joules above idle


class DecodeLine(NamedTuple):
    """Decode steps of one size while their mean context grows from `mean` by one token a step, up to `until`."""

    seconds: float
    slope: float  # more seconds for each token of mean context
    joules: float
    until: float


class Factors(NamedTuple):
    """What the predictor's times are multiplied by, for intervals: 1 for its own answer."""

    decode: float = 1.0
    mixed: float = 1.0
    host: float = 1.0


PLAIN = Factors()


class Surface:
    def __init__(self, times: StepTimes, factors: Factors = PLAIN, known: Surface | None = None) -> None:
        """`known`: another surface of the same predictor, whose nodes are shared."""
        self.times, self.factors = times, factors
        self._decode: dict[tuple[int, int], Point] = known._decode if known else {}
        self._whole: dict[int, Point] = known._whole if known else {}
        self._beside: dict[tuple[int, int], Point] = known._beside if known else {}
        self._past: dict[tuple[int, int], Point] = known._past if known else {}
        self._hosts: dict[tuple[int, bool, bool], Host] = {}
        self._each: dict[int, Point] = known._each if known else {}
        self._rested: dict[int, float] = known._rested if known else {}
        self._stages: dict[tuple[int, int], Stages] = known._stages if known else {}
        self._pairs: list[Point] = known._pairs if known else []
        self.asked = 0  # nodes that the predictor was asked for

    def decode(self, seqs: int, mean: float) -> DecodeLine:
        i = min(max(bisect_right(NODES, mean) - 1, 0), len(NODES) - 2)
        low, high = NODES[i], NODES[i + 1]
        a, b = self._between(seqs, i), self._between(seqs, i + 1)
        f = self.factors.decode
        slope = (b[0] - a[0]) / (high - low) * f
        ahead = mean - low
        joules = a[1] + (b[1] - a[1]) / (high - low) * ahead
        return DecodeLine(max(a[0] * f + slope * ahead, 0.0), slope, joules, high)

    def _between(self, seqs: int, i: int) -> Point:
        """At one context node; beyond graphs between the nearest sizes that were asked for."""
        known = self._decode.get((seqs, i))
        if known is not None:
            return known
        if seqs <= MOST_GRAPH:
            return self._ask_decode(seqs, i)
        at = bisect_right(TOKENS, seqs) - 1
        low, high = max(TOKENS[at], MOST_GRAPH + 1), TOKENS[at + 1]
        a = self._decode.get((low, i)) or self._ask_decode(low, i)
        b = self._decode.get((high, i)) or self._ask_decode(high, i)
        part = (seqs - low) / (high - low)
        return a[0] + (b[0] - a[0]) * part, a[1] + (b[1] - a[1]) * part

    def _ask_decode(self, seqs: int, i: int) -> Point:
        found = self._decode[seqs, i] = self._ask((Seq(1, NODES[i], seqs),))
        return found

    def mixed(self, seqs: int, mean: float, chunks: Sequence[tuple[int, int]]) -> Point:
        """A step of `seqs` decodes and of prompts' chunks of (new, past) tokens."""
        prompt_tokens = squares = 0
        for new, _ in chunks:
            prompt_tokens += new
            squares += new * new
        tokens = seqs + prompt_tokens
        seconds, joules = self._prefill(tokens)
        pair = self._pair()
        apart = (tokens * tokens - squares) / 2  # pairs that one whole prompt would attend to, and these do not
        seconds -= pair[0] * apart
        joules -= pair[1] * apart
        if seqs:
            s, j = _bilinear(self._beside, SEQS, NODES, seqs, mean, self._ask_beside)
            seconds, joules = seconds + s, joules + j
        if len(chunks) > 1:
            s, j = self._several(chunks)
            seconds, joules = seconds + s, joules + j
        for new, past in chunks:
            if past:
                s, j = _bilinear(self._past, CHUNKS, NODES, new, past, self._ask_past)
                seconds, joules = seconds + s, joules + j
        return max(seconds, 0.0) * self.factors.mixed, joules

    def _prefill(self, tokens: int) -> Point:
        i = bisect_right(TOKENS, tokens) - 1
        low = TOKENS[i]
        if tokens == low:
            return self._whole.get(low) or self._ask_whole(low)
        high = TOKENS[i + 1]
        b = self._whole.get(high) or self._ask_whole(high)
        if tokens <= MOST_GRAPH:
            return b  # padded
        a = self._whole.get(low) or self._ask_whole(low)
        if low == MOST_GRAPH:  # the last graph is no neighbour of what runs without one
            return b[0] * tokens / high, b[1] * tokens / high
        part = (tokens - low) / (high - low)
        return a[0] + (b[0] - a[0]) * part, a[1] + (b[1] - a[1]) * part

    def _ask_whole(self, tokens: int) -> Point:
        found = self._whole[tokens] = self._ask((Seq(tokens, 0, 1),))
        return found

    def _ask_beside(self, seqs: int, mean: int) -> Point:
        """What decodes add to a mixed step beyond their tokens."""
        with_them = self._ask((Seq(1, mean, seqs), Seq(ANCHOR, 0, 1)))
        alone = self._ask((Seq(seqs + ANCHOR, 0, 1),))
        pairs = ((seqs + ANCHOR) ** 2 - ANCHOR**2) / 2
        s, j = self._pair()
        return with_them[0] - alone[0] + s * pairs, with_them[1] - alone[1] + j * pairs

    def _ask_past(self, new: int, past: int) -> Point:
        with_past, without = self._ask((Seq(new, past, 1),)), self._ask((Seq(new, 0, 1),))
        return with_past[0] - without[0], with_past[1] - without[1]

    def _several(self, chunks: Sequence[tuple[int, int]]) -> Point:
        """What several prompts take beyond their pairs, where one whole prompt pays it once."""
        seconds = joules = 0.0
        for new, _ in chunks:
            i = min(max(bisect_right(PROMPTS, new) - 1, 0), len(PROMPTS) - 2)
            low, high = PROMPTS[i], PROMPTS[i + 1]
            a = self._each.get(low) or self._ask_each(low)
            b = self._each.get(high) or self._ask_each(high)
            part = min(1.0, max(0.0, (new - low) / (high - low)))
            seconds += a[0] + (b[0] - a[0]) * part
            joules += a[1] + (b[1] - a[1]) * part
        share = (len(chunks) - 1) / len(chunks)
        return seconds * share, joules * share

    def _ask_each(self, tokens: int) -> Point:
        """Of one prompt of so many tokens among several: a few in a step, against one that is as long as all."""
        few, one = self._ask((Seq(tokens, 0, FEW),)), self._ask((Seq(FEW * tokens, 0, 1),))
        s, j = self._pair()
        pairs = ((FEW * tokens) ** 2 - FEW * tokens**2) / 2
        more_s, more_j = few[0] - one[0] + s * pairs, few[1] - one[1] + j * pairs
        found = self._each[tokens] = (more_s / (FEW - 1), more_j / (FEW - 1))
        return found

    def _pair(self) -> Point:
        """Of one query and one key."""
        if not self._pairs:
            s, j = self._ask_past(PAIRS_AT, PAIRS_AT)
            self._pairs.append((s / PAIRS_AT**2, j / PAIRS_AT**2))
        return self._pairs[0]

    def _ask(self, seqs: tuple[Seq, ...]) -> Point:
        self.asked += 1
        made = step(seqs)
        return self.times.device_s(made), self.times.joules(made) or 0.0

    def host(self, rows: int, tokens: int, decode: bool) -> Host:
        key = (rows, decode, tokens <= MOST_GRAPH)
        found = self._hosts.get(key)
        if found is None:
            prepare_s, launch_s = self.times.host(rows, tokens, decode, key[2])
            f = self.factors.host
            found = self._hosts[key] = Host(prepare_s * f, launch_s * f)
        return found

    def request_s(self, prompt: int) -> float:
        return self.times.request_s(prompt) * self.factors.host

    def rested(self, tokens: int) -> float:
        """What a prefill takes on a GPU that had nothing to do, over what it takes under load."""
        node = TOKENS[bisect_right(TOKENS, tokens - 1)]
        if node not in self._rested:
            self._rested[node] = self.times.rested(step((Seq(node, 0, 1),)))
        return self._rested[node]

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


def _bilinear(
    known: dict[tuple[int, int], Point],
    xs: Sequence[int],
    ys: Sequence[int],
    x: float,
    y: float,
    ask: Callable[[int, int], Point],
) -> Point:
    i = min(max(bisect_right(xs, x) - 1, 0), len(xs) - 2)
    j = min(max(bisect_right(ys, y) - 1, 0), len(ys) - 2)
    u = (x - xs[i]) / (xs[i + 1] - xs[i])
    v = (y - ys[j]) / (ys[j + 1] - ys[j])
    corners = []
    for a, b in ((i, j), (i, j + 1), (i + 1, j), (i + 1, j + 1)):
        found = known.get((a, b))
        if found is None:
            found = known[a, b] = ask(xs[a], ys[b])
        corners.append(found)
    (s00, j00), (s01, j01), (s10, j10), (s11, j11) = corners
    return (
        (s00 * (1 - v) + s01 * v) * (1 - u) + (s10 * (1 - v) + s11 * v) * u,
        (j00 * (1 - v) + j01 * v) * (1 - u) + (j10 * (1 - v) + j11 * v) * u,
    )
