"""Rows gathered, the next token chosen, keys and values stored; rotary positions as HF applies them, as vLLM compiles
them, with the write to pages, and their table."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.engines.vllm.options import BLOCK_TOKENS
from chip.lab.measure import own_ops
from chip.lab.measure.build import Closure, Draw, Unsupported, builds, compiled, torch_dtype
from chip.lab.measure.vllm_ops import function
from chip.ops.elementwise import Elementwise
from chip.ops.moves import Embedding, KvAppend, KvAppendFp8, KvRoll, Rope, RopeStore, RotaryTable, Sampling

HEAD_DIM = 128  # of a paged cache


@builds("embedding")
def embedding(op: Embedding, draw: Draw, implementation: str) -> Closure:
    """F.embedding: distinct random rows of a table four times what is gathered (the operator has no vocabulary
    axis)."""
    rows = max(64, 4 * op.rows)
    table = draw.normal((rows, op.cols), op.dtype)
    ids = draw.permutation(rows)[: op.rows]
    return lambda: F.embedding(ids, table)


@builds("sampling", gpu=("torch", "fp32"))
def sampling(op: Sampling, draw: Draw, implementation: str) -> Closure:
    """torch.argmax over the vocabulary; `fp32` widens the logits first, as vLLM does."""
    x = draw.normal((op.rows, op.cols), op.dtype)
    if implementation == "fp32":
        return lambda: torch.argmax(x.to(torch.float32), -1)
    return lambda: torch.argmax(x, -1)


@builds("kv_append", gpu=("torch", "paged"))
def kv_append(op: KvAppend, draw: Draw, implementation: str) -> Closure:
    """New keys and values copied into a cache: `torch`, of fixed size (index_copy_, as HF's StaticCache does), keys
    then values; `paged`, into pages in one kernel."""
    if implementation == "paged":
        return _in_pages(op, draw)
    widths = (op.cols - op.cols // 2, op.cols // 2)
    new = [draw.normal((op.rows, w), op.dtype) for w in widths]
    cache = [torch.empty((2 * op.rows, w), dtype=n.dtype, device=draw.device) for w, n in zip(widths, new)]
    positions = torch.arange(op.rows // 2, op.rows // 2 + op.rows, device=draw.device)

    def call() -> object:
        return cache[0].index_copy_(0, positions, new[0]), cache[1].index_copy_(0, positions, new[1])

    return call


def _in_pages(op: KvAppend, draw: Draw, stored: str = "") -> Closure:
    """`stored`: what the cache holds, where that is not what comes."""
    reshape_and_cache_flash = function("vllm._custom_ops", "reshape_and_cache_flash", "paged writes")
    heads, rest = divmod(op.cols, 2 * HEAD_DIM)
    if rest or not heads:
        raise Unsupported(f"{op.cols} values a token are not whole heads of {HEAD_DIM}")
    pages = -(-2 * op.rows // BLOCK_TOKENS)
    cache = draw.normal((pages, BLOCK_TOKENS, heads, 2 * HEAD_DIM), stored or op.dtype)
    if stored:  # the engine keeps a rounded cache as bytes
        cache = cache.view(torch.uint8)
    keys, values = cache[..., :HEAD_DIM], cache[..., HEAD_DIM:]
    merged = draw.normal((op.rows, 3, heads, HEAD_DIM), op.dtype)  # what the qkv product left
    slots = draw.permutation(pages * BLOCK_TOKENS)[: op.rows]
    one = torch.ones((), device=draw.device)
    return lambda: reshape_and_cache_flash(merged[:, 1], merged[:, 2], keys, values, slots, stored or "auto", one, one)


@builds("kv_append_fp8", gpu=("paged", "torch"))
def kv_append_fp8(op: KvAppendFp8, draw: Draw, implementation: str) -> Closure:
    """New keys and values rounded into an fp8 cache: `torch`, index_copy_ of the rounded values; `paged`, into pages in
    one kernel."""
    if implementation == "paged":
        return _in_pages(op, draw, "fp8")
    new = draw.normal((op.rows, op.cols), op.dtype)
    cache = torch.empty((2 * op.rows, op.cols), dtype=torch.uint8, device=draw.device)
    positions = torch.arange(op.rows // 2, op.rows // 2 + op.rows, device=draw.device)
    return lambda: cache.index_copy_(0, positions, new.to(torch.float8_e4m3fn).view(torch.uint8))


@builds("kv_roll")
def kv_roll(op: KvRoll, draw: Draw, implementation: str) -> Closure:
    """What HF's StaticCache does with a full sliding window: roll, write the last slot, copy back; keys, then
    values."""
    widths = (op.cols - op.cols // 2, op.cols // 2)
    caches = [draw.normal((op.rows, w), op.dtype) for w in widths]
    new = [draw.normal((1, w), op.dtype) for w in widths]

    def call() -> object:
        for cache, last in zip(caches, new):
            rolled = cache.roll(-1, dims=0)
            rolled[-1:] = last
            cache.copy_(rolled)
        return caches

    return call


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


JOINED_DIM = 64


@builds("rope_join")
def rope_join(op: Elementwise, draw: Draw, implementation: str) -> Closure:
    """torch.cat of rotated heads with a rest that is empty, as HF's Phi-3 calls it, for queries and for keys.

    As in `rope_composed` a fifth of the heads are taken as keys.
    """
    dim = JOINED_DIM if op.cols % JOINED_DIM == 0 else op.cols
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
