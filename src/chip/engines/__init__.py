"""Engines: how a runtime behaves, one folder each, found by listing this one (`hf-eager` lives in hf_eager/).

Each is a module with what `Engine` has; what it does not say is as said there. Files beside the folders are what
engines share.
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


class Engine(Protocol):
    NAME: str
    TITLE: str  # what exactly is predicted under that name
    TERMS: tuple[str, ...]  # what it and its host add to a step (`chip.engines.terms`)
    CAVEAT: str = ""  # what its predictions leave out, said with each
    COPIES_KEYS: tuple[str, ...] = ()  # architectures whose keys its cache holds once for every head that shares them
    KERNELS: Mapping[str, int] = {}  # that it launches of an operator, where that differs from the operator's own count
    OVERLAPS_STEPS: bool = False  # whether the host prepares a step while the device runs the one before
    CALIBRATION: tuple[CalibrationModel, ...] = ()  # the small models that its terms are measured on
    SERVES: Serves = Serves()  # architectures, precisions and numbers of GPUs that it can run
    VERSIONS: tuple[EngineVersion, ...] = ()  # what older versions do otherwise, newest first

    def runs_as(self, capability: float, options: Mapping[str, str]) -> Mapping[str, str]:
        """Which measured kernel it runs of each operator on such a GPU."""

    def prefill(self, scenario: Scenario, memory_bytes: float) -> Weighted:
        """Steps until the first tokens, and how often each stands."""

    def decode(self, scenario: Scenario, memory_bytes: float) -> Step:
        """The first decode step, which stands for the mean of all."""

    def rewrite(self, program: Program, decode: bool, architecture: str = ...) -> Program:
        """What it really launches."""

    def play(self, t: Timeline, step: Played, terms: Terms) -> None:
        """A step on the two queues of host and device."""

    def room(self, scenario: Scenario, memory_bytes: float) -> Room:
        """Its memory rules."""


@lru_cache(maxsize=1)
def names() -> tuple[str, ...]:
    return tuple(sorted(name.replace("_", "-") for name in listing.packages(__path__)))


@cache
def get(name: str) -> Engine:
    if name not in names():
        near: Iterable[str] = get_close_matches(str(name)[:80], names(), 1)
        hint = "".join(f"did you mean {n}? " for n in near)
        raise ChipError(f"no engine {str(name)[:80]!r}; {hint}known: {', '.join(names())}")
    engine = import_module(f"chip.engines.{name.replace('-', '_')}")
    for what in Engine.__annotations__.keys() & vars(Engine).keys():
        vars(engine).setdefault(what, getattr(Engine, what))
    return cast(Engine, engine)
