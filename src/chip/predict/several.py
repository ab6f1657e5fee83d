"""A scenario over several GPUs: replicas of the attention, stages of a pipeline, and what must be said of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from chip import hardware, links
from chip.dtypes import BYTES
from chip.engines.playing import Weighted
from chip.models.decoder import Decoder, Moe
from chip.parallel import hop_bytes, ranks_reached, split_layers
from chip.predict import pipeline
from chip.predict.limits import INTERPOLATED
from chip.predict.phase import Phase
from chip.predict.roof import Range
from chip.predict.steps import ENGINE, StepModel
from chip.records import replace
from chip.types import ChipError, Scenario

CIRCULATE = "vllm"  # the engine that keeps several batches in flight; others send one through all stages
UNMEASURED = 0.1  # share of the operators' time without a point from which on it is said
NAMED = 4  # roles that are named then
ONE_GPU = "terms of engine and host were measured with one GPU, and no run on several"
PCIE = "; links over PCIe differ between machines"
EXCHANGED = ("dispatch", "combine")  # roles of the tokens' way to experts and back
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")


class Phases(NamedTuple):
    prefill: Phase
    decode: Phase | None
    microbatches: int  # that go round in the decode of a pipeline


def phases(steps: StepModel, s: Scenario, gpu: str, memory_bytes: float) -> Phases:
    """Every replica has its part of the requests, and all take as long."""
    own = s.of_replica
    prefill = steps.prefill(own, memory_bytes)
    if s.pp == 1:
        return Phases(prefill, steps.decode(own, memory_bytes) if s.output > 1 else None, 1)
    planned = steps.engine.prefill(own, memory_bytes)
    count = sum(weight for _, weight in planned)
    in_flight = max(1, min(s.pp, round(count), own.batch)) if steps.engine.NAME == CIRCULATE else 1
    prefill = pipeline.prefill(prefill, _shares(steps, s.pp, planned), count, _hop(steps, gpu, planned))
    if s.output == 1:
        return Phases(prefill, None, in_flight)
    one = replace(own, batch=-(-own.batch // in_flight))
    planned = ((steps.engine.decode(one, memory_bytes), 1.0),)
    decode = pipeline.decode(
        steps.decode(one, memory_bytes), _shares(steps, s.pp, planned), in_flight, _hop(steps, gpu, planned)
    )
    return Phases(prefill, decode, in_flight)


def _shares(steps: StepModel, pp: int, planned: Weighted) -> list[float]:
    """By stage, of the step that stands for most."""
    step, _ = max(planned, key=lambda item: item[1])
    return pipeline.stage_shares(steps.decoder, pp, steps.rows(step))


def _hop(steps: StepModel, gpu: str, planned: Weighted) -> Range:
    return hop(steps, gpu, sum(step.tokens * weight for step, weight in planned) / sum(weight for _, weight in planned))


def hop(steps: StepModel, gpu: str, tokens: float) -> Range:
    """Of a step of so many tokens."""
    size = hop_bytes(round(tokens), steps.decoder.hidden, BYTES[steps.precision.activation]) / steps.tp
    found = links.send(size, gpu)
    return Range(found.seconds, found.low_s, found.high_s)


def check(s: Scenario, engine: str) -> None:
    if s.ep > 1 and engine != CIRCULATE:
        raise ChipError(f"--ep {s.ep} is vLLM's; {engine} has no expert parallelism: use --tp or --pp")


def notes(s: Scenario, gpu: str, found: Phases, layers: int, experts: int) -> list[str]:
    """What of it was measured, and what was assumed."""
    out = []
    if s.gpus > 1:
        both = [*found.prefill.lines, *(found.decode.lines if found.decode else [])]
        sent = {n.kind: n.source for n in both if n.kind in COLLECTIVES}
        of = [f"{kind} " + ("from imported tables" if sent[kind] == INTERPOLATED else "by formula") for kind in sent]
        exchange = f"{', '.join(of)}; " if of else ""
        out.append(f"{s.gpus} GPUs: {exchange}{ONE_GPU}{link_text(gpu)}")
    out += experts_note(s, experts)
    if s.pp > 1:
        idle = f"idles {100 * pipeline.idle_share(found.prefill):.0f} % of the prefill"
        if found.decode:
            idle += f" and {100 * pipeline.idle_share(found.decode):.0f} % of a decode step"
        batches = f"{found.microbatches} batch{'es' if found.microbatches > 1 else ''} in flight"
        out.append(f"{stages_text(layers, s.pp)}, {batches}: a GPU {idle}")
    return out


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


def all_to_all_note(s: Scenario, gpu: str, d: Decoder, width: float, found: Phases) -> list[str]:
    """What the other way to exchange tokens would take, where such GPUs were measured: each is sent once to every GPU
    that has an expert for it, and back. Predictions do not use it: vLLM's default is all-gather and reduce-scatter, and
    its all-to-all kernels are not NCCL's."""
    moe = next((layer.mlp for _, layer in d.layers if isinstance(layer.mlp, Moe)), None)
    if moe is None or found.decode is None or s.replicas == 1 or s.tp > 1:
        return []
    taken_s = sum(n.seconds / n.calls for n in found.decode.lines if n.role in EXCHANGED)
    if not taken_s:
        return []
    if not any(ranks == s.ep for _, _, ranks in links.measured(gpu, "all_to_all")):
        return [f"no all-to-all of {s.ep} {gpu} was measured"]
    tokens = -(-s.batch // s.replicas // found.microbatches)
    size = tokens * ranks_reached(moe.experts, moe.top_k, s.ep) * d.hidden * width
    both_ways_s = 2 * links.collective("all_to_all", size, s.ep, gpu).seconds
    return [
        f"exchanging tokens takes {taken_s * 1e6:.3g} us a layer of a decode step; NCCL's all-to-all, which was "
        f"measured and is not used, would take {both_ways_s * 1e6:.3g} us"
    ]


def stages_text(layers: int, pp: int) -> str:
    return f"{pp} stages of {' or '.join(map(str, sorted(set(split_layers(layers, pp)))))} layers"


def unmeasured(found: Phases, output: int) -> list[str]:
    """Where much of the operators' time rests on no point although the GPU has points."""
    phases = [(1, found.prefill), (output - 1, found.decode)] if found.decode else [(1, found.prefill)]
    total = sum([n * (phase.seconds - phase.seconds_by_source.get(ENGINE, 0.0)) for n, phase in phases])
    measured = sum([n * phase.seconds_by_source.get(INTERPOLATED, 0.0) for n, phase in phases])
    if total - measured < UNMEASURED * total:
        return []
    time_by: dict[str, float] = {}
    for n, phase in phases:
        for line in phase.lines:
            if line.kind != ENGINE and line.source != INTERPOLATED:
                time_by[line.role] = time_by.get(line.role, 0.0) + n * line.seconds
    roles: Sequence[str] = sorted(time_by, key=time_by.__getitem__, reverse=True)
    share, more = 100 * (1 - measured / total), f" and {len(roles) - NAMED} more" if len(roles) > NAMED else ""
    told = f"{share:.0f} % of the operators' time has no measured point: {', '.join(roles[:NAMED])}{more}"
    return [told] if roles else []
