"""From a `Decoder` and a step to the canonical program: the operators HF's modules run, before any engine's fusions.

All operators up to the last norm but attention depend only on how many tokens a step has, those after it only on how
many rows of logits. `body` and `head` lower these, with attention as a placeholder; `place` puts the sequences in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from chip import ops
from chip.decoders import roles
from chip.decoders.compressed import CompressedAttn
from chip.decoders.decoder import Attn, Decoder, LatentAttn, Layer, Mlp, Moe
from chip.decoders.extras import Extra
from chip.decoders.formats import WeightFormat
from chip.decoders.states import CHUNKS, NO_MIXER, StateMixer
from chip.dtypes import Precision
from chip.ops.attention import Attention
from chip.ops.attention_variants import ChunkedAttention, Fp8Attention, Fp8CacheAttention
from chip.ops.collectives import AllGather, AllReduce, ReduceScatter
from chip.ops.elementwise import (
    Add,
    Elementwise,
    LayerNorm,
    RmsNorm,
    Scale,
    SiluMul,
    Softcap,
)
from chip.ops.experts import MoeExperts, PackedExperts, ScaledExperts
from chip.ops.latent import CompressedAttention, IndexedEntries
from chip.ops.linear import Linear
from chip.ops.moves import Embedding, KvAppend, KvAppendFp8, Rope, Sampling
from chip.ops.quantised import PackedLinear, Quantize, ScaledLinear
from chip.ops.routers import BiasedRouter, GroupedRouter, MoeRouter
from chip.ops.states import CausalConv, CausalConvStep, StateScan, StateStep
from chip.types import Block, Call, ChipError, Op, Program, Seq, Step

ROUTERS = {"grouped_router": GroupedRouter, "biased_router": BiasedRouter}  # of experts in groups
NORMS: dict[str, type[Elementwise]] = {"layer_norm": LayerNorm, "rms_norm": RmsNorm}
WHOLE = (roles.Q_DOWN, roles.KV_DOWN, "index_q", "index_k", "index_weights")  # matrices that every GPU has whole


def lower(d: Decoder, step: Step, p: Precision, tp: int = 1, all_logits: bool = False) -> Program:
    """The canonical program of one step. `all_logits` computes logits of every new token, as a bare HF forward does."""
    rows = step.tokens if all_logits else step.rows
    program = Program((*body(d, step.tokens, p, tp).blocks, *head(d, rows, p, tp).blocks))
    return place(program, step.seqs)


def place(program: Program, seqs: tuple[Seq, ...]) -> Program:
    """Put a step's sequences where the body has a placeholder."""
    return Program(
        tuple(
            Block(b.repeat, tuple(new for c in b.calls for new in (attend(c, seqs) if c.op.OF_SEQUENCES else (c,))))
            for b in program.blocks
        )
    )


def attend(call: Call, seqs: tuple[Seq, ...]) -> tuple[Call, ...]:
    return tuple(Call(call.role, call.op.over(s)) for s in seqs)


def body(d: Decoder, tokens: int, p: Precision, tp: int, ep: int = 1) -> Program:
    """Embedding, layers and last norm of a step of so many tokens. `ep`: GPUs that the experts lie on, a multiple of
    `tp`; the tokens are those of one of its ep / tp replicas of the attention."""
    blocks = [Block(1, tuple(_embed(d, tokens, p)))]
    blocks += [Block(n, tuple(_layer(d, layer, tokens, p, tp, ep))) for n, layer in d.layers]
    if d.final_norm:
        norm = NORMS[d.layers[0][1].norm](tokens, d.hidden, p.activation)
        blocks.append(Block(1, (Call("final_norm", norm),)))
    return Program(tuple(blocks))


def head(d: Decoder, rows: int, p: Precision, tp: int) -> Program:
    """Logits and the choice of the next token for so many rows."""
    return Program((Block(1, tuple(_head(d, rows, p, tp))),))


