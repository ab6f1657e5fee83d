"""Engines: how a runtime behaves, one folder each, found by listing this one (`hf-eager` lives in hf_eager/).

A folder's module has ENGINE, an instance of a class derived from `Engine`. Files beside the folders are what engines
share. docs/engines.md explains each part.
"""

from __future__ import annotations

import pkgutil
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, lru_cache, partial
from importlib import import_module
from typing import Any, NamedTuple

from chip.decoders.decoder import Decoder
from chip.decoders.families import deepseek_v4, hybrid, inkling
from chip.decoders.formats import WeightFormat
from chip.dtypes import Precision
from chip.engines.calibration import CalibrationModel
from chip.engines.formats import GpuFormats, widened_on_load
from chip.engines.memory import Load, Memory, Room, sequence_bytes, used
from chip.engines.options import Limits, Settings, with_settings
from chip.engines.server import ServerCost
from chip.engines.timeline import LiveScheduler, Played, Terms, Timeline, Weighted
from chip.types import ChipError, HardwareSpec, Program, Scenario, Seq, Step

# Whose layers keep a state, or a cache that no other model has
STATES = (*hybrid.ARCHITECTURES, *deepseek_v4.ARCHITECTURES, *inkling.ARCHITECTURES)


DESKTOP = 12.0  # compute capability of Blackwell on desks, which lacks what needs NVSwitch


class EngineVersion(NamedTuple):
    """What holds from version `since` on."""

    since: str = "0"
    overlaps_steps: bool = False  # whether the host prepares a step while the device runs the one before
    hopper_attention: str = ""  # the attention kernels that it runs on a Hopper GPU
    beside_tokens: int = 0  # in steps of up to so many tokens shared experts run beside the routed, on a second stream
    source: str = ""  # "" where nothing is known by version
    reduces_and_norms: float = (
        0.0  # from this compute capability on all-reduce and norm are one kernel in decodes; 0: no
    )

    def on(self, capability: float) -> EngineVersion:
        """The same on a GPU of such a compute capability, 0 for other vendors: only NVIDIA's get the second stream, and
        its data-centre GPUs the kernel that reduces and norms."""
        known = self if capability else self._replace(beside_tokens=0)
        fused = 0 < self.reduces_and_norms <= capability < DESKTOP
        return known._replace(reduces_and_norms=capability if fused else 0.0)


class Needs(NamedTuple):
    """From version `since` on (or its CUDA wheels), NVIDIA GPUs of at least this compute capability."""

    since: str
    capability: str
    source: str


class Serves(NamedTuple):
    """What an engine can run at all. A question beyond it is refused, not answered as if it could."""

    architectures: tuple[str, ...] = ()  # () for all that CHIP knows
    dtypes: tuple[str, ...] = ()  # () for all
    gpus: int = 0  # at most; 0 for any number
    without: tuple[str, ...] = ()  # architectures that it cannot run, ...
    why: str = ""  # ... for this reason
    states: bool = False  # whether it is known how it runs layers with a state instead of attention
    exchange: str = ""  # how tokens reach experts on other GPUs; "" where all GPUs share each expert

    def refusal(self, engine: str, architecture: str, dtype: str, tp: int = 1, pp: int = 1, ep: int = 1) -> str:
        """One line that says what it cannot run, with the remedy; "" where it can."""
        known, gpus = self.architectures, max(tp, ep) * pp
        if architecture in STATES and not self.states:
            return (
                f"{engine}: it is not known how it runs the states of {architecture}; choose --engine vllm, or --trace"
            )
        if architecture in self.without or (known and architecture not in known):
            why = self.why or f"it runs {', '.join(known)}"
            return f"{engine} cannot run {architecture[:60]}: {why}; choose another --engine"
        if self.dtypes and dtype not in self.dtypes:
            formats = " or ".join(self.dtypes)
            return f"{engine} cannot run {dtype} weights: choose --dtype {formats}, or another --engine"
        if self.gpus and gpus > self.gpus:
            return f"{engine} runs on {self.gpus} GPU, not on {gpus}: choose another --engine"
        if ep > 1 and not self.exchange:
            return f"--ep {ep}: {engine} has no expert parallelism; use --tp or --pp, or another --engine"
        return ""


