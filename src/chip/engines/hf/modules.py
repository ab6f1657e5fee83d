"""What HF's modules launch for an operator: norms, rotations, routers and experts as many kernels of torch, one after
another."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from chip.engines.fuse import apply, as_kind, turned
from chip.engines.hf import families
from chip.ops.attention import Attention
from chip.ops.composed import Composed
from chip.ops.rope import Rope
from chip.types import Block, Call, Op, Program

COMPOSED = {
    "rms_norm": "rms_norm_composed",
    "rope": "rope_composed",
    **dict.fromkeys(("moe_router", "grouped_router", "biased_router"), "moe_router_composed"),
    **dict.fromkeys(("moe_experts", "packed_experts", "scaled_experts"), "moe_experts_composed"),
}
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


def decompose(program: Program, attention: Callable[[Attention], Op], architecture: str) -> Program:
    """As HF runs it: norms, rotations and experts decomposed, the engine's attention, the family's rewrites."""

    def decomposed(calls: list[Call]) -> Iterator[Call]:
        for c in calls:
            if isinstance(c.op, Attention) and not isinstance(c.op, Composed):
                yield Call(c.role, attention(c.op))
            else:
                yield turned(c, COMPOSED)

    rope = next((c.op for b in program.blocks for c in b.calls if isinstance(c.op, Rope)), None)
    rewritten = apply(families.rewrite(program, architecture), decomposed)
    if rope is None:
        return rewritten
    first, *rest = rewritten.blocks  # angles are computed once a step, after the embedding
    table = Call("rotary", as_kind("rotary_table", rope, cols=rope.head_dim))
    return Program((Block(first.repeat, (*first.calls, table)), *rest))
