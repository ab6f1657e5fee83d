"""What vLLM launches of a program: merged projections, fused norms, rotations of queries and keys apart.

torch.compile does the fusing. A model class that does not ask for it (`@support_torch_compile` in vLLM 0.26) runs its
norms, rotations and activations as PyTorch does, kernel by kernel.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from chip.decoders import roles
from chip.decoders.lower import as_steps
from chip.engines import fuse, hf
from chip.engines.fuse import apply, as_kind, each
from chip.ops.attention import Attention
from chip.ops.elementwise import Elementwise, Scale, SiluMul
from chip.ops.experts import PackedExperts
from chip.ops.latent import Mla
from chip.ops.linear import Bmm, Linear
from chip.ops.moves import KvAppend, Rope, RopeComposed, RopeJoin
from chip.ops.routers import MoeRouter
from chip.types import Call, Program

# Architectures that add their branches to the residual by plain sums. torch.compile lets so many of the products before
# a sum add to a copy of the other summand. (Seen in traces of Command-R7B; for the others only in code.)
ADDING_PRODUCTS = {"CohereForCausalLM": 2, "Cohere2ForCausalLM": 2, "FalconForCausalLM": 1, "GPTJForCausalLM": 1}
UNCOMPILED = ("StableLmForCausalLM",)  # model classes that do not ask for torch.compile
FLOAT_ROUTER = ("Glm4MoeForCausalLM",)  # whose gate is an fp32 `nn.Linear` over its input turned to fp32
HALVES = ("q_halves", "k_halves")  # roles of copies that only a model which is not compiled has


def rewrite(program: Program, decode: bool, architecture: str = "") -> Program:
    if architecture in UNCOMPILED:
        small = hf.decompose(apply(program, fuse.merge_projections), lambda op: op, architecture)
        return apply(small, each(RopeComposed, _halves), each(RopeJoin, _joined))
    return apply(
        program,
        partial(_added_by_products, count=ADDING_PRODUCTS.get(architecture, 0)),
        fuse.merge_projections,
        fuse.fuse_residual_norms,
        fuse.fuse_quantize,
        fuse.fuse_head_norms,
        each(SiluMul, _activation),
        _rotated_apart,
        fuse.retyped({"gelu_fast": "gelu", "gelu_new": "gelu"}),  # which HF writes out
        _choice_inside,
        *([each(MoeRouter, _float_router)] if architecture in FLOAT_ROUTER else []),
        partial(_over_latent, decode=decode),
        *([_local, as_steps] if decode else []),
    )


def _activation(role: str, op: Elementwise) -> list[Call]:
    """Shared experts run inside an operator of vLLM's own, so that their activation is compiled by itself."""
    return [Call(role, as_kind("shared_silu_mul", op) if role == roles.SHARED + roles.ACT else op)]


def _rotated_apart(calls: list[Call]) -> Iterable[Call]:
    """torch.compile rotates queries and keys in a kernel each, or in one where they have as many heads. It writes whole
    heads, also where only a part of each is rotated. A latent cache keeps the rotated part by itself."""
    a = next((c.op for c in calls if c.role == roles.ATTENTION and isinstance(c.op, Attention)), None)
    if a is None or isinstance(a, Mla) or any(c.role == roles.KV_UP for c in calls):
        return calls
    dim, apart = a.head_dim, {"q_rope": a.heads, "k_rope": a.kv_heads}
    shared = not any(c.role == roles.KV_APPEND for c in calls)  # keys are those of an earlier layer
    heads = {"rope": a.heads} if shared else apart if a.heads > a.kv_heads else {"rope": 2 * a.heads}
    return each(Rope, lambda _, r: [Call(role, Rope(r.rows, n, dim, r.dtype)) for role, n in heads.items()])(calls)


def _added_by_products(calls: list[Call], count: int) -> list[Call]:
    if not count or [c.role for c in calls[-2:]] != [roles.ATTN_ADD, roles.MLP_ADD]:
        return calls
    copies = [Call("residual_copy", as_kind("scale", calls[-1].op))] * count
    return [*(calls[:-2] if count == 2 else fuse.fuse_residual_norms(calls)), *copies]


def _choice_inside(calls: list[Call]) -> Iterable[Call]:
    """Triton's kernels for mxfp4 experts also choose the experts: their router is a product alone. (Kernels of GPUs
    other than Hopper do not choose: a few microseconds a layer are missing there.)"""
    if not any(isinstance(c.op, PackedExperts) and c.op.weight_dtype == "fp4" for c in calls):
        return calls
    return each(MoeRouter, lambda role, r: [Call(role, Linear(r.tokens, r.experts, r.hidden, r.dtype, r.dtype))])(calls)


def _float_router(role: str, r: MoeRouter) -> list[Call]:
    return [Call("router_cast", Scale(r.tokens, r.hidden, r.dtype)), Call(role, replace(r, dtype="fp32"))]


def _local(calls: list[Call]) -> list[Call]:
    """Attention under a window is another kernel in the graph of a decode step."""
    return [
        Call(c.role, as_kind("local_attention", c.op)) if type(c.op) is Attention and c.op.window else c for c in calls
    ]


def _halves(role: str, r: RopeComposed) -> list[Call]:
    """Halves of heads are rotated each by itself, then joined: plain copies, since tokens come before heads."""
    return [Call(role, r), *[Call(of, Scale(r.rows, r.cols // 2, r.dtype)) for of in HALVES]]


def _joined(role: str, r: Elementwise) -> list[Call]:
    """What was rotated is joined with what is not: the same copies, of queries and of keys."""
    return [Call(of, Scale(r.rows, r.cols // 2, r.dtype)) for of in ("q_join", "k_join")]


def _over_latent(calls: list[Call], decode: bool) -> list[Call]:
    """Attention over a latent cache. In a decode step the up-projection of keys and values moves into queries and
    outputs (it is absorbed). Prompts expand the latent. (Short prompts absorb, too; that is one product here.)"""
    found = {c.role: c.op for c in calls}
    up, a = found.get(roles.KV_UP), found.get(roles.ATTENTION)
    if not isinstance(up, Linear) or not isinstance(a, Attention):
        return calls
    latent, nope_dim = up.k, up.n // a.heads - a.v_head_dim
    rope_dim = a.head_dim - nope_dim
    made = {roles.KV_APPEND: [Call(roles.KV_APPEND, KvAppend(up.m, latent + rope_dim, a.dtype))]}
    if decode or a.window:  # keys that an indexer chose are read as they are cached, by prompts too
        made[roles.KV_UP] = []
        made[roles.ATTENTION] = [
            Call("q_absorb", Bmm(a.heads, up.m, latent, nope_dim, a.dtype)),
            Call(roles.ATTENTION, as_kind("mla", a, kv_heads=1, head_dim=latent + rope_dim, v_head_dim=latent)),
            Call("v_absorb", Bmm(a.heads, up.m, a.v_head_dim, latent, a.dtype)),
        ]
    else:
        made[roles.ATTENTION] = [Call(roles.ATTENTION, as_kind("mla_prompt", a, latent=latent, rope_dim=rope_dim))]
    return [new for c in calls for new in made.get(c.role, [c])]
