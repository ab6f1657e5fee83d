"""What vLLM launches of a program: merged projections, fused norms, rotations of queries and keys apart.

torch.compile does the fusing. A model class that does not ask for it (`@support_torch_compile` in vLLM 0.26) runs its
norms, rotations and activations kernel by kernel, as PyTorch spells them.
"""

from __future__ import annotations

from functools import partial

from chip.engines.fuse import apply, fuse_gelu, fuse_head_norms, fuse_quantize, fuse_residual_norms, merge_linears
from chip.engines.hf import modules
from chip.ops.add import Add
from chip.ops.attention import Attention
from chip.ops.bmm import Bmm
from chip.ops.kv_append import KvAppend
from chip.ops.linear import Linear
from chip.ops.local_attention import LocalAttention
from chip.ops.mla import Mla
from chip.ops.mla_prompt import MlaPrompt
from chip.ops.moe_router import MoeRouter
from chip.ops.packed_experts import PackedExperts
from chip.ops.rope import Rope
from chip.ops.rope_composed import RopeComposed
from chip.ops.rope_join import RopeJoin
from chip.ops.scale import Scale
from chip.records import replace
from chip.types import Call, Op, Program


def rotate_apart(calls: list[Call]) -> list[Call]:
    """torch.compile makes one kernel of the rotation of queries and one of that of keys; one of both where they are
    alike in number. It writes whole heads, also where only a part of each is rotated."""
    attention = next((c.op for c in calls if isinstance(c.op, Attention)), None)
    if attention is None or any(c.role == "kv_up" for c in calls):
        return calls
    out = []
    for c in calls:
        if not isinstance(c.op, Rope):
            out.append(c)
        elif attention.heads == attention.kv_heads:
            out.append(Call(c.role, replace(c.op, head_dim=attention.head_dim)))
        else:
            sizes = {"q_rope": attention.heads, "k_rope": attention.kv_heads}
            out += [Call(r, replace(c.op, heads=n, head_dim=attention.head_dim)) for r, n in sizes.items()]
    return out


# Architectures whose branches are added to the residual by plain sums: torch.compile lets so many of the products
# before them add to a copy of the other summand. (Traces of Command-R7B show it; of the others only code.)
ADDING_PRODUCTS = {"CohereForCausalLM": 2, "Cohere2ForCausalLM": 2, "FalconForCausalLM": 1, "GPTJForCausalLM": 1}


def _added_by_products(calls: list[Call], count: int) -> list[Call]:
    if not count or [c.role for c in calls[-2:]] != ["attn_add", "mlp_add"]:
        return calls
    add = calls[-1].op
    assert isinstance(add, Add)
    copies = [Call("residual_copy", Scale(add.rows, add.cols, add.dtype))] * count
    return [*(calls[:-2] if count == 2 else fuse_residual_norms(calls)), *copies]


def _choice_inside(calls: list[Call]) -> list[Call]:
    """Triton's kernels for experts in mxfp4 choose them, too: the router is a product alone. (Those of GPUs other than
    Hopper do not: a few microseconds a layer are missing there.)"""
    if not any(isinstance(c.op, PackedExperts) and c.op.weight_dtype == "fp4" for c in calls):
        return calls
    return [
        Call(c.role, Linear(c.op.tokens, c.op.experts, c.op.hidden, c.op.dtype, c.op.dtype))
        if isinstance(c.op, MoeRouter)
        else c
        for c in calls
    ]


UNCOMPILED = ("StableLmForCausalLM",)  # of the architectures here
HALVES, WHOLE = ("q_halves", "k_halves"), ("q_join", "k_join")  # roles of what is joined; such a model is known by them
MERGES = (
    merge_linears(("q_proj", "k_proj", "v_proj"), "qkv_proj"),
    merge_linears(("gate_proj", "up_proj"), "gate_up_proj"),
    merge_linears(("shared_gate_proj", "shared_up_proj"), "shared_gate_up_proj"),
)
RULES = (
    *MERGES,
    fuse_residual_norms,
    fuse_quantize,
    fuse_head_norms,
    rotate_apart,
    fuse_gelu,
    _choice_inside,
)


def rewrite(program: Program, decode: bool, architecture: str = "") -> Program:
    if architecture in UNCOMPILED:
        return apply(modules.decompose(apply(program, *MERGES), lambda op: op, architecture), _joined)
    added = partial(_added_by_products, count=ADDING_PRODUCTS.get(architecture, 0))
    return apply(program, added, *RULES, *((_absorb, _local) if decode else (_expand,)))


def _local(calls: list[Call]) -> list[Call]:
    """A step of single tokens is a graph, whose attention under a window is of another kernel."""
    return [Call(c.role, LocalAttention.of(c.op)) if type(c.op) is Attention and c.op.window else c for c in calls]


def _joined(calls: list[Call]) -> list[Call]:
    """Halves of heads are rotated each by itself, then joined, and joined with what is not rotated: plain copies, since
    tokens come before heads."""
    out = []
    for c in calls:
        if not isinstance(c.op, RopeJoin):
            out.append(c)
        if isinstance(c.op, (RopeComposed, RopeJoin)):
            cols = c.op.cols if isinstance(c.op, RopeJoin) else c.op.heads * c.op.head_dim
            each = Scale(c.op.rows, cols // 2, c.op.dtype)
            out += [Call(role, each) for role in (WHOLE if isinstance(c.op, RopeJoin) else HALVES)]
    return out


def _latent(calls: list[Call]) -> tuple[Linear, Attention, int] | None:
    """The up-projection, the attention and the rotated part of a key, where the cache is a latent."""
    up = next((c.op for c in calls if c.role == "kv_up"), None)
    old = next((c.op for c in calls if c.role == "attention"), None)
    if not isinstance(up, Linear) or not isinstance(old, Attention):
        return None
    return up, old, old.head_dim - (up.n // old.heads - old.v_head_dim)


def _expand(calls: list[Call]) -> list[Call]:
    """Prompts over a latent cache. (Short ones absorb the up-projection instead: as many products, as one here.)"""
    found = _latent(calls)
    if found is None:
        return calls
    up, old, rope_dim = found
    heads = (old.heads, old.kv_heads, old.head_dim)
    attention = MlaPrompt(1, *heads, 1, 1, True, 0, old.v_head_dim, old.dtype, up.k, rope_dim)
    made: dict[str, Op] = {"attention": attention, "kv_append": KvAppend(up.m, up.k + rope_dim, old.dtype)}
    return [Call(c.role, made.get(c.role, c.op)) for c in calls]


def _absorb(calls: list[Call]) -> list[Call]:
    """Decode over a latent cache: the up-projection of keys and values moves into queries and outputs."""
    found = _latent(calls)
    if found is None:
        return calls
    up, old, rope_dim = found
    nope_dim = old.head_dim - rope_dim
    out = []
    for c in calls:
        if c.role == "kv_up":
            continue
        if c.role == "attention":
            out.append(Call("q_absorb", Bmm(old.heads, up.m, up.k, nope_dim, old.dtype)))
            out.append(Call("attention", Mla(1, old.heads, 1, up.k + rope_dim, 1, 1, True, 0, up.k, old.dtype)))
            out.append(Call("v_absorb", Bmm(old.heads, up.m, old.v_head_dim, up.k, old.dtype)))
        elif c.role == "kv_append":
            out.append(Call(c.role, KvAppend(up.m, up.k + rope_dim, old.dtype)))
        else:
            out.append(c)
    return out
