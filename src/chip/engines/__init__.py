"""Engines: how a runtime behaves, one folder each, found by listing this one (`hf-eager` lives in hf_eager/).

Each is a module with the names that `Engine` has. A name in capitals that it leaves out has the value given there.
Files beside the folders are what engines share.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cache, lru_cache
from importlib import import_module
from typing import Any, NamedTuple, Protocol, cast

from chip import listing
from chip.dtypes import Precision
from chip.engines.calibration import CalibrationModel
from chip.engines.options import Settings, no_options
from chip.engines.playing import Played, Room, Weighted
from chip.engines.terms import Terms
from chip.engines.versions import EngineVersion
from chip.models.decoder import Decoder
from chip.suggest import get_close_matches
from chip.timeline import Timeline
from chip.types import ChipError, Program, Scenario, Step


class Serves(NamedTuple):
    """What an engine can run at all. A question beyond it is refused, not answered as if it could."""

    architectures: tuple[str, ...] = ()  # () for all that CHIP knows
    dtypes: tuple[str, ...] = ()  # () for all
    gpus: int = 0  # at most; 0 for any number
    without: tuple[str, ...] = ()  # architectures that it cannot run, ...
    why: str = ""  # ... for this reason

    def refusal(self, engine: str, architecture: str, dtype: str, gpus: int) -> str:
        """One line that says what it cannot run, with the remedy; "" where it can."""
        known = self.architectures
        if architecture in self.without or (known and architecture not in known):
            why = self.why or f"it runs {', '.join(known)}"
            return f"{engine} cannot run {architecture[:60]}: {why}; choose another --engine"
        if self.dtypes and dtype not in self.dtypes:
            formats = " or ".join(self.dtypes)
            return f"{engine} cannot run {dtype} weights: choose --dtype {formats}, or another --engine"
        if self.gpus and gpus > self.gpus:
            return f"{engine} runs on {self.gpus} GPU, not on {gpus}: choose another --engine"
        return ""


class Engine(Protocol):
    """Everything that predictions ask of an engine. docs/engines.md explains each part."""

    NAME: str
    TITLE: str  # what exactly is predicted under that name
    TERMS: tuple[str, ...]  # what it and its host add to a step (`chip.engines.terms`)
    CAVEAT: str = ""  # what its predictions leave out, said with each
    COPIES_KEYS: tuple[str, ...] = ()  # architectures whose keys its cache holds once for every head that shares them
    KERNELS: Mapping[str, int] = {}  # that it launches of an operator, where that differs from the operator's own count
    OVERLAPS_STEPS: bool = False  # whether the host prepares a step while the device runs the one before
    QUANTISED_CACHE: bool = False  # whether the KV cache takes the format that a quantised config names
    OPTIONS: Collection[str] = ()  # names of its settings that predictions know
    OPTIONS_ELSEWHERE: Mapping[str, str] = {}  # settings that are fields of a question
    CALIBRATION: tuple[CalibrationModel, ...] = ()  # the small models that its terms are measured on
    SERVES: Serves = Serves()  # architectures, precisions and numbers of GPUs that it can run
    VERSIONS: tuple[EngineVersion, ...] = ()  # what older versions do otherwise, newest first

    def runs_as(self, capability: float, options: Mapping[str, str]) -> Mapping[str, str]:
        """The measured kernel that it runs of each operator, on a GPU of such a compute capability."""

    def options(self, settings: Settings, memory_bytes: float) -> Any:
        """What it is told, by its own names, with its defaults on a GPU of this size for all else. It comes back as
        `options` below. Left out by an engine that predictions know no setting of."""

    def prefill(self, scenario: Scenario, options: Any) -> Weighted:
        """The steps until all first tokens, and how many real steps each stands for."""

    def decode(self, scenario: Scenario, options: Any) -> Step:
        """The first decode step. It stands for the mean of all."""

    def rewrite(self, program: Program, decode: bool, architecture: str = ...) -> Program:
        """What it launches instead of the canonical operators: its fusions, its own kernels."""

    def play(self, t: Timeline, step: Played, terms: Terms) -> None:
        """Lays a step on the timeline: the queue of the host and that of the device."""

    def room(self, scenario: Scenario, options: Any) -> Room:
        """Its memory rules."""

    def peak_bytes(self, d: Decoder, p: Precision, s: Scenario, room: Room) -> float:
        """The most that it holds at once beside the weights and the whole cache."""

    def cache_tokens(
        self, layers: Mapping[int, int], longest: int, token_bytes: float, room_bytes: float, options: Any
    ) -> int:
        """How many tokens a pool of so many bytes holds; of engines whose `room` has a pool."""


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
    vars(engine).setdefault("options", no_options)
    return cast(Engine, engine)
