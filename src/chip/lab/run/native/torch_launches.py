"""Every launch of the decoder by PyTorch alone: what our kernels are compared with, and what serves without them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from chip.lab.kernels.triton import add_rms_norm as add_rms_norm_kernel
from chip.lab.kernels.triton import paged_decode_attention, skinny_gemm
from chip.lab.kernels.triton import rms_norm as rms_norm_kernel
from chip.lab.kernels.triton import rope_store as rope_store_kernel
from chip.lab.run.native.batch import Chunk

rms_norm, add_rms_norm = rms_norm_kernel.native, add_rms_norm_kernel.native
linear, gate_up = F.linear, partial(skinny_gemm.native, gated=True)
decode_attention = paged_decode_attention.native


def rope_store(
    qkv: torch.Tensor, q_norm: torch.Tensor | None, k_norm: torch.Tensor | None, eps: float, *rest: torch.Tensor
) -> torch.Tensor:
    """Queries turned to their positions; keys, turned too, and values written to their pages."""
    cos, sin, positions, slots, keys, values = rest
    pages = keys, values
    return rope_store_kernel.native(qkv, cos, sin, positions, slots, keys, q_norm, k_norm, eps, pages)[0]


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
        k, v = (paged_decode_attention.gathered(t, used)[:, :, :length] for t in (keys, values))
        mine = slice(chunk.first, chunk.first + chunk.new)
        query = q[mine].transpose(0, 1)[None]
        if chunk.past:
            seen = torch.ones(chunk.new, length, dtype=torch.bool, device=q.device).tril(chunk.past)
            answer = F.scaled_dot_product_attention(query, k, v, seen, enable_gqa=grouped)
        else:
            answer = F.scaled_dot_product_attention(query, k, v, is_causal=True, enable_gqa=grouped)
        out[mine] = answer[0].transpose(0, 1)
