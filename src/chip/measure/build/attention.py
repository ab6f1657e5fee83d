"""F.scaled_dot_product_attention with the backend named by the implementation (`torch` leaves the choice to torch).

A causal step whose queries are the last of a longer context takes torch's lower-right causal bias, which the flash
backend runs without a mask. A sliding window needs a mask; a decode step under a window reads the window only.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from chip.measure.build import Closure, Unsupported, normal
from chip.ops.attention import Attention

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
FLASH_HEAD_DIM = 256


def implementations(op: Attention, device_type: str) -> tuple[str, ...]:
    if device_type == "cpu":
        return ("torch", "flash", "math")
    if _needs_mask(op) or op.v_head_dim not in (0, op.head_dim) or op.head_dim > FLASH_HEAD_DIM or op.dtype == "fp32":
        return ("efficient", "cudnn", "math", "torch", "flash")
    return ("flash", "cudnn", "efficient", "math", "torch")


def around(op: Attention, implementation: str) -> AbstractContextManager[object]:
    return sdpa_kernel(BACKENDS[implementation]) if implementation in BACKENDS else nullcontext()


def build(op: Attention, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    if implementation == "flash" and _needs_mask(op):
        raise Unsupported("torch's flash backend takes no mask, and a sliding window needs one")
    kv_len = min(op.kv_len, op.window) if op.window and op.q_len == 1 and op.causal else op.kv_len
    value_dim = op.v_head_dim or op.head_dim
    q = normal((op.batch, op.heads, op.q_len, op.head_dim), op.dtype, device, generator)
    k = normal((op.batch, op.kv_heads, kv_len, op.head_dim), op.dtype, device, generator)
    v = normal((op.batch, op.kv_heads, kv_len, value_dim), op.dtype, device, generator)
    settings: dict[str, object] = {}
    if op.causal and op.q_len > 1:
        if _needs_mask(op):
            settings["attn_mask"] = _window_mask(op, device)
        elif op.q_len == op.kv_len:
            settings["is_causal"] = True
        else:
            settings["attn_mask"] = causal_lower_right(op.q_len, op.kv_len)
    groups = op.heads // op.kv_heads
    if groups > 1 and implementation == "efficient":  # that backend wants as many key heads as query heads
        return lambda: F.scaled_dot_product_attention(q, _repeat(k, groups), _repeat(v, groups), **settings)  # type: ignore[arg-type]
    if groups > 1:
        settings["enable_gqa"] = True
    return lambda: F.scaled_dot_product_attention(q, k, v, **settings)  # type: ignore[arg-type]


def _needs_mask(op: Attention) -> bool:
    return bool(op.causal and op.q_len > 1 and op.window and op.kv_len > op.window)


def _window_mask(op: Attention, device: torch.device) -> torch.Tensor:
    query = torch.arange(op.kv_len - op.q_len, op.kv_len, device=device)[:, None]
    key = torch.arange(op.kv_len, device=device)[None, :]
    return (key <= query) & (key > query - op.window)


def _repeat(x: torch.Tensor, groups: int) -> torch.Tensor:
    """HF's repeat_kv: every key head copied for each query head of its group."""
    batch, heads, length, dim = x.shape
    return x[:, :, None].expand(batch, heads, groups, length, dim).reshape(batch, heads * groups, length, dim)
