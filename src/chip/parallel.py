"""Pipeline and expert parallelism as arithmetic: who holds which layers and experts, what waits, and what is sent.

Tensor parallelism is in the lowering of a model (each operator is split); these two change the schedule instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from typing import NamedTuple

from chip.types import ChipError


def split_layers(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each pipeline stage as vLLM gives them (distributed/utils.py, get_pp_indices): evenly, and what is left
    over one by one to the stages before the last, which has the output head too."""
    if not 1 <= stages <= layers:
        raise ChipError(f"--pp {stages}: must be from 1 to the model's {layers} layers")
    each, over = divmod(layers, stages)
    found = [each] * stages
    for i in range(2, over + 2):
        found[-i] += 1
    return tuple(found)


def bubble(stages: int, microbatches: int) -> float:
    """Share of the time that an even pipeline stands idle while it fills and drains."""
    if stages < 1 or microbatches < 1:
        raise ChipError(f"a pipeline needs stages and microbatches of at least 1, got {stages} and {microbatches}")
    return (stages - 1) / (microbatches + stages - 1)


def pipeline_s(stage_s: Sequence[float], microbatches: int, hop_s: float = 0.0) -> float:
    """Until the last of so many equal microbatches has left the last stage: one passes through all of them, the others
    follow at the rate of the slowest. `hop_s`: activations to the next stage."""
    bubble(len(stage_s), microbatches)
    slowest = max(stage_s) + (hop_s if len(stage_s) > 1 else 0.0)
    return sum(stage_s) + hop_s * (len(stage_s) - 1) + (microbatches - 1) * slowest


def pipeline_decode_s(stage_s: Sequence[float], hop_s: float = 0.0, microbatches: int = 0) -> float:
    """Between two tokens of a sequence when so many microbatches circulate (0: as many as there are stages): a token
    starts only after the one before it has passed all stages, and each stage serves every microbatch in turn. `stage_s`
    is for one microbatch."""
    if not stage_s:
        raise ChipError("a pipeline needs at least one stage")
    stages = len(stage_s)
    hops = hop_s * stages if stages > 1 else 0.0  # the last stage sends the new token back to the first
    return max(sum(stage_s) + hops, (microbatches or stages) * max(stage_s))


def hop_bytes(tokens: int, hidden: int, width: float, tensors: int = 2) -> float:
    """What a stage sends on: in models with a fused residual add, hidden states and residual (`tensors`)."""
    return tensors * tokens * hidden * width


class Exchange(NamedTuple):
    """What one GPU of an expert-parallel group sends and computes in one layer."""

    experts: int  # that it holds
    pairs: float  # (token, expert) pairs that it computes, on average
    copies: float  # of each of its tokens that leave it: to how many other GPUs
    dispatch_bytes: float  # sent before the experts
    combine_bytes: float  # sent back after them


def ranks_reached(experts: int, top_k: int, ep: int) -> float:
    """GPUs that hold at least one of a token's `top_k` experts, on average when each set of experts is as likely."""
    _check(experts, top_k, ep)
    elsewhere = comb(experts - experts // ep, top_k) / comb(experts, top_k)
    return ep * (1 - elsewhere)


def exchange(
    tokens: float, hidden: int, experts: int, top_k: int, ep: int, dispatch_width: float, combine_width: float = 2.0
) -> Exchange:
    """All-to-all of one layer where each GPU has `tokens` tokens of its own and a token is sent once to every other GPU
    that has an expert for it (as DeepEP does). Widths: bytes an element, 1 for activations sent in fp8."""
    reached = ranks_reached(experts, top_k, ep)
    copies = reached * (ep - 1) / ep
    sent = tokens * copies * hidden
    return Exchange(experts // ep, tokens * top_k, copies, sent * dispatch_width, sent * combine_width)


def gathered_bytes(tokens: float, hidden: int, ep: int, width: float = 2.0) -> float:
    """Size of the tensor where tokens are gathered on every GPU and results scattered again (vLLM's
    allgather_reducescatter, its default): the `bytes` of an all_gather, and of a reduce_scatter."""
    return tokens * ep * hidden * width


def _check(experts: int, top_k: int, ep: int) -> None:
    if not 1 <= top_k <= experts:
        raise ChipError(f"top_k must be from 1 to the {experts} experts, got {top_k}")
    if ep < 1 or experts % ep:
        raise ChipError(f"--ep {ep}: must divide the model's {experts} experts")