def check_experts(d: Decoder, tp: int, ep: int) -> None:
    """Expert parallelism gives each GPU as many whole experts."""
    found = [layer.mlp.experts for _, layer in d.layers if isinstance(layer.mlp, Moe)]
    if not found:
        raise ChipError(f"--ep {ep}: {d.name} has no experts; use --tp or --pp")
    if ep % tp:
        raise ChipError(f"--ep {ep} must be a multiple of --tp {tp}: GPUs of all attention replicas share the experts")
    if any(n % ep for n in found):
        raise ChipError(f"--ep {ep} does not divide the {found[0]} experts of {d.name}")


def check_shards(d: Decoder, tp: int, ep: int = 1) -> None:
    """Tensor parallelism splits heads, intermediate sizes and the vocabulary evenly; experts only where they do not lie
    whole on GPUs."""
    for _, layer in d.layers:
        a = layer.attn
        if a.heads % tp and a is not NO_MIXER:
            raise ChipError(f"--tp {tp} does not divide the {a.heads} attention heads of {d.name}")
        if isinstance(a, Attn) and max(a.kv_heads, tp) % min(a.kv_heads, tp):
            raise ChipError(f"--tp {tp} and the {a.kv_heads} key/value heads of {d.name} do not divide each other")
        whole = ep > 1 and isinstance(layer.mlp, Moe)
        if layer.mlp.intermediate % tp and not whole:
            raise ChipError(f"--tp {tp} does not divide the intermediate size {layer.mlp.intermediate} of {d.name}")
        shared = layer.mlp.shared if isinstance(layer.mlp, Moe) else None
        if shared and shared.intermediate % tp:
            raise ChipError(f"--tp {tp} does not divide the shared expert's size {shared.intermediate} of {d.name}")
        if d.quantization:
            _check_scales(d, layer, tp, whole)


def _check_scales(d: Decoder, layer: Layer, tp: int, whole_experts: bool) -> None:
    """A scale covers weights of one GPU only. Layers whose inputs are split need whole groups of inputs, those whose
    outputs are split whole blocks of outputs; down-projections of latents are not split."""
    formats = dict(layer.formats)
    for m in layer.matrices(d.hidden):
        found = formats.get(m.role)
        if found is None or found.dtype == "fp4" or m.role in WHOLE:  # engines pad fp4
            continue
        if whole_experts and m.role == roles.EXPERTS:
            continue
        down = m.role == roles.EXPERTS and m.n == d.hidden
        by_inputs = down or m.role.endswith((roles.O_PROJ, roles.DOWN_PROJ, "state_out"))
        size, covered, what = (m.k, found.cols, "inputs") if by_inputs else (m.n, found.rows, "outputs")
        own = size // tp
        if isinstance(layer.attn, Attn) and m.role in (roles.K_PROJ, roles.V_PROJ):
            own = _shard(m.n, layer.attn, m.role, tp)
            covered = 0 if layer.attn.head_dim % max(1, covered) else covered  # heads that no block fits are cut apart
        if covered > 1 and own % covered:
            raise ChipError(
                f"--tp {tp} leaves {own} {what} of {m.role} to each GPU, which the config's scales over "
                f"{covered} of them do not divide; choose a smaller --tp"
            )


def _embed(d: Decoder, tokens: int, p: Precision) -> Iterator[Call]:
    act = p.activation
    width = d.embed_dim or d.hidden
    yield Call("embed", Embedding(tokens, width, act))
    if width != d.hidden:
        yield Call("embed_in", Linear(tokens, d.hidden, width, act))
    if d.embed_scale:
        yield Call("embed_scale", Scale(tokens, d.hidden, act))
    if d.positions:
        yield Call("position", Embedding(tokens, d.hidden, act))
        yield Call("position_add", Add(tokens, d.hidden, act))
    if d.embed_norm:
        yield Call("embed_norm", NORMS[d.layers[0][1].norm](tokens, d.hidden, act))
    yield from _extras(d.extras, tokens, p)


