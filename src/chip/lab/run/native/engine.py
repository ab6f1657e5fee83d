"""Requests in, tokens out: schedule a step, compute it, draw tokens, hand them out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from chip.engines.native import MOST_REQUESTS, STEP_TOKENS
from chip.lab.run import model
from chip.lab.run.native import batch, sampler, spec, weights
from chip.lab.run.native.decoder import NativeDecoder
from chip.lab.run.native.graphs import Capturer, DecodeGraphs, PromptGraphs
from chip.lab.run.native.launches import Launches
from chip.lab.run.native.pages import PAGE_TOKENS, Allocator, KvCache
from chip.lab.run.native.requests import NativeRequest
from chip.lab.run.native.scheduler import Scheduler, StepShare
from chip.types import ChipError

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
KV_SHARE = 0.9  # of a GPU's memory that is free once the weights are there
KV_CPU_BYTES = 1 << 30


def default_kernels(device_kind: str) -> str:
    """Ours need a GPU; Triton's interpreter is for tests, and is asked for by name."""
    return "torch" if device_kind == "cpu" else "chip"


@dataclass(frozen=True, slots=True)
class NativeSettings:
    kernels: str = "chip"
    dtype: str = "bf16"
    device: str = "cuda:0"
    max_context: int = 4096  # prompt + output of the longest request
    max_rows: int = MOST_REQUESTS  # requests computed at once
    max_step_tokens: int = STEP_TOKENS  # of one step; longer prompts are computed in chunks
    page_tokens: int = PAGE_TOKENS
    kv_tokens: int = 0  # room of the KV cache; 0: what memory holds, at most max_rows x max_context
    graphs: bool = True  # decodes and single prompts as CUDA graphs, where there is a GPU
    only: frozenset[str] | None = None  # see Launches
    overlap: bool = True  # see Launches


class NativeEngine:
    def __init__(
        self,
        config: Mapping[str, Any],
        where: str,
        settings: NativeSettings,
        folder: Path | None = None,
        loaded: weights.Weights | None = None,
    ) -> None:
        """Weights from a folder, or `loaded` before, or random."""
        if settings.dtype not in DTYPES:
            raise ChipError(f"--dtype {settings.dtype}: native computes {', '.join(DTYPES)}")
        for name in ("max_context", "max_rows", "max_step_tokens", "page_tokens"):
            if getattr(settings, name) < 1:
                raise ChipError(f"{name} must be at least 1, got {getattr(settings, name)}")
        self.settings, self.device, dtype = settings, torch.device(settings.device), DTYPES[settings.dtype]
        self.spec = spec.read(config, where)
        if folder and config.get("quantization_config"):
            raise ChipError(
                f"{where}: quantization_config: native reads bf16, fp16 and fp32 weights, not quantised ones"
            )
        if loaded is None:
            model.refuse_model(config, where, settings.dtype, settings.device, folder is not None)
        source = weights.Files(folder, self.spec) if folder else weights.Random(self.device)
        context = min(settings.max_context, self.spec.positions)
        try:
            with torch.inference_mode():
                self.weights = loaded or weights.load(self.spec, source, dtype, self.device)
                launches = Launches(
                    settings.kernels,
                    self.spec,
                    dtype,
                    self.device,
                    settings.page_tokens,
                    settings.only,
                    settings.overlap,
                )
                pages = self._pages(context, dtype.itemsize)
                cache = KvCache(self.spec, pages, settings.page_tokens, dtype, self.device)
        except torch.OutOfMemoryError:
            raise ChipError(
                f"{where}: out of memory on {settings.device} while loading; choose a smaller model"
            ) from None
        self.allocator = Allocator(pages, settings.page_tokens)
        self.scheduler = Scheduler(self.allocator, context, settings.max_rows, settings.max_step_tokens)
        self.decoder = NativeDecoder(self.spec, self.weights, cache, launches)
        self.graphs: DecodeGraphs | None = None
        self.prompts: PromptGraphs | None = None
        if settings.graphs and self.device.type == "cuda":
            longest, by = self.allocator.pages_for(context), Capturer()
            self.graphs = DecodeGraphs(self.decoder, longest, by)
            self.prompts = PromptGraphs(self.decoder, longest, by)
        self.steps = 0

    def _pages(self, context: int, element_bytes: int) -> int:
        """Pages of the cache, the spare one among them."""
        s = self.settings
        page_bytes = s.page_tokens * self.spec.kv_bytes_per_token(element_bytes)
        if s.kv_tokens:
            return 1 + -(-s.kv_tokens // s.page_tokens)
        free = torch.cuda.mem_get_info(self.device)[0] * KV_SHARE if self.device.type == "cuda" else KV_CPU_BYTES
        wanted = s.max_rows * -(-context // s.page_tokens)
        pages = min(wanted, int(free) // page_bytes)
        if pages < 1:
            raise ChipError(
                f"no room for a KV cache on {s.device}: a page takes {page_bytes} bytes; choose a smaller model"
            )
        return 1 + pages

    @property
    def launches(self) -> Launches:
        return self.decoder.launches

    def add(self, request: NativeRequest) -> None:
        for token in (min(request.prompt, default=0), max(request.prompt, default=0)):
            if not 0 <= token < self.spec.vocab:
                raise ChipError(f"{request.name}: token {token} is not in the vocabulary of {self.spec.vocab}")
        self.scheduler.add(request)

    def step(self) -> list[NativeRequest]:
        """One step of whatever is due; the requests that it finished."""
        shares = self.scheduler.next_step()
        if not shares:
            return []
        try:
            with torch.inference_mode():
                tokens = self._tokens(shares)
        except torch.OutOfMemoryError:
            new = sum(s.new for s in shares)
            raise ChipError(f"out of memory in a step of {new} tokens; lower --step-tokens or --kv-tokens") from None
        self.steps += 1
        sampled = [s.request for s in shares if s.samples]
        for share in shares:
            share.request.computed += share.new
        for request, token in zip(sampled, tokens):
            request.accept(token, self.spec.eos)
        finished = [r for r in sampled if r.finish]
        for request in finished:
            self.scheduler.finish(request)
        return finished

    def run(self, requests: Iterable[NativeRequest] = ()) -> None:
        """Until every request is finished."""
        for request in requests:
            self.add(request)
        while not self.scheduler.idle:
            self.step()

    def _tokens(self, shares: list[StepShare]) -> list[int]:
        """The next token of each share that samples one."""
        sampled = [s.request for s in shares if s.samples]
        if self.graphs and len(sampled) == len(shares) and all(s.new == 1 for s in shares):
            if sampler.greedy(sampled):
                return self.graphs.tokens(sampled, again=self._go_on(sampled))
            tokens = sampler.choose(self.graphs.logits(sampled), sampled)
            self.graphs.correct(sampled, tokens)
        elif self.prompts and self.prompts.takes(shares):
            tokens = sampler.choose(self.prompts.logits(shares[0]), sampled)
        else:
            logits = self.decoder.logits(batch.build(shares, self.settings.page_tokens, self.device))
            tokens = sampler.choose(logits, sampled)
        return tokens.tolist() if sampled else []

    def _go_on(self, requests: list[NativeRequest]) -> bool:
        """Whether these very requests come next, unless one of them draws an end token: nobody waits, none reaches its
        length with this step, and each has a place for its next key."""
        room = self.settings.page_tokens
        return not self.scheduler.waiting and all(
            len(r.output) + 1 < r.sampling.max_tokens and r.computed + 2 <= room * len(r.table.pages) for r in requests
        )
