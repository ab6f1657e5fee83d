"""Steps as CUDA graphs: decodes, one graph for each batch size in use, and prompts that are alone in their step, one
for each length in use. What lies between two sizes is padded to the larger.

The graph of a decode step advances its own inputs: the token drawn is the next one's input, positions grow by one, and
where a key goes follows from the page table. So a step that decodes the same requests as the last needs no upload,
unless one of them got a new page. Such a step is launched before the last one's tokens are read, so that the device
never waits for the host; where a token ends a request after all, the step is computed again without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from chip.lab.run.native.batch import Batch, build, ints, padded, upload
from chip.lab.run.native.decoder import NativeDecoder
from chip.lab.run.native.requests import NativeRequest
from chip.lab.run.native.scheduler import StepShare

WARM_CALLS = 2  # before a capture: compiles, builds and lets cuBLAS take its workspace
SMALL, STEP = (1, 2, 4), 8  # batch sizes: these, then multiples
SHORT, TOKENS = (16, 32, 64), 128  # lengths of prompts: these, then multiples
MOST_TOKENS = 2048  # longer prompts keep the device busy while the host launches them


def size_for(rows: int) -> int:
    """The captured batch size that serves so many rows: 1, 2, 4, then multiples of 8."""
    return next((s for s in SMALL if s >= rows), -(-rows // STEP) * STEP)


def length_for(tokens: int) -> int:
    return next((s for s in SHORT if s >= tokens), -(-tokens // TOKENS) * TOKENS)


class Capturer:
    """Captures steps, all in one memory pool and warmed up on one stream, since cuBLAS keeps a workspace for each."""

    def __init__(self) -> None:
        self._pool: object | None = None
        self._side: torch.cuda.Stream | None = None

    def capture(self, step: Callable[[], Any], device: torch.device) -> tuple[torch.cuda.CUDAGraph, Any]:
        self._side = self._side or torch.cuda.Stream(device)
        here = torch.cuda.current_stream(device)
        self._side.wait_stream(here)
        with torch.cuda.stream(self._side):
            for _ in range(WARM_CALLS):
                step()
        here.wait_stream(self._side)
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = step()
        self._pool = graph.pool()
        return graph, result


class Captured:
    """The decode step of one batch size, with the tensors it reads and writes."""

    def __init__(self, decoder: NativeDecoder, size: int, width: int) -> None:
        device = decoder.cache.keys.device
        self.page_tokens = decoder.cache.page_tokens
        self.ids, self.positions, self.lengths, self.active = (
            torch.zeros(size, dtype=torch.int32, device=device) for _ in range(4)
        )
        self.table = torch.zeros((size, width), dtype=torch.int32, device=device)
        self.lengths.fill_(1)
        self.decoder = decoder

    def capture(self, by: Capturer) -> None:
        self.graph, (self.tokens, self.logits) = by.capture(self.step, self.ids.device)

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
        packed, _ = upload(
            map(
                ints,
                (
                    [r.tokens(r.computed, r.computed + 1)[0] for r in requests] + [0] * spare,
                    [r.computed for r in requests] + [0] * spare,
                    [r.computed + 1 for r in requests] + [1] * spare,
                    [1] * rows + [0] * spare,
                    [p for r in requests for p in padded(r.table.pages, width)] + [0] * (spare * width),
                ),
            ),
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
    def __init__(self, decoder: NativeDecoder, max_pages: int, by: Capturer) -> None:
        self.decoder, self.max_pages, self._by = decoder, max_pages, by
        self.captured: dict[int, Captured] = {}
        self._loaded: tuple[int, Rows] = (0, [])  # size of the graph whose inputs stand for these rows
        self._ahead: Flight | None = None

    def ready(self, rows: int) -> Captured:
        """The graph that serves so many rows, captured on first use."""
        size = size_for(rows)
        if size not in self.captured:
            self.captured[size] = Captured(self.decoder, size, self.max_pages)
            self.captured[size].capture(self._by)
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


class PromptGraphs:
    def __init__(self, decoder: NativeDecoder, max_pages: int, by: Capturer) -> None:
        page = decoder.cache.page_tokens
        self.decoder, self._by, self._width = decoder, by, max_pages + -(-MOST_TOKENS // page)
        self.captured: dict[int, tuple[torch.Tensor, torch.cuda.CUDAGraph, torch.Tensor]] = {}

    def takes(self, shares: Sequence[StepShare]) -> bool:
        """A prompt to its end, alone, through kernels that learn its length on the device."""
        ours = self.decoder.launches.by["prefill_attention"].by != "torch"
        return ours and len(shares) == 1 and shares[0].samples and 1 < shares[0].new <= MOST_TOKENS

    def logits(self, share: StepShare) -> torch.Tensor:
        cache, size = self.decoder.cache, length_for(share.new)
        new = build([share], cache.page_tokens, cache.keys.device, size, self._width)
        assert new.packed is not None
        if size not in self.captured:
            self.captured[size] = (new.packed, *self._by.capture(lambda: self.decoder.logits(new), new.packed.device))
        inputs, graph, logits = self.captured[size]
        inputs.copy_(new.packed)
        graph.replay()
        return logits


def _rows(requests: Sequence[NativeRequest]) -> Rows:
    return [(r, r.computed, len(r.table.pages)) for r in requests]


def _next(rows: Rows) -> Rows:
    return [(r, computed + 1, pages) for r, computed, pages in rows]