class Engine:
    """An engine. What a class derived from this one leaves out is as it stands here."""

    NAME: str
    TITLE: str  # what exactly is predicted under that name
    TERMS: tuple[str, ...] = ()  # what it and its host add to a step (`playing.MEANING`)
    CAVEAT: str = ""  # what its predictions leave out, said with each
    LIKE: str = ""  # the engine whose measured terms stand in, where its own were never measured
    KERNELS: Mapping[str, int] = {}  # that it launches of an operator, where that differs from the operator's own count
    CIRCULATES: bool = False  # whether a pipeline has several batches in flight, or one that passes all stages
    GRAPH_TOKENS: tuple[int, ...] = ()  # sizes of the CUDA graphs that steps of live traffic run in
    OF_STEPS: tuple[str, ...] = ()  # settings that change what a step takes, beside its size
    LIMITS: Limits = {}  # of its settings: the least and the most of a number, or the words that a text can be
    ALIASES: Mapping[str, str] = {}  # other names of its settings
    ELSEWHERE: Mapping[str, str] = {}  # settings that are fields of a question
    DRAFTS: Mapping[str, bool] = {}  # ways to speculate, and whether it schedules ahead of the device with each
    CALIBRATION: tuple[CalibrationModel, ...] = ()  # the small models that its terms are measured on
    CALIBRATION_SDPA: str = ""  # the attention that these run with, where it can be chosen
    LAB: tuple[str, ...] = ()  # devices, cuda and cpu, on which `chip lab` runs it ...
    PACKAGE: str = ""  # ... where this package is installed
    POOL: bool = False  # whether all memory that weights and steps leave becomes a pool for the KV cache
    QUANTISED_CACHE: bool = False  # whether the KV cache takes the format that a quantised config names
    SERVES: Serves = Serves()
    VERSIONS: tuple[EngineVersion, ...] = (EngineVersion(),)  # what each does otherwise, newest first
    NEEDS: tuple[Needs, ...] = ()  # the GPUs that each version runs on, newest first

    def defaults(self, memory_bytes: float) -> Any:
        """Its settings that predictions know, by its own names, as they are on a GPU of this size: a dataclass."""
        return None

    def options(self, settings: Settings, memory_bytes: float) -> Any:
        """Its settings with those that it is told. They come back as `options` below."""
        return with_settings(self.defaults(memory_bytes), settings, self.LIMITS, self.ALIASES, self.ELSEWHERE)

    def server(self) -> ServerCost | None:
        """What a server before it takes, where one was measured."""
        return None

    def server_settings(self, memory_bytes: float) -> Mapping[str, Any]:
        """Defaults of that server that differ from those of the engine in its caller's process."""
        return {}

    def prefill(self, scenario: Scenario, options: Any) -> Weighted:
        """The steps until all first tokens, and how many real steps each stands for."""
        raise NotImplementedError

    def decode(self, scenario: Scenario, options: Any) -> Step:
        """The first decode step. It stands for the mean of all."""
        raise NotImplementedError

    def rewrite(self, program: Program, decode: bool, architecture: str = "") -> Program:
        """What it launches instead of the canonical operators: its fusions, its own kernels."""
        return program

    def sampled(self, last: Program, parts: tuple[str, ...], vocab: int) -> Program:
        """What follows the layers, with what it launches to choose tokens beside taking the largest logit."""
        raise ChipError(f"--sampling: it is not known how {self.NAME} samples; choose --engine vllm, or greedy")

    def runs_as(
        self, capability: float, d: Decoder | None = None, options: Any = None, version: str = ""
    ) -> Mapping[str, str]:
        """The measured kernel that it runs of each operator, on a GPU of such a compute capability."""
        raise NotImplementedError

    def format_as_run(self, stored: WeightFormat, p: Precision, gpu: GpuFormats) -> tuple[WeightFormat | None, str]:
        """The format that it multiplies stored weights in, None where it turns them to 16 bits on load; and what to say
        of that."""
        if not stored.input or gpu.multiplies(stored.input):
            return stored, ""
        return None, widened_on_load(self.NAME, stored, p, gpu)

    def about_format(self, stored: WeightFormat, gpu: GpuFormats, options: Any) -> str:
        """What is stored, and which kernel runs it."""
        own = f"{self.NAME} runs kernels of its own for them, which are not measured: a roofline answers"
        return f"{stored.title}; {own}"

    def cache_as_run(self, d: Decoder, p: Precision, gpu: GpuFormats) -> tuple[Precision, str]:
        """What attention multiplies an fp8 cache in, and what to say of that."""
        keeps = f"{self.NAME} keeps its cache as wide as its activations"
        others = " or ".join(name for name in names() if get(name).QUANTISED_CACHE)
        raise ChipError(f"kv_dtype fp8: {keeps}; ask for engine {others}")

    def play(self, t: Timeline, step: Played, terms: Terms) -> None:
        """Lays a step on the timeline: the queue of the host and that of the device."""
        raise NotImplementedError

    def room(self, scenario: Scenario, options: Any) -> Room:
        """What it takes of a GPU beside weights and cache, and how large cache and steps are."""
        raise NotImplementedError

    def peak_bytes(self, d: Decoder, p: Precision, s: Scenario, room: Room) -> float:
        """The most that it holds at once beside the weights and the whole cache."""
        raise NotImplementedError

    def copies(self, d: Decoder) -> float:
        """How often its cache holds each key."""
        return 1.0

    def pool_tokens(self, load: Load, longest: int, pool_bytes: float, options: Any) -> int:
        """How many tokens its pool holds. With states: those of as many requests of the longest context as fit."""
        if load.decoder.states:
            return int(max(0.0, pool_bytes) / sequence_bytes(load, longest) * longest) if longest else 0
        return max(0, int(pool_bytes // load.token_bytes))

    def memory(self, load: Load, options: Any) -> Memory:
        """What it uses of a GPU's memory, by the two rules of `memory.used`."""
        room = self.room(load.scenario, options)
        peak_bytes = self.peak_bytes(load.decoder, load.precision, load.scenario, room)
        pool = partial(self.pool_tokens, load, options=options) if self.POOL else None
        return used(load, room, peak_bytes, self.copies(load.decoder), pool)

    def over_capacity(self, context: int, capacity: int) -> str:
        """What to say of a context that is longer than the whole cache."""
        return f"a context of {context} tokens exceeds the KV cache of {capacity}"

    def scheduler(self, options: Any) -> LiveScheduler | None:
        """How it serves live traffic; None where that cannot be simulated."""
        return None

    def paged(
        self, d: Decoder, p: Precision, tp: int, settings: LiveScheduler, tokens: int, longest: int, options: Any
    ) -> tuple[LiveScheduler, int]:
        """Its settings for a model, and how many blocks make a pool of so many tokens of the longest requests."""
        return settings, tokens // settings.block_size

    def graph_tokens(self, options: Any) -> tuple[int, ...]:
        """Sizes of its CUDA graphs under these settings."""
        return self.GRAPH_TOKENS

    def step(self, seqs: tuple[Seq, ...], options: Any = None) -> Step:
        """A step of live traffic: padded to the next CUDA graph, where one is large enough."""
        tokens = 0
        for new, _, count, _ in seqs:
            tokens += new * count
        sizes = self.graph_tokens(options)
        place = bisect_left(sizes, tokens)
        if place == len(sizes):
            return Step(seqs)
        return Step(seqs, sizes[place] - tokens, True)

    def version(self, name: str) -> EngineVersion:
        """The facts of a version; of the newest where `name` is ""."""
        return version_at(self.NAME, self.VERSIONS, name)

    def too_old(self, spec: HardwareSpec, version: str = "") -> str:
        """One line where it (its newest version, if none is named) has no kernels for the GPU, else ""."""
        return too_old(self.NAME, self.NEEDS, spec, version)


@lru_cache(maxsize=1)
def names() -> tuple[str, ...]:
    return tuple(sorted(m.name.replace("_", "-") for m in pkgutil.iter_modules(__path__) if m.ispkg))


@cache
def get(name: str) -> Engine:
    if name not in names():
        near: Iterable[str] = get_close_matches(str(name)[:80], names(), 1)
        hint = "".join(f"did you mean {n}? " for n in near)
        raise ChipError(f"no engine {str(name)[:80]!r}; {hint}known: {', '.join(names())}")
    engine: Engine = import_module(f"chip.engines.{name.replace('-', '_')}").ENGINE
    return engine


# -- versions
def number(version: str) -> tuple[int, ...]:
    """`0.6.1.post2` as (0, 6, 1)."""
    found = re.match(r"\d+(\.\d+)*", version)
    if found is None:
        raise ChipError(f"--engine-version {version[:40]!r}: must be a version such as 0.6.1")
    return tuple(int(n) for n in found[0].split("."))


def version_at(engine: str, versions: Sequence[EngineVersion], name: str) -> EngineVersion:
    if not name:
        return versions[0]
    if not versions[0].source:
        raise ChipError(f"--engine-version {name[:40]}: no facts by version are known of {engine}; leave it out")
    wanted = number(name)
    return next((v for v in versions if wanted >= number(v.since)), versions[-1])


def too_old(engine: str, needs: Sequence[Needs], spec: HardwareSpec, version: str) -> str:
    if spec.vendor != "nvidia":
        return ""
    rule = next((n for n in needs if not version or number(version) >= number(n.since)), None)
    if rule is None or number(spec.compute_capability) >= number(rule.capability):
        return ""
    runs = any(number(spec.compute_capability) >= number(n.capability) for n in needs)
    remedy = f"{engine} before {rule.since} ran on it, " if runs else ""
    which = f"{engine} {rule.since} and later needs" if rule.since != "0" else f"{engine} needs"
    return (
        f"{which} compute capability {rule.capability}, {spec.title} has {spec.compute_capability}; {remedy}"
        "--engine hf-eager runs"
    )
