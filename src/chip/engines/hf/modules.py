"""What HF's modules launch for an operator: norms, rotations, routers and experts as many kernels of torch, one after
another."""

from __future__ import annotations

from collections.abc import Callable

from chip.engines.hf import families
from chip.ops.composed import Composed
from chip.ops.moe_experts import MoeExperts
from chip.ops.moe_experts_composed import MoeExpertsComposed
from chip.ops.moe_router import MoeRouter
from chip.ops.moe_router_composed import MoeRouterComposed
from chip.ops.rms_norm import RmsNorm
from chip.ops.rms_norm_composed import RmsNormComposed
from chip.ops.rope import Rope
from chip.ops.rope_composed import RopeComposed
from chip.ops.rotary_table import RotaryTable
from chip.types import Block, Call, Op, Program

# Which measurements stand for what it runs. Attention is each engine's own.
RUNS_AS = {
    **dict.fromkeys(
        (
            "linear", "layer_norm", "add", "gelu", "silu", "silu_mul", "softmax", "embedding", "kv_append", "sampling",
            "rms_norm_composed", "rope_composed", "rotary_table", "masked_attention", "moe_experts_composed",
            "moe_router_composed", *families.DECOMPOSED,
        ),
        "torch",
    ),
    "growing_attention": "flash",
}  # fmt: skip


KERNELS = {"silu_mul": 2, "kv_append": 2}


def decompose(program: Program, attention: Callable[[Op], Op], architecture: str) -> Program:
    """As HF runs it: norms, rotations and experts decomposed, the engine's attention, the family's rewrites."""
    rewritten = families.rewrite(program, architecture)
    blocks = [
        Block(b.repeat, tuple(Call(c.role, _decomposed(c.op, attention)) for c in b.calls)) for b in rewritten.blocks
    ]
    rope = next((c.op for b in program.blocks for c in b.calls if isinstance(c.op, Rope)), None)
    if rope is not None:  # angles are computed once a step, after the embedding
        first, *rest = blocks
        table = Call("rotary", RotaryTable(rope.rows, rope.head_dim, rope.dtype))
        blocks = [Block(first.repeat, (*first.calls, table)), *rest]
    return Program(tuple(blocks))


def _decomposed(op: Op, attention: Callable[[Op], Op]) -> Op:
    if isinstance(op, RmsNorm):
        return RmsNormComposed(op.rows, op.cols, op.dtype)
    if isinstance(op, Rope):
        return RopeComposed(op.rows, op.heads, op.head_dim, op.dtype)
    if isinstance(op, MoeRouter):
        return MoeRouterComposed(op.tokens, op.hidden, op.experts, op.top_k, op.dtype)
    if isinstance(op, MoeExperts):
        sizes = (op.tokens, op.hidden, op.intermediate, op.experts, op.top_k)
        return MoeExpertsComposed(*sizes, op.gated, op.dtype, op.weight_dtype)
    return op if isinstance(op, Composed) else attention(op)
