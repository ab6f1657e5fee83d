"""What HF transformers' modules launch for a model, kernel by kernel: shared by the engines that run them.

Most of torch's kernels are small: a norm, a rotation or a router is several of them, one after another. Beside what all
families have in common stands what single families do otherwise, as read in their modules.
`tests/device/test_launches_against_hf.py` compares the kernels with those that torch is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from chip.decoders import roles
from chip.engines.fuse import apply, as_kind, each, retyped
from chip.ops import composed
from chip.ops.attention import Attention
from chip.ops.composed import AlibiAttention, Composed, FloatAttention, SinkAttention
from chip.ops.elementwise import LayerNorm, RmsNorm, Scale, SiluMul
from chip.ops.linear import Linear
from chip.ops.moves import KvAppend, Rope, RopeJoin
from chip.types import Block, Call, Op, Program

COMPOSED = {  # operators that are several kernels of torch
    "rms_norm": "rms_norm_composed",
    "rope": "rope_composed",
    **dict.fromkeys(("moe_router", "grouped_router", "biased_router"), "moe_router_composed"),
    **dict.fromkeys(("moe_experts", "packed_experts", "scaled_experts"), "moe_experts_composed"),
}
# Which measurements stand for each operator. The attention of a prompt is each engine's own.
RUNS_AS = {
    **dict.fromkeys(
        (
            "linear", "add", "gelu", "silu", "silu_mul", "softmax", "embedding", "kv_append", "sampling",
            "rope_composed", "rotary_table", "masked_attention", "moe_experts_composed",
            "moe_router_composed", *composed.KINDS, "rope_join", "silu_mul_halves", "gelu_fast", "gelu_new",
        ),
        "torch",
    ),
    # what a norm reads was just written, its weight and its code come from memory
    **dict.fromkeys(
        ("rms_norm_composed", "rms_norm_fp32", "rms_norm_plus_one", "layer_norm_composed", "layer_norm"), "torch layer"
    ),
    "growing_attention": "flash",
}  # fmt: skip
KERNELS = {"silu_mul": 2, "kv_append": 2}

# From here on by architecture: what single families do. Those without sdpa write attention out in torch operators.
WITHOUT_SDPA: dict[str, type[Composed]] = {
    "BloomForCausalLM": AlibiAttention,
    "GPTJForCausalLM": FloatAttention,
    "GptOssForCausalLM": SinkAttention,
}
# Torch is not told that heads share keys: one key head is broadcast to all heads, those of several groups are copied.
BROADCAST = ("FalconForCausalLM",)
# Small kernels in each layer that look angles up by position, or repeat each for the two values that it turns.
OF_ANGLES = {"GPTJForCausalLM": 8, "Glm4ForCausalLM": 2, "GlmForCausalLM": 2}
# The rotated part of each head is joined with the rest of it.
JOINED = (
    "Glm4ForCausalLM", "Glm4MoeForCausalLM", "GlmForCausalLM", "GPTJForCausalLM", "GPTNeoXForCausalLM",
    "Phi3ForCausalLM", "PhiForCausalLM", "StableLmForCausalLM",
)  # fmt: skip
NORMS = {  # that are other kernels than those of most families
    **dict.fromkeys(("CohereForCausalLM", "Cohere2ForCausalLM"), "layer_norm_composed"),
    **dict.fromkeys(
        ("GemmaForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
        "rms_norm_plus_one",
    ),
    **dict.fromkeys(("GptOssForCausalLM", "Olmo2ForCausalLM", "Olmo3ForCausalLM"), "rms_norm_fp32"),
}
SCALED = ("OPTForCausalLM",)  # queries are multiplied by a factor before they attend
# Rotations are in fp32, which moves half as many bytes more. The number: how many casts queries and keys have each.
FLOAT_ROPE = {
    "OlmoForCausalLM": 1, "Olmo2ForCausalLM": 1, "Olmo3ForCausalLM": 1, "CohereForCausalLM": 2, "Cohere2ForCausalLM": 2,
}  # fmt: skip
FLOAT_NORM = ("OlmoForCausalLM",)  # the input of each layer norm is turned to fp32, and its result back


def decompose(program: Program, attention: Callable[[Attention], Op], architecture: str) -> Program:
    """What HF's modules launch of a program. `attention`: the engine's own, for families without one of theirs."""

    def attending(role: str, op: Attention) -> list[Call]:
        return [Call(role, op if isinstance(op, Composed) else attention(op))]

    def of_family(calls: list[Call]) -> Iterator[Call]:
        for c in calls:
            yield from _instead(c, calls, architecture)
            yield from _after(c, calls, architecture)

    first, *rest = apply(program, of_family, each(Attention, attending), retyped(COMPOSED)).blocks
    rope = next((c.op for b in program.blocks for c in b.calls if isinstance(c.op, Rope)), None)
    if rope:  # angles are computed once a step, after the embedding
        table = Call("rotary", as_kind("rotary_table", rope, cols=rope.head_dim))
        first = Block(first.repeat, (*first.calls, table))
    return Program((first, *rest))


def _instead(call: Call, calls: list[Call], architecture: str) -> Iterator[Call]:
    """What the family launches in the place of a call: of attention, rotations, norms and merged gates."""
    role, op = call.role, call.op
    if isinstance(op, Attention) and architecture in WITHOUT_SDPA:
        yield Call(role, as_kind(WITHOUT_SDPA[architecture], op))
    elif isinstance(op, Attention) and architecture in BROADCAST and op.kv_heads < op.heads:
        yield Call(role, replace(op, kv_heads=op.heads) if op.kv_heads > 1 else as_kind("broadcast_attention", op))
    elif isinstance(op, Rope) and architecture in FLOAT_ROPE:
        yield Call(role, replace(op, heads=3 * op.heads // 2))
        turned = Scale(op.rows, op.heads * op.head_dim // 2, op.dtype)  # queries, or keys
        yield from [Call(f"{of}_cast", turned) for of in "qk" * FLOAT_ROPE[architecture]]
    elif isinstance(op, LayerNorm) and architecture in FLOAT_NORM:
        turned = Scale(op.rows, op.cols, op.dtype)
        yield from (Call("norm_cast", turned), call, Call("norm_cast", turned))
    elif isinstance(op, (RmsNorm, LayerNorm)) and architecture in NORMS:
        yield Call(role, as_kind(NORMS[architecture], op))
    elif isinstance(op, SiluMul) and role.removesuffix(roles.ACT) + roles.GATE_UP_PROJ in [c.role for c in calls]:
        yield Call(role, as_kind("silu_mul_halves", op))
    else:
        yield call


def _after(call: Call, calls: list[Call], architecture: str) -> Iterator[Call]:
    """Small kernels that the family launches behind a call."""
    op, a = call.op, next((c.op for c in calls if isinstance(c.op, Attention)), None)
    if isinstance(op, Rope):
        if a and architecture in JOINED:
            yield Call("rope_join", RopeJoin(op.rows, op.heads * a.head_dim, op.dtype))
        yield from [Call("position", Scale(op.rows, op.head_dim, op.dtype))] * OF_ANGLES.get(architecture, 0)
    elif isinstance(op, Linear):
        if call.role == roles.Q_PROJ and architecture in SCALED:
            yield Call("q_scale", Scale(op.m, op.n, op.dtype))
        if call.role == roles.QKV_PROJ and architecture in BROADCAST and a and a.kv_heads < a.heads:
            # keys and values are taken by an index, which each layer copies to the GPU
            yield from [Call("kv_index", Scale(op.m, a.kv_heads * a.head_dim, op.dtype))] * 4


def join_cache(calls: list[Call]) -> Iterator[Call]:
    """Joins a decode step's new token to a cache that grows. This is part of most attention operators; it stands apart
    where a family's attention is several torch operators."""
    joins = [as_kind("kv_join", c.op) for c in calls if isinstance(c.op, Composed)]
    for c in calls:
        yield from [Call(c.role, join) for join in joins] if isinstance(c.op, KvAppend) else [c]
