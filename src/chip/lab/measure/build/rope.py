"""Rotary positions as HF applies them, as vLLM compiles them, with the write to pages, and their table."""

from __future__ import annotations

import torch

from chip.lab.measure import own_ops
from chip.lab.measure.build import Closure, Draw, builds, compiled, torch_dtype
from chip.ops.elementwise import Elementwise
from chip.ops.rope import Rope, RopeStore, RotaryTable


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


@builds("rope_composed")
def rope_composed(op: Rope, draw: Draw, implementation: str) -> Closure:
    """Rotary positions as HF's modules apply them: q cos + rotate_half(q) sin, then the same for k.

    The operator counts query and key heads together; a fifth of them are taken as keys (grouped-query attention, 4 :
    1).
    """
    keys = op.heads // 5 or op.heads // 2
    # as a projection leaves them: tokens before heads in memory, heads before tokens in shape
    q = draw.normal((1, op.rows, op.heads - keys, op.head_dim), op.dtype).transpose(1, 2)
    k = draw.normal((1, op.rows, keys, op.head_dim), op.dtype).transpose(1, 2)
    cos = draw.normal((1, 1, op.rows, op.head_dim), op.dtype)
    sin = draw.normal((1, 1, op.rows, op.head_dim), op.dtype)

    def call() -> object:
        return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin

    return call


def rotated(both: torch.Tensor, positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    cos, sin = table.index_select(0, positions).unsqueeze(1).chunk(2, -1)
    first, second = both.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


@builds("rope", gpu=("torch", "compiled"))
def rope(op: Rope, draw: Draw, implementation: str) -> Closure:
    """Rotary positions of queries and keys. torch has no such operator: `torch` is HF's formula, ten kernels;
    `compiled` is that of vLLM by torch.compile, over the result of a merged projection and a table of cosines and
    sines."""
    if implementation != "compiled":
        return rope_composed(op, draw, implementation)
    rows = max(2, op.rows)
    both = draw.normal((rows, op.heads, op.head_dim), op.dtype)
    table = draw.normal((8192, op.head_dim), op.dtype)
    positions = draw.integers(0, 8192, (rows,))
    return compiled(rotated, (both, positions), (table,))


HEAD_DIM = 64


@builds("rope_join")
def rope_join(op: Elementwise, draw: Draw, implementation: str) -> Closure:
    """torch.cat of rotated heads with a rest that is empty, as HF's Phi-3 calls it, for queries and for keys.

    As in `rope_composed` a fifth of the heads are taken as keys.
    """
    dim = HEAD_DIM if op.cols % HEAD_DIM == 0 else op.cols
    heads = op.cols // dim
    keys = heads // 5 or heads // 2

    def turned(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        # as the rotation leaves them: tokens before heads in memory, heads before tokens in shape
        x = draw.normal((1, op.rows, count, dim), op.dtype).transpose(1, 2)
        return x, x[..., dim:]

    pairs = [turned(count) for count in (heads - keys, keys) if count]
    return lambda: [torch.cat(pair, dim=-1) for pair in pairs]


@builds("rope_store", gpu=("torch", "chip"))
def rope_store(op: RopeStore, draw: Draw, implementation: str) -> Closure:
    """Rotary positions and the write to pages: as PyTorch does it, a dozen kernels, or `chip`, one of ours."""
    return own_ops.rope_store(op, *draw, implementation == "chip")


@builds("rotary_table")
def rotary_table(op: RotaryTable, draw: Draw, implementation: str) -> Closure:
    """The forward of HF's rotary embedding, with the positions it is asked for."""
    frequencies = 1.0 / 10000.0 ** (torch.arange(0, op.cols, 2, device=draw.device, dtype=torch.float32) / op.cols)
    dtype = torch_dtype(op.dtype)

    def call() -> object:
        positions = (torch.arange(op.rows, device=draw.device) + 1)[None]
        angles = (frequencies[None, :, None].float() @ positions[:, None, :].float()).transpose(1, 2)
        both = torch.cat((angles, angles), dim=-1)
        return (both.cos() * 1.0).to(dtype), (both.sin() * 1.0).to(dtype)

    return call
