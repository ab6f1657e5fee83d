"""What single families launch under HF transformers where it is not what the others do, as read in their modules.

`tests/device/test_launches_against_hf.py` holds it against what torch is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator

from chip.engines.fuse import apply, as_kind
from chip.ops import composed
from chip.ops.alibi_attention import AlibiAttention
from chip.ops.attention import Attention
from chip.ops.composed import Composed
from chip.ops.float_attention import FloatAttention
from chip.ops.kv_append import KvAppend
from chip.ops.layer_norm import LayerNorm
from chip.ops.linear import Linear
from chip.ops.rms_norm import RmsNorm
from chip.ops.rope import Rope
from chip.ops.rope_join import RopeJoin
from chip.ops.scale import Scale
from chip.ops.silu_mul import SiluMul
from chip.ops.sink_attention import SinkAttention
from chip.records import replace
from chip.types import Call, Program

# Operators that this file brings in, and the activations that some models write out operator by operator.
DECOMPOSED = (*composed.KINDS, "rope_join", "silu_mul_halves", "gelu_fast", "gelu_new")
# Architectures that have no sdpa: each has an attention decomposed into torch operators.
WITHOUT_SDPA: dict[str, type[Composed]] = {
    "BloomForCausalLM": AlibiAttention,
    "GPTJForCausalLM": FloatAttention,
    "GptOssForCausalLM": SinkAttention,
}
BROADCAST = ("FalconForCausalLM",)  # whose heads share keys without telling torch so; those of groups are copied
# Small kernels of each layer that look angles up by position, or repeat each for the two values that it turns.
OF_ANGLES = {"GPTJForCausalLM": 8, "Glm4ForCausalLM": 2, "GlmForCausalLM": 2}
# Architectures that join the rotated part of each head with the rest of it.
JOINED = (
    "Glm4ForCausalLM", "Glm4MoeForCausalLM", "GlmForCausalLM", "GPTJForCausalLM", "GPTNeoXForCausalLM",
    "Phi3ForCausalLM", "PhiForCausalLM", "StableLmForCausalLM",
)  # fmt: skip
ADDING_ONE = (  # to the weight of each norm
    "GemmaForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration",
)  # fmt: skip
SCALED = ("OPTForCausalLM",)  # that multiply their queries before they attend
# Architectures that rotate in fp32, half as many bytes more, and how often they turn queries and keys to another type.
FLOAT_ROPE = {
    "OlmoForCausalLM": 1, "Olmo2ForCausalLM": 1, "Olmo3ForCausalLM": 1, "CohereForCausalLM": 2, "Cohere2ForCausalLM": 2,
}  # fmt: skip
FLOAT_NORM = ("OlmoForCausalLM",)  # that turn the input of each layer norm to fp32, and its result back
DECOMPOSED_NORM = ("CohereForCausalLM", "Cohere2ForCausalLM")  # that write layer norms out as many operators, in fp32


def rewrite(program: Program, architecture: str) -> Program:
    """The program with the family's rewrites: of attention, rotations, queries and merged gates."""
    return apply(program, lambda calls: (new for c in calls for new in _rewritten(c, calls, architecture)))


def _rewritten(call: Call, calls: list[Call], architecture: str) -> Iterator[Call]:
    op = call.op
    if isinstance(op, Attention) and architecture in WITHOUT_SDPA:
        yield Call(call.role, as_kind(WITHOUT_SDPA[architecture], op))
    elif isinstance(op, Attention) and architecture in BROADCAST and op.kv_heads < op.heads:
        yield Call(call.role, replace(op, kv_heads=op.heads) if op.kv_heads > 1 else as_kind("broadcast_attention", op))
    elif isinstance(op, Rope) and architecture in FLOAT_ROPE:
        yield Call(call.role, replace(op, heads=3 * op.heads // 2))
        turned = Scale(op.rows, op.heads * op.head_dim // 2, op.dtype)  # queries, or keys
        yield from [Call(f"{of}_cast", turned) for of in "qk" * FLOAT_ROPE[architecture]]
    elif isinstance(op, LayerNorm) and architecture in FLOAT_NORM:
        turned = Scale(op.rows, op.cols, op.dtype)
        yield from (Call("norm_cast", turned), call, Call("norm_cast", turned))
    elif isinstance(op, LayerNorm) and architecture in DECOMPOSED_NORM:  # as an RMSNorm after the mean was taken off
        yield from [Call("norm_mean", Scale(op.rows, op.cols, "fp32"))] * 3
        yield Call(call.role, RmsNorm(op.rows, op.cols, op.dtype))
    elif isinstance(op, SiluMul) and call.role.removesuffix("act") + "gate_up_proj" in [c.role for c in calls]:
        yield Call(call.role, as_kind("silu_mul_halves", op))
    else:
        yield call
    if isinstance(op, Rope) and architecture in JOINED:
        yield Call("rope_join", RopeJoin(op.rows, op.heads * _attention(calls).head_dim, op.dtype))
    if isinstance(op, Rope):
        yield from [Call("position", Scale(op.rows, op.head_dim, op.dtype))] * OF_ANGLES.get(architecture, 0)
    if isinstance(op, Linear) and call.role == "qkv_proj" and architecture in BROADCAST:
        a = _attention(calls)
        if a.kv_heads < a.heads:  # keys and values are taken by an index, which each layer copies to the GPU
            yield from [Call("kv_index", Scale(op.m, a.kv_heads * a.head_dim, op.dtype))] * 4
    if isinstance(op, RmsNorm) and architecture in ADDING_ONE:
        yield Call("norm_weight", as_kind("norm_weight", op))
    if isinstance(op, Linear) and call.role == "q_proj" and architecture in SCALED:
        yield Call("q_scale", Scale(op.m, op.n, op.dtype))


def _attention(calls: list[Call]) -> Attention:
    return next(c.op for c in calls if isinstance(c.op, Attention))


def join_cache(calls: list[Call]) -> Iterator[Call]:
    """A decode step over a cache that grows: joining the new token to the cache is part of the attention operator, but
    stands apart where the family's attention is decomposed."""
    joins = [as_kind("kv_join", c.op) for c in calls if isinstance(c.op, Composed)]
    for c in calls:
        yield from [Call(c.role, join) for join in joins] if isinstance(c.op, KvAppend) else [c]
