"""Rewrites of a program that engines share: which canonical operators become one kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from chip.ops.add_layer_norm import AddLayerNorm
from chip.ops.add_rms_norm import AddRmsNorm
from chip.ops.add_rms_norm_quant import AddRmsNormQuant
from chip.ops.elementwise import Elementwise
from chip.ops.gelu import Gelu
from chip.ops.gelu_fast import GeluFast
from chip.ops.gelu_new import GeluNew
from chip.ops.layer_norm import LayerNorm
from chip.ops.linear import Linear
from chip.ops.quantize import Quantize
from chip.ops.rms_norm import RmsNorm
from chip.ops.rms_norm_quant import RmsNormQuant
from chip.ops.rope import Rope
from chip.ops.silu_mul import SiluMul
from chip.ops.silu_mul_quant import SiluMulQuant
from chip.records import replace
from chip.types import Block, Call, Op, Program

Rule = Callable[[list[Call]], list[Call]]
ROUNDED: dict[type[Op], Any] = {AddRmsNorm: AddRmsNormQuant, RmsNorm: RmsNormQuant, SiluMul: SiluMulQuant}


def apply(program: Program, *rules: Rule) -> Program:
    """Apply each rule to the calls of each block."""
    blocks = []
    for block in program.blocks:
        calls = list(block.calls)
        for rule in rules:
            calls = rule(calls)
        blocks.append(Block(block.repeat, tuple(calls)))
    return Program(tuple(blocks))


def merge_linears(roles: tuple[str, ...], merged: str) -> Rule:
    """Neighbouring dense layers over the same input, with these roles, as one of their summed width."""

    def rule(calls: list[Call]) -> list[Call]:
        parts = [c.op for c in calls if c.role in roles and isinstance(c.op, Linear)]
        if len(parts) != len(roles):
            return calls
        if len({replace(p, n=1) for p in parts}) > 1:  # stored in different formats: one product cannot take both
            return calls
        wide = replace(parts[0], n=sum(p.n for p in parts))
        out = []
        for c in calls:
            if c.role == roles[0]:
                out.append(Call(merged, wide))
            elif c.role not in roles:
                out.append(c)
        return out

    return rule


def fuse_residual_norms(calls: list[Call]) -> list[Call]:
    """A residual addition and the norm beside it as one kernel; what scales a branch is part of its addition.

    The addition at a layer's end goes into the next layer's first norm, so within a block every `*_add` disappears and
    `attn_norm` and `mlp_norm` become fused ones. (The very first layer has no addition before it: one of many.) Where
    no norm comes before a branch, the one after it takes the addition that follows.
    """
    roles = [c.role for c in calls]
    parallel = "attn_norm" in roles and roles[-2:] == ["attn_add", "mlp_add"]  # both go into the next layer's norm
    norms: tuple[str, ...] = ("attn_norm", "mlp_norm")
    if "attn_post_norm" in roles and "attn_norm" not in roles:
        norms = ("attn_post_norm", "mlp_post_norm")
    elif not parallel and (
        "attn_add" not in roles or "mlp_norm" not in roles or roles.index("attn_add") > roles.index("mlp_norm")
    ):
        return calls  # no addition precedes a norm
    out = []
    for c in calls:
        if c.role in ("attn_add", "mlp_add", "attn_scale", "mlp_scale"):
            continue
        if c.role in norms and isinstance(c.op, RmsNorm):
            c = Call(c.role, AddRmsNorm(c.op.rows, c.op.cols, c.op.dtype))
        elif c.role in norms and isinstance(c.op, LayerNorm):
            c = Call(c.role, AddLayerNorm(c.op.rows, c.op.cols, c.op.dtype))
        out.append(c)
    return out


def fuse_head_norms(calls: list[Call]) -> list[Call]:
    """Norms of queries and keys and the rotation that follows them touch the same bytes: one kernel. It counts as the
    rotation where norms are of single heads, as the norms where they are over all heads."""
    roles = [c.role for c in calls]
    if "rope" not in roles or roles[: roles.index("rope")][-2:] != ["q_norm", "k_norm"]:
        return calls
    norm, rope = calls[roles.index("q_norm")].op, calls[roles.index("rope")].op
    over_all_heads = isinstance(norm, Elementwise) and isinstance(rope, Rope) and norm.rows == rope.rows
    gone = ("rope",) if over_all_heads else ("q_norm", "k_norm")
    return [c for c in calls if c.role not in gone]


def fuse_gelu(calls: list[Call]) -> list[Call]:
    """A GELU that HF spells out as one kernel."""
    return [
        Call(c.role, Gelu(c.op.rows, c.op.cols, c.op.dtype)) if isinstance(c.op, (GeluFast, GeluNew)) else c
        for c in calls
    ]


def fuse_quantize(calls: list[Call]) -> list[Call]:
    """An fp8 rounding that follows a norm or a gated activation is part of its kernel: torch.compile makes one of both,
    and so do vLLM's own passes where scales cover groups. int8 and fp4 roundings stay kernels of their own."""
    out: list[Call] = []
    for c in calls:
        q, before = c.op, cast(Elementwise, out[-1].op if out else None)
        both = ROUNDED.get(type(before))
        if both and isinstance(q, Quantize) and q.to == "fp8" and not q.per_tensor and before.cols == q.cols:
            out[-1] = Call(out[-1].role, both(before.rows, before.cols, before.dtype, q.to, q.group))
        else:
            out.append(c)
    return out
