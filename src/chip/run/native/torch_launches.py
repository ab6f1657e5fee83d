"""Every launch of the decoder by PyTorch alone: what our kernels are compared with, and what serves without them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from chip.run.native.batch import Chunk


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    total = x + residual
    return total, rms_norm(total, weight, eps)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return F.linear(x, weight, bias)


def gate_up(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    gate, up = F.linear(x, weight, bias).chunk(2, -1)
    return F.silu(gate) * up


def rope_store(
    qkv: torch.Tensor,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
) -> torch.Tensor:
    """Queries turned to their positions; keys, turned too, and values written to their pages."""
    _, kv_heads, page_tokens, dim = keys.shape
    q, k, v = qkv.view(len(qkv), -1, dim).split([qkv.shape[1] // dim - 2 * kv_heads, kv_heads, kv_heads], 1)
    if q_norm is not None and k_norm is not None:
        q, k = rms_norm(q, q_norm, eps), rms_norm(k, k_norm, eps)
    c, s = (t.index_select(0, positions)[:, None].to(qkv.dtype) for t in (cos, sin))
    page, place = slots // page_tokens, slots % page_tokens
    keys[page, :, place] = turned(k, c, s)
    values[page, :, place] = v
    return turned(q, c, s)


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = x.chunk(2, -1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


def decode_attention(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """One query a sequence over its pages, gathered first; heads of a group are rows of one product."""
    batch, heads, dim = q.shape
    k, v = _gathered(keys, table), _gathered(values, table)
    seen = torch.arange(k.shape[2], device=q.device)[None] < lengths[:, None]
    grouped = q.reshape(batch, k.shape[1], heads // k.shape[1], dim)
    return F.scaled_dot_product_attention(grouped, k, v, seen[:, None, None]).reshape(batch, heads, dim)


def _gathered(pages: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """sequences x kv_heads x tokens x dim."""
    batch, width = table.shape
    _, kv_heads, page_tokens, dim = pages.shape
    found = pages.index_select(0, table.reshape(-1)).view(batch, width, kv_heads, page_tokens, dim)
    return found.transpose(1, 2).reshape(batch, kv_heads, width * page_tokens, dim)


def prefill_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    table: torch.Tensor,
    chunks: Sequence[Chunk],
    tiles: Any,
    out: torch.Tensor,
) -> None:
    """Chunks of prompts over their pages, one after another; `table` has a row for each."""
    grouped = q.shape[1] != keys.shape[1]
    for chunk, pages in zip(chunks, table):
        length = chunk.past + chunk.new
        used = pages[: -(-length // keys.shape[2])][None]
        k, v = (_gathered(t, used)[:, :, :length] for t in (keys, values))
        mine = slice(chunk.first, chunk.first + chunk.new)
        query = q[mine].transpose(0, 1)[None]
        if chunk.past:
            seen = torch.ones(chunk.new, length, dtype=torch.bool, device=q.device).tril(chunk.past)
            found = F.scaled_dot_product_attention(query, k, v, seen, enable_gqa=grouped)
        else:
            found = F.scaled_dot_product_attention(query, k, v, is_causal=True, enable_gqa=grouped)
        out[mine] = found[0].transpose(0, 1)
