"""A scenario on several GPUs: replicas of the attention, stages of a pipeline, and the notes about them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from chip import hardware, links
from chip.dtypes import BYTES
from chip.engines.playing import Weighted
from chip.models.decoder import Moe
from chip.parallel import hop_bytes, ranks_reached, split_layers
from chip.predict import pipeline
from chip.predict.limits import IMPORTED
from chip.predict.phase import Phase
from chip.predict.roof import Range
from chip.predict.steps import StepModel
from chip.records import replace
from chip.types import ChipError, Scenario

CIRCULATE = "vllm"  # the engine that keeps several batches in flight; others send one batch through all stages
ONE_GPU = "terms of engine and host were measured with one GPU, and no run on several"
PCIE = "; links over PCIe differ between machines"
LARGE_SHARE = 0.25  # of a phase that collectives take, from which on a note is written
LARGE_BYTES = 2**28  # of a tensor whose reduction the link's rate decides
EXCHANGED = ("dispatch", "combine")  # roles: tokens sent to their experts and back
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")


class Phases(NamedTuple):
    prefill: Phase
    decode: Phase | None
    microbatches: int  # in flight while a pipeline decodes


def phases(steps: StepModel, s: Scenario, gpu: str) -> Phases:
    """One replica's, with its part of the requests: all replicas take as long."""
    own = s.of_replica
    prefill = steps.prefill(own)
    if s.pp == 1:
        return Phases(prefill, steps.decode(own) if s.output > 1 else None, 1)
    planned = steps.prefill_steps(own)
    count = sum(weight for _, weight in planned)
    in_flight = max(1, min(s.pp, round(count), own.batch)) if steps.engine.NAME == CIRCULATE else 1
    prefill = pipeline.prefill(prefill, *_stages(steps, s.pp, gpu, planned), count)
    if s.output == 1:
        return Phases(prefill, None, in_flight)
    one = replace(own, batch=-(-own.batch // in_flight))
    stages = _stages(steps, s.pp, gpu, ((steps.engine.decode(one, steps.options), 1.0),))
    return Phases(prefill, pipeline.decode(steps.decode(one), *stages, in_flight), in_flight)


def _stages(steps: StepModel, pp: int, gpu: str, planned: Weighted) -> tuple[list[float], Range]:
    """Each stage's share of the most frequent step, and the transfer of a mean step to the next stage."""
    step, _ = max(planned, key=lambda item: item[1])
    tokens = sum(step.tokens * weight for step, weight in planned) / sum(weight for _, weight in planned)
    return pipeline.stage_shares(steps.decoder, pp, steps.rows(step)), hop(steps, gpu, tokens)


def hop(steps: StepModel, gpu: str, tokens: float) -> Range:
    """Seconds to send the activations of a step of so many tokens to the next stage."""
    size = hop_bytes(round(tokens), steps.decoder.hidden, BYTES[steps.precision.activation]) / steps.tp
    return Range(*links.send(size, gpu)[:3])


def check(s: Scenario, engine: str) -> None:
    if s.ep > 1 and engine != CIRCULATE:
        raise ChipError(f"--ep {s.ep} is vLLM's; {engine} has no expert parallelism: use --tp or --pp")


def notes(steps: StepModel, s: Scenario, gpu: str, found: Phases) -> Iterator[str]:
    """What was measured about several GPUs, and what was assumed."""
    if s.gpus == 1:
        return
    d = steps.decoder
    lines = [*found.prefill.lines, *(found.decode.lines if found.decode else [])]
    sources = {n.kind: n.source for n in lines if n.kind in COLLECTIVES}
    named = [f"{k} {'from imported tables' if source == IMPORTED else 'by formula'}" for k, source in sources.items()]
    yield f"{s.gpus} GPUs: {', '.join(named)}{'; ' if named else ''}{ONE_GPU}{link_text(gpu)}"
    yield from experts_note(s, d.experts)
    yield from collectives_note(s, gpu, found)
    if s.pp > 1:
        idle = f"idles {100 * pipeline.idle_share(found.prefill):.0f} % of the prefill"
        if found.decode:
            idle += f" and {100 * pipeline.idle_share(found.decode):.0f} % of a decode step"
        batches = f"{found.microbatches} batch{'es' if found.microbatches > 1 else ''} in flight"
        yield f"{stages_text(d.layer_count, s.pp)}, {batches}: a GPU {idle}"
    if s.replicas > 1 and s.tp == 1 and found.decode:
        tokens = -(-s.batch // s.replicas // found.microbatches)
        yield _exchange_note(steps, s.ep, gpu, tokens, found.decode)


def collectives_note(s: Scenario, gpu: str, found: Phases) -> Iterator[str]:
    """Where fewer GPUs may be faster, because they exchange data over PCIe."""
    phases = {"the time to first token": found.prefill, "a decode step": found.decode}
    shares = {
        name: sum([n.seconds for n in phase.lines if n.kind in COLLECTIVES]) / phase.seconds
        for name, phase in phases.items()
        if phase
    }
    if hardware.find(gpu).link or not links.over_pcie(gpu) or max(shares.values()) < LARGE_SHARE:
        return
    took = " and ".join(f"{100 * share:.0f} % of {name}" for name, share in shares.items())
    ranks = max(s.tp, s.ep)
    rate = LARGE_BYTES / links.collective("all_reduce", LARGE_BYTES, ranks, gpu, "vllm").seconds
    yield (
        f"collectives over PCIe take {took}, so that more GPUs may be slower: {ranks} {gpu} are taken to reduce large "
        f"tensors at {rate / 1e9:.2g} GB/s; where yours are faster, ask for {gpu}@GB/s"
    )


def link_text(gpu: str) -> str:
    given = hardware.find(gpu).link
    if given:
        latency_us = given.latency_s.value * 1e6 if given.latency_s else 0.0
        return f"; over a link of {given.bytes_per_s.value / 1e9:g} GB/s and {latency_us:g} us, as given"
    return PCIE if links.over_pcie(gpu) else ""


def experts_note(s: Scenario, experts: int) -> list[str]:
    if s.ep == 1:
        return []
    way = ", tokens exchanged by all-gather and reduce-scatter (vLLM's default)" if s.replicas > 1 else ""
    return [f"each GPU holds {experts // s.ep} of {experts} experts, routing taken as even{way}"]


def _exchange_note(steps: StepModel, ep: int, gpu: str, tokens: int, decode: Phase) -> str:
    """What all-to-all would take instead, where such GPUs were measured: each token is sent once to every GPU that
    holds an expert for it, and back. Predictions do not use it: vLLM's default is all-gather and reduce-scatter, and
    its all-to-all kernels are not NCCL's."""
    if not any(ranks == ep for _, _, ranks in links.measured(gpu, "all_to_all")):
        return f"no all-to-all of {ep} {gpu} was measured"
    d, width = steps.decoder, BYTES[steps.precision.activation]
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
