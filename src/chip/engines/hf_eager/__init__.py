"""HF transformers as it comes: one kernel an operator, a growing cache (DynamicCache), sdpa attention."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from chip.dtypes import Precision
from chip.engines import hf, hf_memory
from chip.engines.calibration import CUT, HF_POINTS, TWO_DEPTHS, cut
from chip.engines.fuse import apply, as_kind
from chip.engines.playing import Played, Room, Weighted
from chip.engines.terms import Terms
from chip.models.decoder import Decoder
from chip.ops.masked_attention import WindowedAttention
from chip.timeline import HostCost, Timeline
from chip.types import ChipError, Program, Scenario, Seq, Step

NAME = "hf-eager"
TITLE = "HF transformers, eager, DynamicCache, sdpa"
COPIES_KEYS = hf.BROADCAST
TERMS = ("gap_s", "first_s", "host_step_s", "host_call_s", "host_kernel_s", "host_experts_s")
CAVEAT = (
    "hf-eager: decode with the flash backend; torch's default (cuDNN) also builds a plan for every new context length, "
    "tens of milliseconds each"
)
KERNELS = hf.KERNELS
SDPA = ("cudnn", "flash")  # attention kernels that a prefill can run; torch chooses the first
CALIBRATION = cut(tuple(CUT), TWO_DEPTHS, HF_POINTS)
MEMORY_SHARE = 1.0
# Driver, framework and kernels beside torch's pool: 1.36 to 1.38 GB in the recorded runs on an H200.
CONTEXT_BYTES = 1.37e9
# cuBLAS's workspace as torch sets it up on Hopper and newer, one for each stream.
WORKSPACE_BYTES = 32 * 2**20


def runs_as(capability: float, options: Mapping[str, str]) -> Mapping[str, str]:
    sdpa = options.get("sdpa", "")
    if sdpa and sdpa not in SDPA:
        raise ChipError(f"--sdpa {sdpa[:40]}: {NAME} is predicted with {' or '.join(SDPA)}, no other")
    return {**hf.RUNS_AS, "attention": sdpa or SDPA[0]}


def play(t: Timeline, step: Played, terms: Terms) -> None:
    """Every kernel is launched by the host."""
    t.prepare("prepare", terms.host_step_s)
    t.layers(step.blocks, HostCost(terms.host_call_s, terms.host_kernel_s, terms.host_experts_s))


def room(scenario: Scenario, options: None) -> Room:
    cache_tokens, step_tokens = scenario.prompt + scenario.output, scenario.batch * scenario.prompt
    return Room(
        MEMORY_SHARE, CONTEXT_BYTES, cache_tokens, step_tokens, scenario.batch,
        workspace_bytes=WORKSPACE_BYTES, pool=False,
    )  # fmt: skip


def peak_bytes(d: Decoder, p: Precision, s: Scenario, room: Room) -> float:
    """Of the prompts, when the cache has no more than them, or of the last decode step. Until that, a layer with a
    window keeps all keys of the prompt: what it caches is a view of them."""
    copies = s.batch * (d.copied_heads if d.architecture in COPIES_KEYS else 1.0)
    cached, of_prompt = d.kv_bytes(room.cache_tokens, p, tp=s.tp), s.prompt * d.kv_bytes(1, p, tp=s.tp)
    prompt = hf_memory.peak_bytes(d, p, s, s.prompt) + (of_prompt - cached) * copies
    return max(prompt, cached / d.layer_count / 2 * copies)  # a step joins a token to a layer's keys: a new tensor


def prefill(scenario: Scenario, options: None) -> Weighted:
    """The cache is empty, so nothing is joined to it, not even a prompt of one token."""
    return ((Step((Seq(scenario.prompt, 0, scenario.batch),), prompts=True), 1.0),)


def decode(scenario: Scenario, options: None) -> Step:
    return Step((Seq(1, scenario.prompt, scenario.batch),), steps=scenario.decode_steps)


def rewrite(program: Program, decode: bool, architecture: str = "") -> Program:
    """A decode step joins the new token to the cache, then attends. A prompt attends to itself, under a mask where a
    window is shorter."""
    if decode:
        grown = hf.decompose(program, partial(as_kind, "growing_attention"), architecture)
        return apply(grown, hf.join_cache)
    return hf.decompose(program, lambda op: as_kind(WindowedAttention, op) if op.window else op, architecture)
