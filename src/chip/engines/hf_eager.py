"""HF transformers as it comes: one kernel an operator, a growing cache (DynamicCache), sdpa attention."""

from __future__ import annotations

from collections.abc import Collection

from chip.engines import Weighted, hf_families, hf_ops
from chip.engines.context import PANELS, decode_contexts
from chip.ops.attention import Attention
from chip.ops.growing_attention import GrowingAttention
from chip.ops.masked_attention import WindowedAttention
from chip.types import Op, Program, Scenario, Seq, Step

NAME = "hf-eager"
TITLE = "HF transformers, eager, DynamicCache, sdpa"
LATENT_KV = True
CAVEAT = (
    "hf-eager: decode with the flash backend; torch's default (cuDNN) also builds a plan for every new context length, "
    "tens of milliseconds each"
)
KERNELS = hf_ops.KERNELS
SDPA = ("cudnn", "flash")  # what a prefill attends with: torch's choice first
RUNS_AS = {**hf_ops.RUNS_AS, "attention": SDPA[0]}


def prefill(scenario: Scenario, memory_bytes: float) -> Weighted:
    return ((Step((Seq(scenario.prompt, 0, scenario.batch),)), 1.0),)


def decode(scenario: Scenario, memory_bytes: float, panels: int = PANELS, windows: Collection[int] = ()) -> Weighted:
    points = decode_contexts(scenario.prompt, scenario.output - 1, panels)
    return tuple((Step((Seq(1, past, scenario.batch),)), weight) for past, weight in points)


def rewrite(program: Program, decode: bool, architecture: str = "") -> Program:
    if not decode:
        return hf_ops.spelled(program, _whole, architecture)
    return hf_families.grown(hf_ops.spelled(program, _growing, architecture))


def _whole(op: Op) -> Op:
    """A prompt attends to itself, under a mask where a window hides some of it."""
    return _as(WindowedAttention, op) if isinstance(op, Attention) and op.window else op


def _growing(op: Op) -> Op:
    """A decode step joins the new token to the cache before it attends."""
    return _as(GrowingAttention, op) if isinstance(op, Attention) else op


def _as(kind: type[Attention], op: Attention) -> Attention:
    axes = (op.batch, op.heads, op.kv_heads, op.head_dim, op.q_len, op.kv_len, op.causal, op.window, op.v_head_dim)
    return kind(*axes, op.dtype)
