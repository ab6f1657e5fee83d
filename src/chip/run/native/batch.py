"""One step's inputs as tensors: rows of one new token each (decodes) first, then chunks of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from chip.kernels.triton.prefill_attention import tiles_of
from chip.run.native.pages import SPARE
from chip.run.native.scheduler import StepShare


@dataclass(frozen=True, slots=True)
class Chunk:
    """`new` tokens of one prompt from row `first` on, after `past` tokens in the cache."""

    first: int
    new: int
    past: int


@dataclass(slots=True)
class Batch:
    """All tensors are int32. Sequences are the rows of `table` and `lengths`: decodes first, then `chunks`."""

    ids: torch.Tensor  # of each token
    positions: torch.Tensor
    slots: torch.Tensor  # where its key and value go: page x page_tokens + place
    table: torch.Tensor  # sequences x pages
    lengths: torch.Tensor  # tokens of each sequence in the cache after this step
    decodes: int
    chunks: tuple[Chunk, ...] = ()
    tiles: torch.Tensor | None = None  # see prefill_attention.tiles_of
    last: torch.Tensor | None = None  # rows whose logits are wanted; None: all
    packed: torch.Tensor | None = None  # all of the above, one after another


def build(
    shares: Sequence[StepShare], page_tokens: int, device: torch.device, tokens: int = 0, width: int = 0
) -> Batch:
    """`tokens`: a single chunk is computed as if it went on to so many; `width`: of the table, at least."""
    ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    last: list[int] = []
    chunks: list[Chunk] = []
    for share in shares:
        request, past = share.request, share.request.computed
        if share.new > 1:
            chunks.append(Chunk(len(ids), share.new, past))
        ids += request.tokens(past, past + share.new)
        where = range(past, past + share.new)
        positions += where
        slots += [request.table.pages[p // page_tokens] * page_tokens + p % page_tokens for p in where]
        if share.samples:
            last.append(len(ids) - 1)
    if spare := max(0, tokens - len(ids)):
        chunks = [Chunk(0, tokens, shares[0].request.computed)]
        ids, positions, slots = ids + [0] * spare, positions + [0] * spare, slots + [SPARE * page_tokens] * spare
    width = max(width, *(len(s.request.table.pages) for s in shares))
    table = [p for s in shares for p in padded(s.request.table.pages, width)]
    lengths = [s.request.computed + s.new for s in shares]
    tiles = tiles_of([(c.first, c.new, c.past) for c in chunks])
    packed, whole = upload([ids, positions, slots, table, lengths, last, tiles], device)
    return Batch(
        ids=packed[0],
        positions=packed[1],
        slots=packed[2],
        table=packed[3].view(len(shares), width),
        lengths=packed[4],
        decodes=len(shares) - len(chunks),
        chunks=tuple(chunks),
        tiles=packed[6].view(-1, 4) if chunks else None,
        last=packed[5] if len(last) < len(ids) else None,
        packed=whole,
    )


def padded(pages: list[int], width: int) -> list[int]:
    return pages + [SPARE] * (width - len(pages))


ALIGN = 4  # int32 elements: each part starts at a multiple of 16 bytes


def upload(parts: Sequence[Sequence[int]], device: torch.device) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Lists of whole numbers as int32 on the device, in one copy; and that copy."""
    flat: list[int] = []
    spans = []
    for part in parts:
        spans.append((len(flat), len(part)))
        flat += part
        flat += [0] * (-len(flat) % ALIGN)
    host = torch.tensor(flat, dtype=torch.int32)
    if device.type == "cuda":
        host = host.pin_memory()
    there = host.to(device, non_blocking=True)
    return [there[start : start + count] for start, count in spans], there
