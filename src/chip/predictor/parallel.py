"""A question on several GPUs: tensor and expert parallelism, replicas of the attention, stages of a pipeline.

Tensor and expert parallelism are in the lowering of a model: each operator is split, or whole experts lie apart. A
pipeline changes the schedule. Its phases are predicted first as if one GPU ran all layers; their time is then split
over the stages, which run one after the other, each on a host of its own. The breakdown is that of a GPU of the slowest
stage: its share of every row, its wait for other stages (`pipeline_bubble`), and the transfer to the next stage
(`pipeline_send`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from math import comb
from typing import NamedTuple

from chip.decoders import roles
from chip.decoders.decoder import Decoder, Moe
from chip.dtypes import BYTES
from chip.engines import Engine
from chip.engines.timeline import Weighted
from chip.hardware import gpus, links
from chip.predictor.operator_time import IMPORTED
from chip.predictor.phase import ENGINE, Line, Phase
from chip.predictor.program import TimedBlock
from chip.predictor.roof import Range
from chip.predictor.steps import BEFORE, StepModel
from chip.types import ChipError, Scenario

BUBBLE, SEND = "pipeline_bubble", "pipeline_send"
ONE_GPU = "terms of engine and host were measured with one GPU, and no run on several"
PCIE = "; links over PCIe differ between machines"
LARGE_SHARE = 0.25  # of a phase that collectives take, from which on a note is written
LARGE_BYTES = 2**28  # of a tensor whose reduction the link's rate decides
EXCHANGED = (roles.DISPATCH, roles.COMBINE)  # roles: tokens sent to their experts and back
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")


class Phases(NamedTuple):
    prefill: Phase
    decode: Phase | None
    microbatches: int  # in flight while a pipeline decodes


def pipelined(steps: StepModel, s: Scenario, gpu: str) -> Phases:
    """The phases of one replica over the stages of a pipeline."""
    replica = s.of_replica
    prefill = steps.prefill(replica)
    planned = steps.schedule(replica).prefill
    count = sum(weight for _, weight in planned)
    in_flight = max(1, min(s.pp, round(count), replica.batch)) if steps.engine.CIRCULATES else 1
    prefill = pipelined_prefill(prefill, *_stages(steps, s.pp, gpu, planned), count)
    if s.output == 1:
        return Phases(prefill, None, in_flight)
    one = replace(replica, batch=-(-replica.batch // in_flight))
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
    stages = [Counter(islice(in_order, n)) for n in split_layers(d.layer_count, pp)]
    return tuple(tuple(stage[i] for i in range(len(d.layers))) for stage in stages)


@lru_cache(maxsize=64)
def stage_decoders(d: Decoder, pp: int) -> tuple[Decoder, ...]:
    """Each stage as a model of its own. The first holds the embedding too, the last the head."""
    decoders = []
    for i, kinds in enumerate(layer_kinds(d, pp)):
        layers = tuple((n, layer) for n, (_, layer) in zip(kinds, d.layers) if n)
        vocab, positions = (d.vocab, d.positions) if i in (0, pp - 1) else (0, 0)
        decoders.append(replace(d, layers=layers, tied=True, vocab=vocab, positions=positions))
    return tuple(decoders)


def stage_shares(d: Decoder, pp: int, rows: Sequence[TimedBlock]) -> list[float]:
    """Each stage's share of a step's time. `rows`: the embedding, each kind of layer, and what follows the layers."""
    embedding, *others = [(n, sum(t.seconds for t in times)) for n, _, times in rows]
    layers, after = others[: len(d.layers)], others[len(d.layers) :]
    seconds = [sum(n * s for n, (_, s) in zip(kinds, layers)) for kinds in layer_kinds(d, pp)]
    seconds[0] += embedding[0] * embedding[1]
    seconds[-1] += sum(n * s for n, s in after)
    total = sum(seconds)
    return [s / total for s in seconds]


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


def _of_one_gpu(whole: Phase, share: float, took_s: float, hop: Range, hops: float) -> Phase:
    """`own`: the GPU's part of every row but the one before the first step. `took_s`: the phase over all stages."""
    parts = ("calls", "seconds", "low_s", "high_s", "flops", "bytes", "joules")
    lines = [n if n.role == BEFORE else n._replace(**{p: share * getattr(n, p) for p in parts}) for n in whole.lines]
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


