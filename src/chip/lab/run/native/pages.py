"""The KV cache in pages of a fixed number of tokens: where keys and values lie, and which pages are free."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from chip.lab.run.native.spec import DecoderSpec

PAGE_TOKENS = 64  # one tile of keys of our attention kernels: 16 KiB a head in bf16
SPARE = 0  # the page that padding rows of a graph write to; no request holds it


class KvCache:
    """keys[layer] and values[layer]: pages x kv_heads x page_tokens x head_dim. Zeros at first: what is masked is read
    all the same, and must be finite."""

    def __init__(
        self, spec: DecoderSpec, pages: int, page_tokens: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (spec.layers, pages, spec.kv_heads, page_tokens, spec.head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.page_tokens = page_tokens


@dataclass
class PageTable:
    """Pages of one request, in the order of its tokens."""

    pages: list[int] = field(default_factory=list)


class Allocator:
    """Hands out pages and takes them back; the last returned goes first, since it may still be in cache."""

    def __init__(self, pages: int, page_tokens: int) -> None:
        self.page_tokens, self.total = page_tokens, pages - 1  # without the spare one
        self._free = list(range(pages - 1, SPARE, -1))

    @property
    def free(self) -> int:
        return len(self._free)

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_tokens)

    def grow(self, table: PageTable, tokens: int) -> bool:
        """Room for `tokens` in all, or False and nothing changed."""
        missing = self.pages_for(tokens) - len(table.pages)
        if missing > len(self._free):
            return False
        table.pages += [self._free.pop() for _ in range(missing)]
        return True

    def release(self, table: PageTable) -> None:
        self._free += reversed(table.pages)
        table.pages.clear()
