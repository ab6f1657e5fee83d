"""One step's inputs as tensors: rows of one new token each (decodes) first, then chunks of prompts."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from chip.lab.kernels.triton.prefill_attention import tiles_of
from chip.lab.run.native.pages import SPARE
from chip.lab.run.native.scheduler import StepShare


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
    tokens_of: list[list[torch.Tensor]] = [[], [], []]  # ids, positions, slots, a tensor for each chunk
    singles: list[tuple[int, int, int]] = []  # the same of decodes
    chunks: list[Chunk] = []
    ends: list[int] = []
    rows = 0
    for share in shares:
        request, past, end = share.request, share.request.computed, share.request.computed + share.new
        if share.new == 1:
            slot = request.table.pages[past // page_tokens] * page_tokens + past % page_tokens
            singles.append((request.tokens(past, end)[0], past, slot))
        else:  # thousands of tokens: no loop in Python goes over them
            chunks.append(Chunk(rows, share.new, past))
            where = torch.arange(past, end, dtype=torch.int32)
            places = ints(request.table.pages)[where // page_tokens] * page_tokens + where % page_tokens
            for part, new in zip(tokens_of, (ints(request.tokens(past, end)), where, places)):
                part.append(new)
        rows += share.new
        if share.samples:
            ends.append(rows - 1)
    if spare := max(0, tokens - rows):
        chunks, rows = [Chunk(0, tokens, shares[0].request.computed)], tokens
        for part, filler in zip(tokens_of, (0, 0, SPARE * page_tokens)):
            part.append(torch.full((spare,), filler, dtype=torch.int32))
    decodes = [ints(part) for part in zip(*singles)] or [ints([])] * 3
    width = max(width, *(len(s.request.table.pages) for s in shares))
    table = [p for s in shares for p in padded(s.request.table.pages, width)]
    lengths = [s.request.computed + s.new for s in shares]
    tiles = tiles_of([(c.first, c.new, c.past) for c in chunks])
    each = [torch.cat([first, *part]) for first, part in zip(decodes, tokens_of)]
    packed, whole = upload([*each, *map(ints, (table, lengths, ends, tiles))], device)
    return Batch(
        ids=packed[0],
        positions=packed[1],
        slots=packed[2],
        table=packed[3].view(len(shares), width),
        lengths=packed[4],
        decodes=len(shares) - len(chunks),
        chunks=tuple(chunks),
        tiles=packed[6].view(-1, 4) if chunks else None,
        last=packed[5] if len(ends) < rows else None,
        packed=whole,
    )


def padded(pages: list[int], width: int) -> list[int]:
    return pages + [SPARE] * (width - len(pages))


ALIGN = 4  # int32 elements: each part starts at a multiple of 16 bytes


def ints(numbers: Sequence[int]) -> torch.Tensor:
    return torch.frombuffer(array("i", numbers), dtype=torch.int32) if numbers else torch.empty(0, dtype=torch.int32)


def upload(parts: Iterable[torch.Tensor], device: torch.device) -> tuple[list[torch.Tensor], torch.Tensor]:
    """int32 tensors on the device, in one copy; and that copy."""
    aligned, spans, at = [], [], 0
    for part in parts:
        spans.append((at, len(part)))
        aligned += [part, torch.zeros(-len(part) % ALIGN, dtype=torch.int32)]
        at += len(part) + len(aligned[-1])
    host = torch.cat(aligned)
    if device.type == "cuda":
        host = host.pin_memory()
    there = host.to(device, non_blocking=True)
    return [there[start : start + count] for start, count in spans], there