def _head(d: Decoder, rows: int, p: Precision, tp: int) -> Iterator[Call]:
    act = p.activation
    width = d.embed_dim or d.hidden
    if width != d.hidden:
        yield Call("embed_out", Linear(rows, width, d.hidden, act))
    vocab = -(-d.vocab // tp)
    if d.head_format and p.per_layer:
        if d.head_format.input:
            yield Call("head_quant", Quantize(rows, width, act, d.head_format.input))
        yield Call("lm_head", dense(d.head_format, rows, vocab, width, act, d.head_bias))
    else:
        yield Call("lm_head", Linear(rows, vocab, width, act, "", d.head_bias))
    if d.logit_scale:
        yield Call("logit_scale", Scale(rows, vocab, act))
    if d.logit_softcap:
        yield Call("logit_softcap", Softcap(rows, vocab, act))
    yield Call("sampling", Sampling(rows, vocab, act))


def _extras(parts: tuple[Extra, ...], tokens: int, p: Precision) -> Iterator[Call]:
    return (Call(part.role, op) for part in parts for op in part.ops(tokens, p))


def _layer(d: Decoder, layer: Layer, tokens: int, p: Precision, tp: int, ep: int = 1) -> Iterator[Call]:
    act = p.activation
    norm = NORMS[layer.norm](tokens, d.hidden, act)
    attn_add, mlp_add = (Call(role, Add(tokens, d.hidden, act)) for role in (roles.ATTN_ADD, roles.MLP_ADD))
    placement = layer.placement
    parallel = placement.startswith("parallel")
    before, after = parallel or placement in ("pre", "sandwich"), placement in ("post", "sandwich")
    yield from _extras(layer.extras, tokens, p)
    if layer.attn is NO_MIXER:
        yield Call(roles.MLP_NORM, norm)
        yield from _branch(d, layer, tokens, p, tp, ep)
        if tp > 1:
            yield Call(roles.MLP_ALL_REDUCE, AllReduce(tokens, d.hidden, tp, act))
        yield mlp_add
        return
    if before:
        yield Call(roles.ATTN_NORM, norm)
    if isinstance(layer.attn, Attn):
        yield from _attention(layer, layer.attn, d.hidden, tokens, p, tp)
    elif isinstance(layer.attn, StateMixer):
        yield from _state(layer, layer.attn, d.hidden, tokens, p, tp)
    elif isinstance(layer.attn, CompressedAttn):
        yield from _compressed_attention(layer, layer.attn, d.hidden, tokens, p, tp)
    else:
        yield from _latent_attention(layer, layer.attn, d.hidden, tokens, p, tp)
    if layer.beside:
        yield from _state(layer, layer.beside, d.hidden, tokens, p, tp)
        yield Call("beside_add", Add(tokens, d.hidden, act))
    if tp > 1 and not parallel:
        yield Call("attn_all_reduce", AllReduce(tokens, d.hidden, tp, act))
    if after:
        yield Call(roles.ATTN_POST_NORM, norm)
    if layer.residual_scale:
        yield Call(roles.ATTN_SCALE, Scale(tokens, d.hidden, act))
    if not parallel:
        yield attn_add
    if placement == "post_add":
        yield Call(roles.ATTN_POST_NORM, norm)
    if not layer.mlp.intermediate:
        return
    if before and placement != "parallel":
        yield Call(roles.MLP_NORM, norm)
    yield from _branch(d, layer, tokens, p, tp, ep)
    if parallel:  # both branches are there: add them, then reduce and add the residual
        yield attn_add
    if tp > 1:
        yield Call(roles.MLP_ALL_REDUCE, AllReduce(tokens, d.hidden, tp, act))
    if after:
        yield Call(roles.MLP_POST_NORM, norm)
    if layer.residual_scale:
        yield Call(roles.MLP_SCALE, Scale(tokens, d.hidden, act))
    yield mlp_add
    if placement == "post_add":
        yield Call(roles.MLP_POST_NORM, norm)


def _branch(d: Decoder, layer: Layer, tokens: int, p: Precision, tp: int, ep: int) -> Iterator[Call]:
    if isinstance(layer.mlp, Mlp):
        return _mlp(layer, layer.mlp, d.hidden, tokens, p, tp)
    return _moe(layer, layer.mlp, d.hidden, tokens, p, tp, ep)


def _attention(layer: Layer, a: Attn, hidden: int, tokens: int, p: Precision, tp: int) -> Iterator[Call]:
    act, dim, norm = p.activation, a.head_dim, layer.norm
    heads, kv_heads, width = a.heads // tp, max(1, a.kv_heads // tp), a.in_dim or hidden
    q, kv, v_dim = heads * dim, kv_heads * dim, a.v_dim or dim
    outputs = {role: n if role == roles.Q_DOWN else _shard(n, a, role, tp) for role, n in a.outputs.items()}
    yield from _dense(layer, outputs, width, tokens, p, a.qkv_bias, "qkv_quant")
    if a.q_rank:
        yield Call(roles.Q_NORM, NORMS[norm](tokens, a.q_rank, act))
        yield from _dense(layer, {roles.Q_UP: q}, a.q_rank, tokens, p, False, "q_up_quant")
    if a.gate:
        yield from _dense(layer, {"attn_gate": a.gate // tp}, hidden, tokens, p, False, "")
    cached = a.source != "shared"
    if a.qk_norm == "head":
        yield Call(roles.Q_NORM, NORMS[norm](tokens * heads, dim, act))
        if cached:
            yield Call(roles.K_NORM, NORMS[norm](tokens * kv_heads, dim, act))
    elif a.qk_norm:
        yield Call(roles.Q_NORM, NORMS[norm](tokens, q, act))
        yield Call(roles.K_NORM, NORMS[norm](tokens, kv, act))
    if a.rope_dim:
        yield Call(roles.ROPE, Rope(tokens, heads + kv_heads * cached, a.rope_dim, act))
    stored, window = kv_heads * (dim + v_dim), a.index_keys or a.window
    if a.index_heads:
        yield from _indexer(layer, a.index_outputs, (a.index_heads, a.index_dim), hidden, tokens, p)
    if p.kv == "fp8":
        if cached:
            yield Call(roles.KV_APPEND, KvAppendFp8(tokens, stored, act))
        if p.attention == "fp8":
            yield Call("query_quant", Quantize(tokens, q, act, "fp8", per_tensor=True, static=True))
        over: type[Attention] = Fp8Attention if p.attention == "fp8" else Fp8CacheAttention
    else:
        if cached:
            yield Call(roles.KV_APPEND, KvAppend(tokens, stored, act))
        over = ChunkedAttention if a.chunked else Attention
    axes = (1, heads, kv_heads, dim, 1, 1, True)
    yield Call(roles.ATTENTION, over(*axes, window, a.v_dim, act))
    if a.source == "both":
        yield Call(roles.ATTENTION, over(*axes, 0, a.v_dim, act))
    if a.gate or a.source == "both":
        yield Call("attn_gate_act", SiluMul(tokens, heads * v_dim, act))  # a sigmoid, and a product
    yield from _dense(layer, {roles.O_PROJ: hidden}, heads * v_dim, tokens, p, a.out_bias, "o_quant")


def _shard(n: int, a: Attn, role: str, tp: int) -> int:
    """Outputs on each GPU: keys and values have whole heads on each."""
    kv_heads, v_dim = max(1, a.kv_heads // tp), a.v_dim or a.head_dim
    if role == roles.QKV_PROJ:
        return a.heads // tp * a.head_dim + kv_heads * (a.head_dim + v_dim)
    return n // tp if role == roles.Q_PROJ else kv_heads * (a.head_dim if role == roles.K_PROJ else v_dim)


def _state(layer: Layer, s: StateMixer, hidden: int, tokens: int, p: Precision, tp: int) -> Iterator[Call]:
    """A mixer with a state, as a prompt runs it; an engine's decode step has `as_steps` instead."""
    act = p.activation
    yield from _dense(layer, {role: n // tp for role, n in s.inputs}, hidden, tokens, p, False, "state_quant")
    for role, n, k in s.inner:
        yield from _dense(layer, {role: n // tp}, k, tokens, p, False, "")
    if s.channels:
        yield Call("conv", CausalConv(tokens, s.channels // tp, act, s.taps))
    if s.key_dim:
        sizes = (s.heads // tp, s.head_dim, s.key_dim, max(1, s.groups // tp))
        yield Call("scan", StateScan(tokens, *sizes, CHUNKS[s.kind], s.kind == "delta", s.state_dtype or act, act))
    yield Call("state_gate", SiluMul(tokens, s.width // tp, act))
    if s.normed:
        yield Call("state_norm", RmsNorm(tokens, s.width // tp, act))
    yield from _dense(layer, {"state_out": hidden}, s.width // tp, tokens, p, False, "state_out_quant")


def as_steps(calls: list[Call]) -> list[Call]:
    """The calls of a step of single tokens: convolutions and scans by the state of each sequence."""
    return [Call(c.role, _as_step(c.op)) for c in calls]


def _as_step(op: Op) -> Op:
    if isinstance(op, CausalConv):
        return CausalConvStep(op.rows, op.cols, op.dtype, op.taps)
    if isinstance(op, StateScan):
        sizes = (op.tokens, op.heads, op.head_dim, op.key_dim, op.groups)
        return StateStep(*sizes, op.delta, op.state_dtype, op.dtype)
    return op


def _latent_attention(layer: Layer, a: LatentAttn, hidden: int, tokens: int, p: Precision, tp: int) -> Iterator[Call]:
    """Expanded: keys and values of every head come from the latent once, and are cached so. (transformers caches the
    latent and expands all of it anew in each step; absorbed attention never expands: both are an engine's rewrite.)"""
    act, heads = p.activation, a.heads // tp
    if a.q_rank:
        yield from _dense(layer, {roles.Q_DOWN: a.q_rank}, hidden, tokens, p, a.bias, "qkv_quant")
        yield Call(roles.Q_NORM, RmsNorm(tokens, a.q_rank, act))
        yield from _dense(layer, {roles.Q_UP: heads * a.qk_dim}, a.q_rank, tokens, p, False, "q_up_quant")
    else:
        yield from _dense(layer, {roles.Q_PROJ: heads * a.qk_dim}, hidden, tokens, p, False, "qkv_quant")
    # the same input as the queries': where those are quantised it is rounded already
    yield from _dense(layer, {roles.KV_DOWN: a.kv_rank + a.rope_dim}, hidden, tokens, p, a.bias, "")
    yield Call("kv_norm", RmsNorm(tokens, a.kv_rank, act))
    yield from _dense(layer, {roles.KV_UP: heads * (a.nope_dim + a.v_dim)}, a.kv_rank, tokens, p, False, "kv_up_quant")
    yield Call(roles.ROPE, Rope(tokens, heads + 1, a.rope_dim, act))
    yield Call(roles.KV_APPEND, KvAppend(tokens, heads * (a.qk_dim + a.v_dim), act))
    if a.index_heads:
        outputs = {"index_k": a.index_dim, "index_weights": a.index_heads}
        if a.q_rank:
            yield from _dense(layer, {"index_q": a.index_heads * a.index_dim}, a.q_rank, tokens, p, False, "")
        else:
            outputs = {"index_q": a.index_heads * a.index_dim, **outputs}
        yield from _indexer(layer, outputs, (a.index_heads, a.index_dim), hidden, tokens, p)
    yield Call(roles.ATTENTION, Attention(1, heads, heads, a.qk_dim, 1, 1, True, a.index_keys, a.v_dim, act))
    yield from _dense(layer, {roles.O_PROJ: hidden}, heads * a.v_dim, tokens, p, a.bias, "o_quant")


def _indexer(
    layer: Layer, outputs: dict[str, int], small: tuple[int, int], hidden: int, tokens: int, p: Precision
) -> Iterator[Call]:
    """Scores of all keys, whole on each GPU: small heads over one fp8 key each, without values. `outputs`: of the
    products over the layer's input. `small`: how many heads, and how wide."""
    act, (heads, dim) = p.activation, small
    yield from _dense(layer, outputs, hidden, tokens, p, False, "")
    yield Call("index_norm", RmsNorm(tokens, dim, act))
    yield Call("index_append", KvAppend(tokens, dim, act))
    yield Call("indexer", Fp8Attention(1, heads, 1, dim, 1, 1, True, 0, 1, act))


def _compressed_attention(
    layer: Layer, a: CompressedAttn, hidden: int, tokens: int, p: Precision, tp: int
) -> Iterator[Call]:
    """The latest tokens one by one, and entries of several, which an indexer may choose among. Rotation, the norm of
    keys and the write into the cache are one kernel, as are those that make an entry."""
    act, heads, dim = p.activation, a.heads // tp, a.head_dim
    yield from _dense(layer, {roles.Q_DOWN: a.q_rank, roles.KV_DOWN: dim}, hidden, tokens, p, False, "qkv_quant")
    yield Call(roles.Q_NORM, RmsNorm(tokens, a.q_rank, act))
    yield from _dense(layer, {roles.Q_UP: heads * dim}, a.q_rank, tokens, p, False, "q_up_quant")
    yield Call(roles.ROPE, Rope(tokens, heads + 1, a.rope_dim, act))
    yield Call(roles.KV_APPEND, KvAppend(tokens, dim, act))
    if a.ratio:
        yield Call("compress", Linear(tokens, 2 * a.entry_dim, hidden, act, act))
        yield Call("compress_append", KvAppend(tokens, 2 * a.entry_dim, act))
    if a.index_heads:
        yield from _dense(layer, {"index_q": a.index_heads * a.index_dim}, a.q_rank, tokens, p, False, "")
        outputs = (4 * a.index_dim, a.index_heads)
        yield from (Call("index_k", Linear(tokens, n, hidden, act, act)) for n in outputs)
        yield Call("index_append", KvAppend(tokens, a.index_dim, act))
        yield Call("indexer", IndexedEntries(1, a.index_heads, 1, a.index_dim, 1, 1, True, 0, 1, act, a.ratio))
    seen = (a.ratio, a.index_keys)
    yield Call(roles.ATTENTION, CompressedAttention(1, heads, 1, dim, 1, 1, True, a.window, dim, act, *seen))
    # each group of heads by its own part of the matrix: as much work as a dense layer over one group's values
    of_group = a.heads * dim // a.out_groups
    yield from _dense(layer, {"o_down": a.out_groups * a.out_rank // tp}, of_group, tokens, p, False, "o_down_quant")
    yield from _dense(layer, {roles.O_PROJ: hidden}, a.out_groups * a.out_rank // tp, tokens, p, False, "o_quant")


def _mlp(layer: Layer, m: Mlp, hidden: int, tokens: int, p: Precision, tp: int, prefix: str = "") -> Iterator[Call]:
    inner = m.intermediate // tp
    if m.gated and m.fused_gate_up:
        outputs = {roles.GATE_UP_PROJ: 2 * inner}
    elif m.gated:
        outputs = {roles.GATE_PROJ: inner, roles.UP_PROJ: inner}
    else:
        outputs = {roles.UP_PROJ: inner}
    outputs = {prefix + role: n for role, n in outputs.items()}
    yield from _dense(layer, outputs, hidden, tokens, p, m.bias, prefix + "up_quant")
    act: type[Any] = SiluMul if m.gated else ops.get(m.activation)
    yield Call(prefix + roles.ACT, act(tokens, inner, p.activation))
    yield from _dense(layer, {prefix + roles.DOWN_PROJ: hidden}, inner, tokens, p, m.bias, prefix + "down_quant")


def _moe(layer: Layer, m: Moe, hidden: int, tokens: int, p: Precision, tp: int, ep: int) -> Iterator[Call]:
    """With expert parallelism every GPU has whole experts. Where they serve several replicas of the attention, tokens
    of all are gathered before and results scattered after (vLLM's default all-to-all, allgather_reducescatter)."""
    act, found, width = p.activation, layer.format_of(roles.EXPERTS, p), m.latent or hidden
    axes = (tokens, hidden, m.experts + m.zero, m.top_k, act)
    yield Call(roles.ROUTER, ROUTERS[m.router](*axes, m.groups) if m.groups else MoeRouter(*axes))
    if m.latent:
        yield from _dense(layer, {"latent_in": m.latent}, hidden, tokens, p, False, "")
    if ep > 1:
        replicas = ep // tp
        everyone = tokens * replicas
        if replicas > 1:
            yield Call(roles.DISPATCH, AllGather(everyone, width, replicas, act))
        yield Call(roles.EXPERTS, _experts(found, everyone, width, m.intermediate, m, act, ep))
        if replicas > 1:
            yield Call(roles.COMBINE, ReduceScatter(everyone, width, replicas, act))
    else:
        yield Call(roles.EXPERTS, _experts(found, tokens, width, m.intermediate // tp, m, act))
    if m.latent:
        yield from _dense(layer, {"latent_out": hidden}, m.latent, tokens, p, False, "")
    if m.shared:
        yield from _mlp(layer, m.shared, hidden, tokens, p, tp, prefix=roles.SHARED)
        if m.shared_gate:
            yield Call("shared_gate", Linear(tokens, 1, hidden, act))
            yield Call("shared_sigmoid", Scale(tokens, 1, act))
            yield Call("shared_scale", Scale(tokens, hidden, act))
        yield Call(roles.SHARED_ADD, Add(tokens, hidden, act))


def _experts(
    found: WeightFormat | None, tokens: int, hidden: int, inner: int, m: Moe, act: str, ranks: int = 1
) -> MoeExperts:
    axes = (tokens, hidden, inner, m.experts, m.used, m.gated)
    if found is None:
        return MoeExperts(*axes, act, act, ranks)
    if found.input:
        # one scale for a matrix goes with one scale for all tokens
        per_tensor = found.input_per_tensor or not (found.rows or found.cols)
        scales = (found.rows, found.cols, found.input_group, per_tensor)
        return ScaledExperts(*axes, found.input, found.dtype, ranks, *scales)
    return PackedExperts(*axes, act, found.dtype, ranks, found.cols, bool(found.zero_bytes))


def _dense(
    layer: Layer, outputs: dict[str, int], k: int, tokens: int, p: Precision, bias: bool, quantised_by: str
) -> Iterator[Call]:
    """Dense layers over one input, by role and outputs. Where their format quantises the input too, a kernel of the
    role `quantised_by` rounds it before the first of them."""
    act, rounded = p.activation, ""
    for role, n in outputs.items():
        found = layer.format_of(role, p)
        if found and found.input and quantised_by and found.input != rounded:
            scales = (found.input_group, found.input_per_tensor, found.input_static)
            yield Call(quantised_by, Quantize(tokens, k, act, found.input, *scales))
            rounded = found.input
        yield Call(role, dense(found, tokens, n, k, act, bias))


def dense(found: WeightFormat | None, m: int, n: int, k: int, act: str, bias: bool) -> Linear:
    """The product of a dense layer with weights stored so."""
    if found is None:
        return Linear(m, n, k, act, act, bias)
    if found.input:
        scales = (found.rows, found.cols, found.input_group, found.input_per_tensor)
        return ScaledLinear(m, n, k, found.input, found.dtype, bias, *scales)
    return PackedLinear(m, n, k, act, found.dtype, bias, found.cols, bool(found.zero_bytes))
