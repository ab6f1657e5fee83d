"""Mixers with a state: convolutions, scans of prompts and steps of single tokens. `torch` spells them out in its own
operators, which no engine does; `vllm` calls the Triton kernels that vLLM 0.26 runs (Mamba-2, and gated delta rules by
flash-linear-attention)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.lab.measure.build import Closure, Draw, builds, torch_dtype
from chip.lab.measure.vllm_ops import function
from chip.ops.states import CausalConv, CausalConvStep, StateScan, StateStep

MAMBA = "vllm.model_executor.layers.mamba.ops"
DELTA = "vllm.third_party.flash_linear_attention.ops"


@builds("causal_conv", gpu=("vllm", "torch"))
def causal_conv(op: CausalConv, draw: Draw, implementation: str) -> Closure:
    """One prompt: each channel over its last inputs, then SiLU."""
    x, weight = draw.normal((op.rows, op.cols), op.dtype), draw.normal((op.cols, op.taps), op.dtype)
    if implementation == "vllm":
        convolve = function(f"{MAMBA}.causal_conv1d", "causal_conv1d_fn", "causal convolutions")
        states = torch.zeros((1, op.cols, op.taps - 1), dtype=x.dtype, device=draw.device)
        starts = torch.tensor([0, op.rows], dtype=torch.int32, device=draw.device)
        slots = torch.zeros(1, dtype=torch.int32, device=draw.device)
        fresh = torch.zeros(1, dtype=torch.bool, device=draw.device)
        return lambda: convolve(x.t(), weight, None, states, starts, cache_indices=slots, has_initial_state=fresh)
    padded = F.pad(x, (0, 0, op.taps - 1, 0))
    return lambda: F.silu(sum(padded[i : i + op.rows] * weight[:, i] for i in range(op.taps)))


@builds("causal_conv_step", gpu=("vllm", "torch"))
def causal_conv_step(op: CausalConvStep, draw: Draw, implementation: str) -> Closure:
    """One token of each sequence, with the inputs before it, which move on by one."""
    x, weight = draw.normal((op.rows, op.cols), op.dtype), draw.normal((op.cols, op.taps), op.dtype)
    states = draw.normal((op.rows, op.cols, op.taps - 1), op.dtype)
    if implementation == "vllm":
        update = function(f"{MAMBA}.causal_conv1d", "causal_conv1d_update", "causal convolutions")
        slots = torch.arange(op.rows, dtype=torch.int32, device=draw.device)
        return lambda: update(x, states, weight, None, "silu", conv_state_indices=slots)

    def call() -> torch.Tensor:
        window = torch.cat((states, x[..., None]), -1)
        states.copy_(window[..., 1:])
        return F.silu((window * weight).sum(-1))

    return call


@builds("state_step", gpu=("vllm", "torch"))
def state_step(op: StateStep, draw: Draw, implementation: str) -> Closure:
    """One token of each sequence: the state decays, takes in a value by its key, and is read by a query."""
    heads = (op.rows, op.heads)
    states = draw.normal((*heads, op.head_dim, op.key_dim), op.state_dtype)
    x = draw.normal((*heads, op.head_dim), op.dtype)
    keys, queries = (draw.normal((op.rows, op.groups, op.key_dim), op.dtype, 0.1) for _ in range(2))
    if implementation == "vllm":
        return _delta_step(op, draw, states, x) if op.delta else _mamba_step(op, draw, states, x, keys, queries)
    decay = draw.uniform((*heads, 1, 1)).to(states.dtype)
    share = op.heads // op.groups

    def call() -> torch.Tensor:
        k, q = (t.repeat_interleave(share, 1)[:, :, None].to(states.dtype) for t in (keys, queries))
        value = x - (states * k).sum(-1) if op.delta else x  # a delta rule takes out what is there
        states.mul_(decay).add_(value[..., None] * k)
        return (states * q).sum(-1).to(x.dtype)

    return call


def _mamba_step(
    op: StateStep, draw: Draw, states: torch.Tensor, x: torch.Tensor, keys: torch.Tensor, queries: torch.Tensor
) -> Closure:
    update = function(f"{MAMBA}.mamba_ssm", "selective_state_update", "steps of Mamba-2")
    steps = draw.normal((op.rows, op.heads, 1), op.dtype).expand(-1, -1, op.head_dim)
    decays = -draw.uniform((op.heads, 1, 1)).expand(-1, op.head_dim, op.key_dim)
    skip, bias = (draw.uniform((op.heads, 1)).expand(-1, op.head_dim) for _ in range(2))
    slots, out = torch.arange(op.rows, dtype=torch.int32, device=draw.device), torch.empty_like(x)
    return lambda: update(
        states, x, steps, decays, keys, queries, skip, bias, dt_softplus=True, state_batch_indices=slots, out=out
    )


def _delta_step(op: StateStep, draw: Draw, states: torch.Tensor, x: torch.Tensor) -> Closure:
    recur = function(f"{DELTA}.fused_recurrent", "fused_recurrent_gated_delta_rule", "steps of a delta rule")
    keys, queries = (draw.normal((1, op.rows, op.groups, op.key_dim), op.dtype) for _ in range(2))
    decays, shares = (-draw.uniform((1, op.rows, op.heads)) for _ in range(2))
    starts = torch.arange(op.rows + 1, dtype=torch.int32, device=draw.device)
    slots = torch.arange(op.rows, dtype=torch.int32, device=draw.device)
    return lambda: recur(
        queries, keys, x[None], decays, -shares, initial_state=states, inplace_final_state=True, cu_seqlens=starts,
        ssm_state_indices=slots, use_qk_l2norm_in_kernel=True,
    )  # fmt: skip


@builds("state_scan", gpu=("vllm", "torch"))
def state_scan(op: StateScan, draw: Draw, implementation: str) -> Closure:
    """One prompt in chunks: tokens meet each other within a chunk, and the state between chunks."""
    if implementation == "vllm":
        return _delta_scan(op, draw) if op.delta else _mamba_scan(op, draw)
    chunks = -(-op.tokens // op.chunk)
    v = draw.normal((chunks, op.heads, op.chunk, op.head_dim), op.dtype)
    k, q = (draw.normal((chunks, op.groups, op.chunk, op.key_dim), op.dtype, 0.1) for _ in range(2))
    below = torch.ones((op.chunk, op.chunk), device=draw.device, dtype=v.dtype).tril()
    share = op.heads // op.groups

    def call() -> torch.Tensor:
        values = v
        if op.delta:  # what each token changes, after those before it in the chunk
            met = (k @ k.transpose(-1, -2)).tril(-1).repeat_interleave(share, 1)
            unit = torch.eye(op.chunk, device=draw.device) + met.float()
            values = torch.linalg.solve_triangular(unit, v.float(), upper=False).to(v.dtype)
        scores = ((q @ k.transpose(-1, -2)) * below).repeat_interleave(share, 1)
        keys, queries = (t.repeat_interleave(share, 1) for t in (k, q))
        of_chunks = keys.transpose(-1, -2) @ values
        before = torch.cumsum(of_chunks.float(), 0).to(v.dtype) - of_chunks
        return (scores @ values + queries @ before).transpose(1, 2).reshape(-1, op.heads, op.head_dim)[: op.tokens]

    return call


def _mamba_scan(op: StateScan, draw: Draw) -> Closure:
    scan = function(f"{MAMBA}.ssd_combined", "mamba_chunk_scan_combined_varlen", "scans of Mamba-2")
    x = draw.normal((op.tokens, op.heads, op.head_dim), op.dtype)
    keys, queries = (draw.normal((op.tokens, op.groups, op.key_dim), op.dtype) for _ in range(2))
    steps, decays = draw.normal((op.tokens, op.heads), op.dtype), -draw.uniform((op.heads,))
    edges = [*range(0, op.tokens, op.chunk), op.tokens]
    starts, of_chunks, last, of_sequence = (
        torch.tensor(values, dtype=torch.int32, device=draw.device)
        for values in ([0, op.tokens], edges, [len(edges) - 2], [0] * (len(edges) - 1))
    )
    out, bias = torch.empty_like(x), draw.uniform((op.heads,))
    return lambda: scan(
        x, steps, decays, keys, queries, op.chunk, starts, of_chunks, last, of_sequence, out, D=bias, dt_bias=bias,
        dt_softplus=True, state_dtype=torch_dtype(op.state_dtype),
    )  # fmt: skip


def _delta_scan(op: StateScan, draw: Draw) -> Closure:
    scan = function(f"{DELTA}.chunk", "chunk_gated_delta_rule", "scans of a delta rule")
    keys, queries = (draw.normal((1, op.tokens, op.groups, op.key_dim), op.dtype) for _ in range(2))
    values = draw.normal((1, op.tokens, op.heads, op.head_dim), op.dtype)
    decays, shares = -draw.uniform((1, op.tokens, op.heads)), draw.uniform((1, op.tokens, op.heads)).to(values.dtype)
    start = torch.zeros((1, op.heads, op.head_dim, op.key_dim), device=draw.device)
    ends = torch.tensor([0, op.tokens], dtype=torch.int32, device=draw.device)
    return lambda: scan(
        queries, keys, values, decays, shares, initial_state=start, output_final_state=True, cu_seqlens=ends,
        use_qk_l2norm_in_kernel=True,
    )  # fmt: skip
