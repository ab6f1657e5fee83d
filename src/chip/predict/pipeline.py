"""A model over several stages of a pipeline: what each stage holds, what waits for what, and what one GPU does of it.

A phase is predicted as if one GPU ran all layers; its stages then run those layers one after the other, on hosts of
their own. The breakdown is that of a GPU of the slowest stage: its share of every row, what it waits while other stages
work (`pipeline_bubble`), and what is sent on (`pipeline_send`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

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
        left = {i: n for i, (n, layer) in enumerate(d.layers) if isinstance(layer.mlp, Moe) == with_experts}
        total = dict(left)
        while any(left.values()):
            kind = max(left, key=lambda i: (left[i] / total[i], -i))
            left[kind] -= 1
            order.append(kind)
    stages, at = [], 0
    for n in split_layers(d.layer_count, pp):
        held = Counter(order[at : at + n])
        stages.append(tuple(held.get(i, 0) for i in range(len(d.layers))))
        at += n
    return tuple(stages)


@lru_cache(maxsize=64)
def stage_decoders(d: Decoder, pp: int) -> tuple[Decoder, ...]:
    """What each stage holds: the first has the embedding too, the last the head."""
    found = []
    for i, kinds in enumerate(layer_kinds(d, pp)):
        layers = tuple((n, layer) for n, (_, layer) in zip(kinds, d.layers) if n)
        at_an_end = i in (0, pp - 1)
        vocab, positions = (d.vocab, d.positions) if at_an_end else (0, 0)
        found.append(replace(d, layers=layers, tied=True, vocab=vocab, positions=positions))
    return tuple(found)


def stage_shares(d: Decoder, pp: int, rows: Rows) -> list[float]:
    """Of a step's time, by stage. `rows`: the embedding, each kind of layer, and what follows the layers."""
    seconds = [sum(a[0] for a in answers) for _, _, answers in rows]
    layers = seconds[1 : 1 + len(d.layers)]
    found = [sum(n * s for n, s in zip(kinds, layers)) for kinds in layer_kinds(d, pp)]
    found[0] += rows[0][0] * seconds[0]
    found[-1] += sum(row[0] * s for row, s in zip(rows[1 + len(d.layers) :], seconds[1 + len(d.layers) :]))
    total = sum(found)
    return [s / total for s in found]


def prefill(whole: Phase, shares: Sequence[float], steps: float, hop: Range) -> Phase:
    """So many steps through all stages: the first fills the pipeline, the others follow at the slowest stage's rate.
    `hop`: seconds to hand the activations of a step to the next stage."""
    stages = len(shares)
    hops = stages - 1 + steps - 1
    before_s = sum(n.seconds for n in whole.lines if n.role == BEFORE)
    work_s = whole.seconds - before_s
    each = [share * work_s / steps for share in shares]
    took_s = before_s + pipeline_s(each, max(1, round(steps)), hop.value)
    return _of_one_gpu(whole, max(shares), took_s, hop, hops)


def decode(whole: Phase, shares: Sequence[float], microbatches: int, hop: Range) -> Phase:
    """Between two tokens, where so many microbatches go round; `whole` is the step of one of them."""
    each = [share * whole.seconds for share in shares]
    took_s = pipeline_decode_s(each, hop.value, microbatches)
    return _of_one_gpu(whole, microbatches * max(shares), took_s, hop, len(shares))


def _of_one_gpu(whole: Phase, own: float, took_s: float, hop: Range, hops: float) -> Phase:
    lines = [n if n.role == BEFORE else _scaled(n, own) for n in whole.lines]
    value, low_s, high_s = (s * hops for s in hop)
    sent = Line(SEND, ENGINE, hops, value, low_s, high_s, "link", "datasheet", 0.0, 0.0)
    idle_s = max(0.0, took_s - sum(n.seconds for n in lines) - sent.seconds)
    low, high = whole.low_s / whole.seconds, whole.high_s / whole.seconds
    lines += [sent, Line(BUBBLE, ENGINE, 1.0, idle_s, idle_s * low, idle_s * high, "link", ENGINE, 0.0, 0.0)]
    less, more = sent.seconds - sent.low_s, sent.high_s - sent.seconds
    return Phase(lines, took_s * low - less, took_s * high + more)


def _scaled(n: Line, by: float) -> Line:
    return n._replace(
        calls=n.calls * by, seconds=n.seconds * by, low_s=n.low_s * by, high_s=n.high_s * by, flops=n.flops * by,
        bytes=n.bytes * by,
    )  # fmt: skip


def idle_share(phase: Phase) -> float:
    return sum(n.seconds for n in phase.lines if n.role == BUBBLE) / phase.seconds
