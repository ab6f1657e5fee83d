"""A model over several stages of a pipeline: what each stage holds, what waits for what, and what one GPU does of it.

A phase is predicted as if one GPU ran all layers; its stages then run those layers one after the other, on hosts of
their own. The breakdown is that of a GPU of the slowest stage: its share of every row, what it waits while other stages
work (`pipeline_bubble`), and what is sent on (`pipeline_send`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice

from chip.models.decoder import Decoder, Moe
from chip.parallel import pipeline_decode_s, pipeline_s, split_layers
from chip.predict.phase import Line, Phase, Rows
from chip.predict.roof import Range
from chip.predict.steps import BEFORE, ENGINE
from chip.records import replace

BUBBLE, SEND = "pipeline_bubble", "pipeline_send"


@lru_cache(maxsize=64)
def layer_kinds(d: Decoder, pp: int) -> tuple[tuple[int, ...], ...]:
    """Of each stage: how many layers of each kind, as `d.layers` has them. Layers without experts come first, as in all
    models that have both; kinds that differ in attention alternate."""
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
    """What each stage holds: the first has the embedding too, the last the head."""
    found = []
    for i, kinds in enumerate(layer_kinds(d, pp)):
        layers = tuple((n, layer) for n, (_, layer) in zip(kinds, d.layers) if n)
        vocab, positions = (d.vocab, d.positions) if i in (0, pp - 1) else (0, 0)
        found.append(replace(d, layers=layers, tied=True, vocab=vocab, positions=positions))
    return tuple(found)


def stage_shares(d: Decoder, pp: int, rows: Rows) -> list[float]:
    """Of a step's time, by stage. `rows`: the embedding, each kind of layer, and what follows the layers."""
    embedding, *others = [(n, sum(a[0] for a in answers)) for n, _, answers in rows]
    layers, after = others[: len(d.layers)], others[len(d.layers) :]
    found = [sum(n * s for n, (_, s) in zip(kinds, layers)) for kinds in layer_kinds(d, pp)]
    found[0] += embedding[0] * embedding[1]
    found[-1] += sum(n * s for n, s in after)
    total = sum(found)
    return [s / total for s in found]


def prefill(whole: Phase, shares: Sequence[float], hop: Range, steps: float) -> Phase:
    """So many steps through all stages: the first fills the pipeline, the others follow at the slowest stage's rate.
    `hop`: seconds to hand the activations of a step to the next stage."""
    before_s = sum(n.seconds for n in whole.lines if n.role == BEFORE)
    work_s = whole.seconds - before_s
    each = [share * work_s / steps for share in shares]
    took_s = before_s + pipeline_s(each, max(1, round(steps)), hop.value)
    return _of_one_gpu(whole, max(shares), took_s, hop, len(shares) - 1 + steps - 1)


def decode(whole: Phase, shares: Sequence[float], hop: Range, microbatches: int) -> Phase:
    """Between two tokens, where so many microbatches go round; `whole` is the step of one of them."""
    each = [share * whole.seconds for share in shares]
    took_s = pipeline_decode_s(each, hop.value, microbatches)
    return _of_one_gpu(whole, microbatches * max(shares), took_s, hop, len(shares))


def _of_one_gpu(whole: Phase, own: float, took_s: float, hop: Range, hops: float) -> Phase:
    """`own`: its part of all rows but what comes before the first step."""
    parts = ("calls", "seconds", "low_s", "high_s", "flops", "bytes")
    lines = [n if n.role == BEFORE else n._replace(**{p: own * getattr(n, p) for p in parts}) for n in whole.lines]
    value, low_s, high_s = (s * hops for s in hop)
    idle_s = max(0.0, took_s - sum(n.seconds for n in lines) - value)
    low, high = whole.low_s / whole.seconds, whole.high_s / whole.seconds
    lines += [
        Line(SEND, ENGINE, hops, value, low_s, high_s, "link", "datasheet", 0.0, 0.0),
        Line(BUBBLE, ENGINE, 1.0, idle_s, idle_s * low, idle_s * high, "link", ENGINE, 0.0, 0.0),
    ]
    return Phase(lines, took_s * low - (value - low_s), took_s * high + (high_s - value))


def idle_share(phase: Phase) -> float:
    return sum(n.seconds for n in phase.lines if n.role == BUBBLE) / phase.seconds
