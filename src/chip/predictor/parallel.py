"""A question on several GPUs: tensor and expert parallelism, replicas of the attention, stages of a pipeline.

Tensor and expert parallelism are in the lowering of a model: each operator is split, or whole experts lie apart. A
pipeline changes the schedule. Its phases are predicted first as if one GPU ran all layers; their time is then split
over the stages, which run one after the other, each on a host of its own. The breakdown is that of a GPU of the slowest
stage: its share of every row, its wait for other stages (`pipeline_bubble`), and the transfer to the next stage
(`pipeline_send`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from math import comb
from typing import NamedTuple

from chip.decoders.decoder import Decoder, Moe
from chip.dtypes import BYTES
from chip.engines.timeline import Weighted
from chip.hardware import links
from chip.predictor.phase import ENGINE, Line, Phase
from chip.predictor.program import TimedBlock
from chip.predictor.roof import Range
from chip.predictor.steps import BEFORE, StepModel
from chip.types import ChipError, Scenario

BUBBLE, SEND = "pipeline_bubble", "pipeline_send"


class Phases(NamedTuple):
    prefill: Phase
    decode: Phase | None
    microbatches: int  # in flight while a pipeline decodes


def phases(steps: StepModel, s: Scenario, gpu: str) -> Phases:
    """One replica's, with its part of the requests: all replicas take as long."""
    own = s.of_replica
    prefill = steps.prefill(own)
    if s.pp == 1:
        return Phases(prefill, steps.decode(own, prefill) if s.output > 1 else None, 1)
    planned = steps.schedule(own).prefill
    count = sum(weight for _, weight in planned)
    in_flight = max(1, min(s.pp, round(count), own.batch)) if steps.engine.CIRCULATES else 1
    prefill = pipelined_prefill(prefill, *_stages(steps, s.pp, gpu, planned), count)
    if s.output == 1:
        return Phases(prefill, None, in_flight)
    one = replace(own, batch=-(-own.batch // in_flight))
    stages = _stages(steps, s.pp, gpu, ((steps.engine.decode(one, steps.options), 1.0),))
    return Phases(prefill, pipelined_decode(steps.decode(one), *stages, in_flight), in_flight)


def _stages(steps: StepModel, pp: int, gpu: str, planned: Weighted) -> tuple[list[float], Range]:
    """Each stage's share of the most frequent step, and the transfer of a mean step to the next stage."""
    step, _ = max(planned, key=lambda item: item[1])
    tokens = sum(step.tokens * weight for step, weight in planned) / sum(weight for _, weight in planned)
    return stage_shares(steps.operators.decoder, pp, steps.rows(step)), hop(steps, gpu, tokens)


def hop(steps: StepModel, gpu: str, tokens: float) -> Range:
    """Seconds to send the activations of a step of so many tokens to the next stage: hidden states and residual."""
    o = steps.operators
    return Range(*links.send(2 * round(tokens) * o.decoder.hidden * BYTES[o.precision.activation] / o.tp, gpu)[:3])


def split_layers(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage as vLLM gives them (distributed/utils.py, get_pp_indices): evenly, and what is left over one
    by one to the stages before the last, which has the output head too."""
    if not 1 <= stages <= layers:
        raise ChipError(f"--pp {stages}: must be from 1 to the model's {layers} layers")
    each, rest = divmod(layers, stages)
    return tuple(each + (stages - 1 - rest <= i < stages - 1) for i in range(stages))


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


def stage_shares(d: Decoder, pp: int, rows: Sequence[TimedBlock]) -> list[float]:
    """Each stage's share of a step's time. `rows`: the embedding, each kind of layer, and what follows the layers."""
    embedding, *others = [(n, sum(t.seconds for t in times)) for n, _, times in rows]
    layers, after = others[: len(d.layers)], others[len(d.layers) :]
    found = [sum(n * s for n, (_, s) in zip(kinds, layers)) for kinds in layer_kinds(d, pp)]
    found[0] += embedding[0] * embedding[1]
    found[-1] += sum(n * s for n, s in after)
    total = sum(found)
    return [s / total for s in found]


def pipeline_s(stage_s: Sequence[float], microbatches: int, hop_s: float = 0.0) -> float:
    """Until the last of so many equal microbatches has left the last stage: one passes through all of them, the others
    follow at the rate of the slowest. `hop_s`: activations to the next stage."""
    slowest_s = max(stage_s) + (hop_s if len(stage_s) > 1 else 0.0)
    return sum(stage_s) + hop_s * (len(stage_s) - 1) + (microbatches - 1) * slowest_s


def pipeline_decode_s(stage_s: Sequence[float], hop_s: float, microbatches: int) -> float:
    """Between two tokens of a sequence when so many microbatches circulate: a token starts only after the one before it
    has passed all stages, and each stage serves every microbatch in turn. `stage_s` is for one microbatch."""
    hops_s = hop_s * len(stage_s) if len(stage_s) > 1 else 0.0  # the last stage sends the new token to the first
    return max(sum(stage_s) + hops_s, microbatches * max(stage_s))


def pipelined_prefill(whole: Phase, shares: Sequence[float], hop: Range, steps: float) -> Phase:
    """`steps` steps through all stages: the first fills the pipeline, the others follow at the slowest stage's rate.
    `whole`: the prefill on one GPU. `hop`: seconds to send the activations of a step to the next stage."""
    before_s = sum(n.seconds for n in whole.lines if n.role == BEFORE)
    work_s = whole.seconds - before_s
    each = [share * work_s / steps for share in shares]
    took_s = before_s + pipeline_s(each, max(1, round(steps)), hop.value)
    return _of_one_gpu(whole, max(shares), took_s, hop, len(shares) - 1 + steps - 1)


def pipelined_decode(whole: Phase, shares: Sequence[float], hop: Range, microbatches: int) -> Phase:
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


def ranks_reached(experts: int, top_k: int, ep: int) -> float:
    """GPUs that hold at least one of a token's `top_k` experts, on average when each set of experts is as likely."""
    return ep * (1 - comb(experts - experts // ep, top_k) / comb(experts, top_k))
