"""Engines: how a runtime behaves, one folder each, found by listing this one (`hf-eager` lives in hf_eager/).

An engine has
  NAME, TITLE          what it is called, and what exactly is predicted under that name
  COPIES_KEYS          architectures whose keys and values its cache holds once for every head that shares them
  CAVEAT               what its predictions leave out, said with each; "" for nothing
  TERMS                what it and its host add to a step (`chip.engines.terms`)
  KERNELS              kernels it launches of an operator, where that differs from the operator's own count
  OVERLAPS_STEPS       whether the host prepares a step while the device runs the one before
  CALIBRATION          the small models that its terms are measured on
  SERVES               architectures, precisions and numbers of GPUs that it can run (`chip.engines.serves`)
  VERSIONS             what older versions do otherwise, newest first (`chip.engines.versions`); () for nothing known
and the functions
  runs_as(capability, options)                which measured kernel it runs of each operator on such a GPU
  prefill(scenario, memory_bytes)             steps until the first tokens, and how often each stands
  decode(scenario, memory_bytes)              the first decode step, which stands for the mean of all
  rewrite(program, decode, architecture)      what it really launches
  play(timeline, step, terms)                 a step on the two queues of host and device
  memory(...)                                 what its memory rules add; see `chip.predict.memory`
Files beside the folders are what engines share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from importlib import import_module
from typing import Protocol, cast

from chip import listing
from chip.engines.calibration import CalibrationModel
from chip.engines.playing import Played, Room, Weighted
from chip.engines.serves import Serves
from chip.engines.terms import Terms
from chip.engines.versions import EngineVersion
from chip.suggest import get_close_matches
from chip.timeline import Timeline
from chip.types import ChipError, Program, Scenario, Step

SHARED = ("hf",)  # folders that are no engine


class Engine(Protocol):
    NAME: str
    TITLE: str
    COPIES_KEYS: tuple[str, ...]
    CAVEAT: str
    TERMS: tuple[str, ...]
    KERNELS: Mapping[str, int]
    OVERLAPS_STEPS: bool
    CALIBRATION: tuple[CalibrationModel, ...]
    SERVES: Serves
    VERSIONS: tuple[EngineVersion, ...]

    def runs_as(self, capability: float, options: Mapping[str, str]) -> Mapping[str, str]: ...
    def prefill(self, scenario: Scenario, memory_bytes: float) -> Weighted: ...
    def decode(self, scenario: Scenario, memory_bytes: float) -> Step: ...
    def rewrite(self, program: Program, decode: bool, architecture: str = ...) -> Program: ...
    def play(self, t: Timeline, step: Played, terms: Terms) -> None: ...
    def room(self, scenario: Scenario, memory_bytes: float) -> Room: ...


@lru_cache(maxsize=1)
def names() -> tuple[str, ...]:
    found = (name for name in listing.packages(__path__) if name not in SHARED)
    return tuple(sorted(name.replace("_", "-") for name in found))


@cache
def get(name: str) -> Engine:
    if name not in names():
        near: Iterable[str] = get_close_matches(str(name)[:80], names(), 1)
        hint = "".join(f"did you mean {n}? " for n in near)
        raise ChipError(f"no engine {str(name)[:80]!r}; {hint}known: {', '.join(names())}")
    return cast(Engine, import_module(f"chip.engines.{name.replace('-', '_')}"))
