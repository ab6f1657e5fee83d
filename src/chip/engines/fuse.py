"""Rules that engines share. A rule takes the calls of a block and returns those that the engine launches instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar, cast

from chip import ops
from chip.decoders import roles
from chip.ops.elementwise import Elementwise
from chip.ops.linear import Linear
from chip.ops.quantised import Quantize
from chip.types import Block, Call, Op, Program

T = TypeVar("T", bound=Op)
Rule = Callable[[list[Call]], Iterable[Call]]
MERGED = {  # dense layers over the same input, by the role that they have as one
    roles.QKV_PROJ: (roles.Q_PROJ, roles.K_PROJ, roles.V_PROJ),
    roles.GATE_UP_PROJ: (roles.GATE_PROJ, roles.UP_PROJ),
    roles.SHARED + roles.GATE_UP_PROJ: (roles.SHARED + roles.GATE_PROJ, roles.SHARED + roles.UP_PROJ),
}
WITH_ADDITION = {"rms_norm": "add_rms_norm", "layer_norm": "add_layer_norm"}
WITH_ROUNDING = {"rms_norm": "rms_norm_quant", "add_rms_norm": "add_rms_norm_quant", "silu_mul": "silu_mul_quant"}
ADD_AND_NORM = ("add_rms_norm", "add_rms_norm_quant")
IN_A_NORM = (roles.ATTN_ADD, roles.MLP_ADD, roles.ATTN_SCALE, roles.MLP_SCALE)  # go into the norm beside them


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
    """The operator as one of another kind, or of a class that stands for a kind until sequences are placed. It keeps
    its axes, as far as the other kind has them; `other` sets axes anew."""
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
    """Dense layers over the same input are one, as wide as all of them. Layers that are stored in different formats
    stay apart: one product cannot take both."""
    for merged, apart in MERGED.items():
        parts = [c.op for c in calls if c.role in apart and isinstance(c.op, Linear)]
        if len(parts) == len(apart) and len({replace(p, n=1) for p in parts}) == 1:
            wide = Call(merged, replace(parts[0], n=sum(p.n for p in parts)))
            calls = [wide if c.role == apart[0] else c for c in calls if c.role not in apart[1:]]
    return calls


def fuse_residual_norms(calls: list[Call]) -> list[Call]:
    """A residual addition and the norm beside it are one kernel. A factor of a branch is part of its addition.

    The addition at a layer's end goes into the next layer's first norm: every `*_add` of a block disappears, and its
    `attn_norm` and `mlp_norm` become fused ones. (The first layer of all has no addition before it; that is neglected.)
    Where no norm comes before a branch, the norm after it takes the addition that follows.
    """
    present = [c.role for c in calls]
    if roles.ATTN_ADD not in present or roles.MLP_ALL_REDUCE in present[present.index(roles.ATTN_ADD) + 1 :][:1]:
        return calls  # no layer, or one whose GPUs exchange the sum of its parallel branches
    before, after = (roles.ATTN_NORM, roles.MLP_NORM), (roles.ATTN_POST_NORM, roles.MLP_POST_NORM)
    norms = before if roles.ATTN_NORM in present else after
    kept = [c for c in calls if c.role not in IN_A_NORM]
    return [Call(c.role, as_kind(WITH_ADDITION[c.op.kind], c.op)) if c.role in norms else c for c in kept]


def fuse_head_norms(calls: list[Call]) -> list[Call]:
    """Norms of queries and keys and the rotation behind them move the same bytes: they are one kernel. It counts as the
    rotation where each head has a norm of its own, and as the norms where they are over all heads."""
    present = [c.role for c in calls]
    if roles.ROPE not in present or present[: present.index(roles.ROPE)][-2:] != [roles.Q_NORM, roles.K_NORM]:
        return calls
    norm, rope = (cast(Elementwise, calls[present.index(role)].op) for role in (roles.Q_NORM, roles.ROPE))
    gone = (roles.ROPE,) if norm.rows == rope.rows else (roles.Q_NORM, roles.K_NORM)
    return [c for c in calls if c.role not in gone]


def fuse_quantize(calls: list[Call]) -> list[Call]:
    """An fp8 rounding that follows a norm or a gated activation is part of its kernel: torch.compile fuses both, and so
    do vLLM's own passes where scales cover groups. int8 and fp4 roundings stay kernels of their own."""
    out: list[Call] = []
    for c in calls:
        q, both = c.op, WITH_ROUNDING.get(out[-1].op.kind) if out else None
        if both and isinstance(q, Quantize) and q.to == "fp8" and not q.per_tensor:
            out[-1] = Call(out[-1].role, as_kind(both, out[-1].op, to=q.to, group=q.group))
        else:
            out.append(c)
    return out


def norm_with_reduce(calls: list[Call]) -> list[Call]:
    """Norms that add to the residual stream, inside the kernel that sums it over GPUs: beside the exchange they take
    next to nothing."""
    sums = any(c.op.kind == "all_reduce" for c in calls)
    return [c for c in calls if not (sums and c.op.kind in ADD_AND_NORM)]
