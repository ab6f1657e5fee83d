"""Rows gathered, the next token chosen, keys and values stored."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.engines.vllm.options import BLOCK_TOKENS
from chip.lab.measure.build import Closure, Draw, Unsupported, builds
from chip.lab.measure.vllm_ops import function
from chip.ops.moves import Embedding, KvAppend, KvAppendFp8, KvRoll, Sampling

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
