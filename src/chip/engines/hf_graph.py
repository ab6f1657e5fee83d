"""HF transformers with a cache of fixed size (StaticCache) and each step replayed as one CUDA graph.

Attention runs over the whole cache under a mask: neither causality nor the unused tail saves work.
"""

from __future__ import annotations

from chip.engines import Weighted, hf_ops
from chip.engines.context import PANELS
from chip.ops.attention import Attention
from chip.ops.masked_attention import MaskedAttention
from chip.types import Op, Program, Scenario, Seq, Step

NAME = "hf-graph"
TITLE = "HF transformers, StaticCache of prompt + max(output, 64), one CUDA graph a step"
LATENT_KV = True
CAVEAT = ""
RUNS_AS = hf_ops.RUNS_AS
KERNELS = {**hf_ops.KERNELS, "kv_append": 5}  # three of them count positions
SPARE_TOKENS = 64  # least room after the prompt


def cache_tokens(scenario: Scenario) -> int:
    return scenario.prompt + max(scenario.output, SPARE_TOKENS)


def prefill(scenario: Scenario, memory_bytes: float) -> Weighted:
    past = cache_tokens(scenario) - scenario.prompt
    return ((Step((Seq(scenario.prompt, past, scenario.batch),), graph=True), 1.0),)


def decode(scenario: Scenario, memory_bytes: float, panels: int = PANELS) -> Weighted:
    return ((Step((Seq(1, cache_tokens(scenario) - 1, scenario.batch),), graph=True), 1.0),)


def rewrite(program: Program, decode: bool) -> Program:
    return hf_ops.spelled(program, _masked)


def _masked(op: Op) -> Op:
    if not isinstance(op, Attention):
        return op
    axes = (op.batch, op.heads, op.kv_heads, op.head_dim, op.q_len, op.kv_len, op.v_head_dim)
    return MaskedAttention(*axes, op.dtype)
