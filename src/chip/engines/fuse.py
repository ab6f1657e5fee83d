"""Rewrites of a program that engines share: which canonical operators become one kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

from chip import ops
from chip.ops.elementwise import Elementwise
from chip.ops.linear import Linear
from chip.ops.quantize import Quantize
from chip.records import replace
from chip.types import Block, Call, Op, Program

T = TypeVar("T", bound=Op)
Rule = Callable[[list[Call]], Iterable[Call]]
# roles of neighbouring dense layers over the same input, by what they are as one
MERGED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "shared_gate_up_proj": ("shared_gate_proj", "shared_up_proj"),
}
WITH_ADDITION = {"rms_norm": "add_rms_norm", "layer_norm": "add_layer_norm"}
WITH_ROUNDING = {"rms_norm": "rms_norm_quant", "add_rms_norm": "add_rms_norm_quant", "silu_mul": "silu_mul_quant"}
IN_A_NORM = ("attn_add", "mlp_add", "attn_scale", "mlp_scale")  # roles


def apply(program: Program, *rules: Rule) -> Program:
    """Apply each rule to the calls of each block."""
    blocks = []
    for block in program.blocks:
        calls = list(block.calls)
        for rule in rules:
            calls = list(rule(calls))
        blocks.append(Block(block.repeat, tuple(calls)))
    return Program(tuple(blocks))


def as_kind(kind: str | type[Op], op: Op, **other: Any) -> Op:
    """What an operator is as one of another kind (or of a class that stands for it until sequences are placed): the
    same axes, as far as that has them, but for those that are given."""
    cls = ops.get(kind) if isinstance(kind, str) else kind
    axes = {name: getattr(op, name) for name in ops.axes(cls) if hasattr(op, name)}
    return cls(**{**axes, **other})


def each(cls: type[T], made: Callable[[str, T], Iterable[Call]]) -> Rule:
    """A rule that puts other calls in the place of every operator of this class: what `made` makes of role and it."""
    return lambda calls: [new for c in calls for new in (made(c.role, c.op) if isinstance(c.op, cls) else [c])]


def retyped(kinds: Mapping[str, str]) -> Rule:
    """A rule that turns operators of some kinds into operators of others."""
    return lambda calls: [Call(c.role, as_kind(kinds[c.op.kind], c.op)) if c.op.kind in kinds else c for c in calls]


def merge_projections(calls: list[Call]) -> list[Call]:
    """Dense layers over the same input as one of their summed width. Those that are stored in different formats stay
    apart: one product cannot take both."""
    for merged, roles in MERGED.items():
        parts = [c.op for c in calls if c.role in roles and isinstance(c.op, Linear)]
        if len(parts) == len(roles) and len({replace(p, n=1) for p in parts}) == 1:
            wide = Call(merged, replace(parts[0], n=sum(p.n for p in parts)))
            calls = [wide if c.role == roles[0] else c for c in calls if c.role not in roles[1:]]
    return calls


def fuse_residual_norms(calls: list[Call]) -> list[Call]:
    """A residual addition and the norm beside it as one kernel; what scales a branch is part of its addition.

    The addition at a layer's end goes into the next layer's first norm, so within a block every `*_add` disappears and
    `attn_norm` and `mlp_norm` become fused ones. (The very first layer has no addition before it: one of many.) Where
    no norm comes before a branch, the one after it takes the addition that follows.
    """
    roles = [c.role for c in calls]
    norms = ("attn_norm", "mlp_norm")
    both_in_next = "attn_norm" in roles and roles[-2:] == ["attn_add", "mlp_add"]  # of parallel branches
    if "attn_post_norm" in roles and "attn_norm" not in roles:
        norms = ("attn_post_norm", "mlp_post_norm")
    elif not both_in_next and not ("attn_add" in roles and "mlp_norm" in roles[roles.index("attn_add") :]):
        return calls  # no addition precedes a norm
    kept = [c for c in calls if c.role not in IN_A_NORM]
    return [Call(c.role, as_kind(WITH_ADDITION[c.op.kind], c.op)) if c.role in norms else c for c in kept]


def fuse_head_norms(calls: list[Call]) -> list[Call]:
    """Norms of queries and keys and the rotation that follows them touch the same bytes: one kernel. It counts as the
    rotation where norms are of single heads, as the norms where they are over all heads."""
    roles = [c.role for c in calls]
    if "rope" not in roles or roles[: roles.index("rope")][-2:] != ["q_norm", "k_norm"]:
        return calls
    norm, rope = (cast(Elementwise, calls[roles.index(role)].op) for role in ("q_norm", "rope"))
    gone = ("rope",) if norm.rows == rope.rows else ("q_norm", "k_norm")
    return [c for c in calls if c.role not in gone]


def fuse_quantize(calls: list[Call]) -> list[Call]:
    """An fp8 rounding that follows a norm or a gated activation is part of its kernel: torch.compile makes one of both,
    and so do vLLM's own passes where scales cover groups. int8 and fp4 roundings stay kernels of their own."""
    out: list[Call] = []
    for c in calls:
        q, before = c.op, cast(Elementwise, out[-1].op if out else c.op)
        both = WITH_ROUNDING.get(before.kind)
        if both and isinstance(q, Quantize) and q.to == "fp8" and not q.per_tensor and before.cols == q.cols:
            out[-1] = Call(out[-1].role, as_kind(both, before, to=q.to, group=q.group))
        else:
            out.append(c)
    return out