# -- notes
def notes(steps: StepModel, s: Scenario, gpu: str, phases: Phases) -> Iterator[str]:
    """What was measured about several GPUs, and what was assumed."""
    d = steps.operators.decoder
    lines = [*phases.prefill.lines, *(phases.decode.lines if phases.decode else [])]
    sources = {n.kind: n.source for n in lines if n.kind in COLLECTIVES}
    named = [f"{k} {'from imported tables' if source == IMPORTED else 'by formula'}" for k, source in sources.items()]
    yield f"{s.gpus} GPUs: {', '.join(named)}{'; ' if named else ''}{ONE_GPU}{link_text(gpu)}"
    yield from experts_note(s, d.experts, steps.engine)
    yield from _of_collectives(steps, s, gpu, phases)
    if s.pp > 1:
        idle = f"idles {100 * idle_share(phases.prefill):.0f} % of the prefill"
        if phases.decode:
            idle += f" and {100 * idle_share(phases.decode):.0f} % of a decode step"
        batches = f"{phases.microbatches} batch{'es' if phases.microbatches > 1 else ''} in flight"
        yield f"{stages_text(d.layer_count, s.pp)}, {batches}: a GPU {idle}"
    if s.replicas > 1 and s.tp == 1 and phases.decode:
        tokens = -(-s.batch // s.replicas // phases.microbatches)
        yield _of_exchange(steps, s.ep, gpu, tokens, phases.decode)


def _of_collectives(steps: StepModel, s: Scenario, gpu: str, phases: Phases) -> Iterator[str]:
    """Where fewer GPUs may be faster, because they exchange data over PCIe."""
    by_name = {"the time to first token": phases.prefill, "a decode step": phases.decode}
    shares = {
        name: sum([n.seconds for n in phase.lines if n.kind in COLLECTIVES]) / phase.seconds
        for name, phase in by_name.items()
        if phase
    }
    if gpus.find(gpu).link or not links.over_pcie(gpu) or max(shares.values()) < LARGE_SHARE:
        return
    took = " and ".join(f"{100 * share:.0f} % of {name}" for name, share in shares.items())
    ranks = max(s.tp, s.ep)
    rate = LARGE_BYTES / links.collective("all_reduce", LARGE_BYTES, ranks, gpu, steps.estimator.link_kernel).seconds
    yield (
        f"collectives over PCIe take {took}, so that more GPUs may be slower: {ranks} {gpu} are taken to reduce large "
        f"tensors at {rate / 1e9:.2g} GB/s; where yours are faster, ask for {gpu}@GB/s"
    )


def link_text(gpu: str) -> str:
    link = gpus.find(gpu).link
    if link:
        latency_us = link.latency_s.value * 1e6 if link.latency_s else 0.0
        return f"; over a link of {link.bytes_per_s.value / 1e9:g} GB/s and {latency_us:g} us, as given"
    return PCIE if links.over_pcie(gpu) else ""


def experts_note(s: Scenario, experts: int, engine: Engine) -> list[str]:
    if s.ep == 1:
        return []
    way = f", tokens exchanged by {engine.SERVES.exchange}" if s.replicas > 1 else ""
    return [f"each GPU holds {experts // s.ep} of {experts} experts, routing taken as even{way}"]


def _of_exchange(steps: StepModel, ep: int, gpu: str, tokens: int, decode: Phase) -> str:
    """What all-to-all would take instead, where such GPUs were measured: each token is sent once to every GPU that
    holds an expert for it, and back. Predictions do not use it: an engine's all-to-all kernels are not NCCL's."""
    if not any(ranks == ep for _, _, ranks in links.measured(gpu, "all_to_all")):
        return f"no all-to-all of {ep} {gpu} was measured"
    d, width = steps.operators.decoder, BYTES[steps.operators.precision.activation]
    moe = next(layer.mlp for _, layer in d.layers if isinstance(layer.mlp, Moe))
    size = tokens * ranks_reached(moe.experts, moe.top_k, ep) * d.hidden * width
    both_ways_s = 2 * links.collective("all_to_all", size, ep, gpu).seconds
    taken_s = sum(n.seconds / n.calls for n in decode.lines if n.role in EXCHANGED)
    return (
        f"exchanging tokens takes {taken_s * 1e6:.3g} us a layer of a decode step; NCCL's all-to-all, which was "
        f"measured and is not used, would take {both_ways_s * 1e6:.3g} us"
    )


def stages_text(layers: int, pp: int) -> str:
    return f"{pp} stages of {' or '.join(map(str, sorted(set(split_layers(layers, pp)))))} layers"
