"""The steps of HF inference as callables: what an engine times, and what capture records.

Each kind has `rewind()` (not part of a step), `prefill()` and `decode()`; a step ends with the argmax of its logits.
With `feed` each token goes in where the last came out. Without it every sequence repeats a random token of its own:
random weights would soon say one and the same token in every row, and experts would be chosen as no text chooses them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol

import torch

WARM_DECODES = 3  # on a side stream before a capture, as torch demands
LEAST_STEPS = 8  # decode steps that can always be replayed, however short the output
# Families that, given no mask, make one of `tokens so far + new ones`: a number that is read from the device, which no
# capture allows. With a mask over the whole cache they read nothing, and their causal mask still hides what is empty.
MAKE_A_MASK = ("opt",)


class Steps(Protocol):
    def rewind(self) -> None: ...
    def prefill(self) -> torch.Tensor: ...
    def decode(self) -> torch.Tensor: ...


def _last_only(model: Any) -> dict[str, int]:
    """Logits of the last token alone, where the family can leave out the others."""
    return {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}


class Eager:
    """transformers as it comes: a DynamicCache that grows with each token."""

    def __init__(self, model: Any, ids: torch.Tensor, feed: bool = False) -> None:
        from transformers import DynamicCache

        self.model, self.ids, self.feed = model, ids, feed
        self.token = ids[:, :1].contiguous()
        self._new_cache: Callable[[], Any] = lambda: DynamicCache(config=model.config)
        self.last_only = _last_only(model)
        self.cache: Any = None

    def rewind(self) -> None:
        self.cache = None

    def prefill(self) -> torch.Tensor:
        self.cache = self._new_cache()
        return self._next_token(self.model(self.ids, use_cache=True, past_key_values=self.cache, **self.last_only))

    def decode(self) -> torch.Tensor:
        return self._next_token(self.model(self.token, use_cache=True, past_key_values=self.cache))

    def _next_token(self, out: Any) -> torch.Tensor:
        token: torch.Tensor = out.logits[:, -1:].argmax(-1)
        if self.feed:
            self.token = token
        return token


class Static:
    """The same over a StaticCache of fixed size: every tensor keeps its address, so that a step can be captured."""

    def __init__(self, model: Any, ids: torch.Tensor, cache_tokens: int, feed: bool = False) -> None:
        from transformers import StaticCache

        self.model, self.ids, self.feed = model, ids, feed
        self.decoder = model  # what a decode step calls: hf-compile puts a compiled one here
        batch, self.prompt = ids.shape
        self.token = ids[:, :1].clone()
        self.position = torch.full((batch, 1), self.prompt, device=ids.device)
        self.positions = torch.arange(self.prompt, device=ids.device)[None].expand(batch, self.prompt)
        self.cache = StaticCache(config=model.config, max_cache_len=cache_tokens)
        self._last = _last_only(model)
        masked = model.config.model_type in MAKE_A_MASK
        self._mask = {"attention_mask": torch.ones(batch, cache_tokens, device=ids.device)} if masked else {}
        self._placed = {"position_ids"} <= set(inspect.signature(model.forward).parameters)

    def rewind(self) -> None:
        self.at(0)

    def at(self, tokens: int, counted: int | None = None) -> None:
        """Pretend that the cache holds so many tokens. `counted`: as Python counts, where a capture branches on it."""
        self.position.fill_(max(tokens, self.prompt))
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(tokens)
            if hasattr(layer, "cumulative_length_int"):
                layer.cumulative_length_int = tokens if counted is None else counted

    def prefill(self) -> torch.Tensor:
        return self._next_token(self._call(self.model, self.ids, self.positions, self._last))

    def decode(self) -> torch.Tensor:
        token = self._next_token(self._call(self.decoder, self.token, self.position, {}))
        self.position.add_(1)
        return token

    def _call(self, model: Any, ids: torch.Tensor, positions: torch.Tensor, more: dict[str, Any]) -> Any:
        placed = {"position_ids": positions} if self._placed else {}
        return model(ids, use_cache=True, past_key_values=self.cache, **placed, **self._mask, **more)

    def _next_token(self, out: Any) -> torch.Tensor:
        token: torch.Tensor = out.logits[:, -1:].argmax(-1)
        if self.feed:
            self.token.copy_(token)
        return token


class Graph:
    """Static steps captured once and replayed: one CUDA graph for the prefill, one for a decode step.

    A sliding window changes what a step runs the moment its cache is full: each such state has a graph of its own.
    """

    def __init__(self, static: Static, output: int) -> None:
        self.static, self.past = static, 0
        self._side = torch.cuda.Stream()  # one for all, since cuBLAS keeps a workspace for each
        if not all(layer.is_initialized for layer in static.cache.layers):
            static.prefill()  # makes the cache's tensors
        self._windows = [layer for layer in static.cache.layers if hasattr(layer, "cumulative_length_int")]
        for layer in self._windows:
            make_capturable(layer)
        self._decodes: dict[tuple[bool, ...], tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        for past in range(static.prompt, static.prompt + max(LEAST_STEPS, output - 1)):
            if self._state(past) not in self._decodes:
                self._decodes[self._state(past)] = self._capture(static.decode, static.prompt, past, WARM_DECODES)
        self._prefill = self._capture(static.prefill, 0, 0, 1)

    def rewind(self) -> None:
        self.static.rewind()

    def prefill(self) -> torch.Tensor:
        graph, token = self._prefill
        graph.replay()
        self.past = self.static.prompt
        return token

    def decode(self) -> torch.Tensor:
        graph, token = self._decodes[self._state(self.past)]
        graph.replay()
        self.past += 1
        return token

    def _state(self, past: int) -> tuple[bool, ...]:
        return tuple({layer.max_cache_len: past >= layer.max_cache_len for layer in self._windows}.values())

    def _capture(
        self, step: Callable[[], torch.Tensor], tokens: int, counted: int, warm_calls: int
    ) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            for _ in range(warm_calls):
                self.static.at(tokens, counted)
                step()
        torch.cuda.current_stream().wait_stream(self._side)
        self.static.at(tokens, counted)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            token = step()
        return graph, token


def make_capturable(layer: Any) -> None:
    """Two things of transformers' sliding layer that a capture cannot bear, done otherwise with the same result.

    Its length is a Python number, which a capture would freeze into the mask: until the window is full, it tells the
    tensor that the other static layers tell. And a full one rolls with an index made on the host, which is a copy.
    """
    update = layer.update

    def full() -> bool:
        return bool(layer.cumulative_length_int >= layer.max_cache_len)

    def length() -> Any:
        return layer.cumulative_length_int if full() else layer.cumulative_length

    def roll(keys: torch.Tensor, values: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not full() or keys.shape[-2] != 1:
            return update(keys, values, *args, **kwargs)
        layer.cumulative_length_int += 1
        for cached, new in ((layer.keys, keys), (layer.values, values)):
            rolled = cached.roll(-1, dims=-2)
            rolled[:, :, -1:] = new
            cached.copy_(rolled)
        return layer.keys, layer.values

    layer.get_seq_length, layer.update = length, roll
