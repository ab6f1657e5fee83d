"""Engines: how a runtime behaves, one file each, found by listing this folder (`hf-eager` lives in hf_eager.py).

Each has NAME, TITLE, LATENT_KV (does its cache hold MLA latents), RUNS_AS (which measured implementation it runs of
each operator; of attention, `attention_decode` for single tokens), KERNELS (how many it launches of an operator, where
that differs from the operator's own count), CAVEAT (what its predictions leave out, said with
each; "" for nothing), and the functions
`prefill(scenario, memory_bytes)` and `decode(scenario, memory_bytes, panels, windows)` -> steps with how often each
stands (`panels`: how finely the growing context is integrated; `windows`: the model's sliding ones), and
`rewrite(program, decode, architecture)` -> what it really launches, of a model of no family in particular without the
last.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib import import_module
from typing import Protocol, cast

from chip.types import ChipError, Program, Scenario, Step

Weighted = tuple[tuple[Step, float], ...]  # steps, and how many steps of the schedule each stands for


class Engine(Protocol):
    NAME: str
    TITLE: str
    LATENT_KV: bool
    RUNS_AS: Mapping[str, str]
    KERNELS: Mapping[str, int]
    CAVEAT: str

    def prefill(self, scenario: Scenario, memory_bytes: float) -> Weighted: ...
    def decode(
        self, scenario: Scenario, memory_bytes: float, panels: int = ..., windows: Collection[int] = ...
    ) -> Weighted: ...
    def rewrite(self, program: Program, decode: bool, architecture: str = ...) -> Program: ...


NOT_ENGINES = ("fuse", "context", "hf_families", "hf_ops")


@lru_cache(maxsize=1)
def names() -> tuple[str, ...]:
    return tuple(sorted(m.name.replace("_", "-") for m in pkgutil.iter_modules(__path__) if m.name not in NOT_ENGINES))


@cache
def get(name: str) -> Engine:
    if name not in names():
        near: Iterable[str] = get_close_matches(str(name)[:80], names(), 1)
        hint = "".join(f"did you mean {n}? " for n in near)
        raise ChipError(f"no engine {str(name)[:80]!r}; {hint}known: {', '.join(names())}")
    return cast(Engine, import_module(f"chip.engines.{name.replace('-', '_')}"))
