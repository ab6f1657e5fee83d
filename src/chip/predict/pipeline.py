"""Pipeline parallelism: which layers each stage holds, and what one GPU does and waits for.

A phase is predicted first as if one GPU ran all layers. Its time is then split over the stages, which run one after the
other, each on a host of its own. The breakdown is that of a GPU of the slowest stage: its share of every row, its wait
for other stages (`pipeline_bubble`), and the transfer to the next stage (`pipeline_send`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice

from chip.models.decoder import Decoder, Moe
from chip.parallel import pipeline_decode_s, pipeline_s, split_layers
from chip.predict.limits import seconds_of
from chip.predict.phase import Line, Phase, Rows
from chip.predict.roof import Range
from chip.predict.steps import BEFORE, ENGINE
from chip.records import replace

BUBBLE, SEND = "pipeline_bubble", "pipeline_send"


@lru_cache(maxsize=64)
def layer_kinds(d: Decoder, pp: int) -> tuple[tuple[int, ...], ...]:
    """For each stage: how many layers it holds of each kind, in the order of `d.layers`. Layers without experts come
    first, as in all models that have both. Kinds that differ in attention alternate."""
    order: list[int] = []
    for with_experts in (False, True):
        total = {i: n for i, (n, layer) in enumerate(d.layers) if isinstance(layer.mlp, Moe) == with_experts}
        left = Counter(total)
        for _ in range(left.total()):
            kind = max(left, key=lambda i: (left[i] / total[i], -i))
            left[kind] -= 1
            order.append(kind)
    in_order = iter(order)
    held = [Counter(islice(in_order, n)) for n in split_layers(d.layer_count, pp)]
    return tuple(tuple(stage[i] for i in range(len(d.layers))) for stage in held)


@lru_cache(maxsize=64)
def stage_decoders(d: Decoder, pp: int) -> tuple[Decoder, ...]:
    """Each stage as a model of its own. The first holds the embedding too, the last the head."""
    found = []
    for i, kinds in enumerate(layer_kinds(d, pp)):
        layers = tuple((n, layer) for n, (_, layer) in zip(kinds, d.layers) if n)
        vocab, positions = (d.vocab, d.positions) if i in (0, pp - 1) else (0, 0)
        found.append(replace(d, layers=layers, tied=True, vocab=vocab, positions=positions))
    return tuple(found)


def stage_shares(d: Decoder, pp: int, rows: Rows) -> list[float]:
    """Each stage's share of a step's time. `rows`: the embedding, each kind of layer, and what follows the layers."""
    embedding, *others = [(n, sum(map(seconds_of, answers))) for n, _, answers in rows]
    layers, after = others[: len(d.layers)], others[len(d.layers) :]
    found = [sum(n * s for n, (_, s) in zip(kinds, layers)) for kinds in layer_kinds(d, pp)]
    found[0] += embedding[0] * embedding[1]
    found[-1] += sum(n * s for n, s in after)
    total = sum(found)
    return [s / total for s in found]


def prefill(whole: Phase, shares: Sequence[float], hop: Range, steps: float) -> Phase:
    """`steps` steps through all stages: the first fills the pipeline, the others follow at the slowest stage's rate.
    `whole`: the prefill on one GPU. `hop`: seconds to send the activations of a step to the next stage."""
    before_s = sum(n.seconds for n in whole.lines if n.role == BEFORE)
    work_s = whole.seconds - before_s
    each = [share * work_s / steps for share in shares]
    took_s = before_s + pipeline_s(each, max(1, round(steps)), hop.value)
    return _of_one_gpu(whole, max(shares), took_s, hop, len(shares) - 1 + steps - 1)


def decode(whole: Phase, shares: Sequence[float], hop: Range, microbatches: int) -> Phase:
    """The time between two tokens while `microbatches` go round; `whole` is the step of one of them on one GPU."""
    each = [share * whole.seconds for share in shares]
    took_s = pipeline_decode_s(each, hop.value, microbatches)
    return _of_one_gpu(whole, microbatches * max(shares), took_s, hop, len(shares))


def _of_one_gpu(whole: Phase, own: float, took_s: float, hop: Range, hops: float) -> Phase:
    """`own`: the GPU's part of every row but the one before the first step. `took_s`: the phase over all stages."""
    parts = ("calls", "seconds", "low_s", "high_s", "flops", "bytes", "joules")
    lines = [n if n.role == BEFORE else n._replace(**{p: own * getattr(n, p) for p in parts}) for n in whole.lines]
    value, low_s, high_s = (s * hops for s in hop)
    idle_s = max(0.0, took_s - sum(n.seconds for n in lines) - value)
    low, high = whole.low_s / whole.seconds, whole.high_s / whole.seconds
    lines += [
        Line(SEND, ENGINE, hops, value, low_s, high_s, "link", "datasheet", 0.0, 0.0, 0.0),
        Line(BUBBLE, ENGINE, 1.0, idle_s, idle_s * low, idle_s * high, "link", ENGINE, 0.0, 0.0, 0.0),
    ]
    return Phase(lines, took_s * low - (value - low_s), took_s * high + (high_s - value))


def idle_share(phase: Phase) -> float:
    return sum(n.seconds for n in phase.lines if n.role == BUBBLE) / phase.seconds
