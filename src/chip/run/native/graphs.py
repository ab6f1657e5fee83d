"""A decode step as one CUDA graph for each batch size in use; a batch between two sizes is padded to the larger.

The graph advances its own inputs: the token drawn is the next one's input, positions grow by one, and where a key goes
follows from the page table. So a step that decodes the same requests as the last needs no upload, unless one of them
got a new page. Such a step is launched before the last one's tokens are read, so that the device never waits for the
host; where a token ends a request after all, the step is computed again without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from chip.run.native.batch import Batch, padded, upload
from chip.run.native.decoder import NativeDecoder
from chip.run.native.requests import NativeRequest

WARM_CALLS = 2  # before a capture: compiles, builds and lets cuBLAS take its workspace
SMALL = (1, 2, 4)
STEP = 8


def size_for(rows: int) -> int:
    """The captured batch size that serves so many rows: 1, 2, 4, then multiples of 8."""
    return next((s for s in SMALL if s >= rows), -(-rows // STEP) * STEP)


class Captured:
    """The step of one batch size, with the tensors it reads and writes."""

    def __init__(self, decoder: NativeDecoder, size: int, width: int) -> None:
        device = decoder.cache.keys.device
        self.page_tokens = decoder.cache.page_tokens
        self.ids, self.positions, self.lengths, self.active = (
            torch.zeros(size, dtype=torch.int32, device=device) for _ in range(4)
        )
        self.table = torch.zeros((size, width), dtype=torch.int32, device=device)
        self.lengths.fill_(1)
        self.decoder = decoder

    def capture(self, side: torch.cuda.Stream, pool: object | None) -> object:
        """Warm up on a stream of its own, as a capture demands; the memory pool, for the next to share."""
        here = torch.cuda.current_stream(self.ids.device)
        side.wait_stream(here)
        with torch.cuda.stream(side):
            for _ in range(WARM_CALLS):
                self.step()
        here.wait_stream(side)
        torch.cuda.synchronize(self.ids.device)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool):
            self.tokens, self.logits = self.step()
        return self.graph.pool()

    def replay(self) -> None:
        self.graph.replay()

    def step(self) -> tuple[torch.Tensor, torch.Tensor]:
        page = self.table.gather(1, (self.positions // self.page_tokens).long()[:, None])[:, 0]
        slots = page * self.page_tokens + self.positions % self.page_tokens
        logits = self.decoder.logits(
            Batch(self.ids, self.positions, slots, self.table, self.lengths, decodes=len(self.ids))
        )
        tokens = logits.argmax(-1)
        self.ids.copy_(tokens)
        self.positions.add_(self.active)
        self.lengths.add_(self.active)
        return tokens, logits

    def load(self, requests: Sequence[NativeRequest]) -> None:
        rows, (size, width) = len(requests), self.table.shape
        spare = size - rows
        packed = upload(
            [
                [r.tokens(r.computed, r.computed + 1)[0] for r in requests] + [0] * spare,
                [r.computed for r in requests] + [0] * spare,
                [r.computed + 1 for r in requests] + [1] * spare,
                [1] * rows + [0] * spare,
                [p for r in requests for p in padded(r.table.pages, width)] + [0] * (spare * width),
            ],
            self.ids.device,
        )
        for to, new in zip((self.ids, self.positions, self.lengths, self.active, self.table.view(-1)), packed):
            to.copy_(new)


Rows = list[tuple[NativeRequest, int, int]]  # request, tokens computed, pages of each


@dataclass
class Flight:
    """A step that was launched: for whom, and where its tokens will be."""

    rows: Rows
    tokens: torch.Tensor  # on the host
    done: torch.cuda.Event | None

    def read(self) -> list[int]:
        if self.done:
            self.done.synchronize()
        return self.tokens.tolist()  # type: ignore[no-any-return]


class DecodeGraphs:
    def __init__(self, decoder: NativeDecoder, max_pages: int) -> None:
        self.decoder, self.max_pages = decoder, max_pages
        self.captured: dict[int, Captured] = {}
        self._pool: object | None = None
        self._side: torch.cuda.Stream | None = None  # one for all, since cuBLAS keeps a workspace for each
        self._loaded: tuple[int, Rows] = (0, [])  # size of the graph whose inputs stand for these rows
        self._ahead: Flight | None = None

    def ready(self, rows: int) -> Captured:
        """The graph that serves so many rows, captured on first use."""
        size = size_for(rows)
        if size not in self.captured:
            made = Captured(self.decoder, size, self.max_pages)
            self._side = self._side or torch.cuda.Stream(made.ids.device)
            self._pool = made.capture(self._side, self._pool)
            self.captured[size] = made
        return self.captured[size]

    def tokens(self, requests: Sequence[NativeRequest], again: bool) -> list[int]:
        """The likeliest token of each; the cache grows by a token each. `again`: these requests have room for one more,
        so the step after this one is launched too."""
        rows = _rows(requests)
        now = self._ahead if self._ahead and self._ahead.rows == rows else self._launch(rows)
        self._ahead = self._launch(_next(rows)) if again else None
        return now.read()

    def logits(self, requests: Sequence[NativeRequest]) -> torch.Tensor:
        """A row for each request; the cache grows by a token each."""
        self._ahead = None
        return self._replay(_rows(requests)).logits[: len(requests)]

    def _launch(self, rows: Rows) -> Flight:
        tokens = self._replay(rows).tokens[: len(rows)]
        if not tokens.is_cuda:
            return Flight(rows, tokens.clone(), None)
        host = torch.empty(len(rows), dtype=tokens.dtype, pin_memory=True)
        host.copy_(tokens, non_blocking=True)
        done = torch.cuda.Event()
        done.record()
        return Flight(rows, host, done)

    def _replay(self, rows: Rows) -> Captured:
        graph = self.ready(len(rows))
        if self._loaded != (size_for(len(rows)), rows):
            graph.load([request for request, _, _ in rows])
        graph.replay()
        self._loaded = (size_for(len(rows)), _next(rows))
        return graph

    def forget(self) -> None:
        """The next step uploads its inputs, whatever was loaded."""
        self._loaded, self._ahead = (0, []), None

    def correct(self, requests: Sequence[NativeRequest], tokens: torch.Tensor) -> None:
        """Tokens that were drawn otherwise than the graph did."""
        self.captured[size_for(len(requests))].ids[: len(requests)].copy_(tokens)


def _rows(requests: Sequence[NativeRequest]) -> Rows:
    return [(r, r.computed, len(r.table.pages)) for r in requests]


def _next(rows: Rows) -> Rows:
    return [(r, computed + 1, pages) for r, computed, pages in rows]
