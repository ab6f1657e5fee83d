"""What an engine adds to its operators on one host: measured on small models that are named in it, never on those that
predictions are judged by.

Terms are in seconds, but for shares, and nothing where they are missing. The host's part of a step overlaps the
device's: the longer of the two counts. The host's terms hold at one pace of it, what it takes to launch a small kernel;
at another they are longer or shorter in proportion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from chip import artifact, codec, hardware
from chip.hardware import Hardware
from chip.types import Ceiling, ChipError

ENGINES = hardware.DATA / "engines"
TERMS = {
    "kernel_s": "device, each kernel of a step: more than alone, since others came between it and its like",
    "attention_share": "device, of a decode step's attention: more than it takes alone",
    "step_s": "device, each step: small kernels around the model, pauses",
    "recovery_s": "device, the steps after a long prompt: until the clock that it lowered is back",
    "first_s": "before the first step, once",
    "request_s": "before the first step, each request",
    "token_s": "before the first step, each token of the prompts",
    "host_step_s": "host, each step",
    "host_seq_s": "host, each sequence of a step",
    "host_layer_graph_s": "host, each layer of a prefill that it launches as pieces of graphs",
    "host_kernel_s": "host, each kernel that it launches by itself",
}
ON_THE_DEVICE = ("kernel_s", "attention_share", "step_s", "recovery_s")
ON_THE_HOST = tuple(name for name in TERMS if name not in ON_THE_DEVICE)
# How far hosts of one kind are apart: the largest ratio, over what handing work to a GPU takes,
# between the two that `chip calibrate` measured in results/h200.
BETWEEN_HOSTS = 1.64
# How far a host is from itself: the largest ratio between the decode steps of the two dummies at one point, which the
# host takes as long for, in results/h200/engines (128 x 16 tokens of vllm-3.json). Each is a process of its own.
BETWEEN_PROCESSES = 1.67
# How far families are apart in what a kernel takes the host, at one pace: the largest ratio to what all take, in the
# bundled engines. It is that of experts under vLLM.
AT_ONE_PACE = 1.63
# How far a host is from another of one kind, at one pace, in what a family takes: the p90 error of what the dummies on
# one tell of decode steps on the other, of the two in results/h200/engines that were watched.
WITHIN_A_FAMILY = 1.27


def elsewhere(terms: Mapping[str, Ceiling]) -> dict[str, Ceiling]:
    """The terms as they may be on another host: the host's own may be off by as much as hosts are apart."""
    return _widened(terms, BETWEEN_HOSTS)


def here(terms: Mapping[str, Ceiling]) -> dict[str, Ceiling]:
    """The terms as they may be on the same host at another time."""
    return _widened(terms, BETWEEN_PROCESSES)


def at_pace(found: EngineProfile, family: str, launch_ns: float) -> dict[str, Ceiling]:
    """The terms on a host, this or another, that takes so long for a launch."""
    slower = launch_ns / found.launch_ns
    terms = {n: times(t, slower) if n in ON_THE_HOST else t for n, t in found.terms_of(family).items()}
    return _widened(terms, WITHIN_A_FAMILY if family in found.families else AT_ONE_PACE)


def times(term: Ceiling, factor: float) -> Ceiling:
    return replace(term, value=term.value * factor, low=term.low * factor, high=term.high * factor)


def _widened(terms: Mapping[str, Ceiling], by: float) -> dict[str, Ceiling]:
    return {
        name: replace(t, low=t.low / by, high=t.high * by) if name in ON_THE_HOST else t for name, t in terms.items()
    }


@dataclass(frozen=True, slots=True)
class EngineProfile:
    SCHEMA: ClassVar[str] = "chip.engine_profile/1"

    engine: str
    engine_version: str
    device: str
    cpu: str  # of the host it was measured on
    models: tuple[str, ...]  # that it was measured on
    terms: dict[str, Ceiling]
    launch_ns: float = 0.0  # the pace that the host's terms hold at; 0 where nobody looked
    families: dict[str, dict[str, Ceiling]] = field(default_factory=dict)  # what differs, by architecture

    def terms_of(self, family: str) -> dict[str, Ceiling]:
        """Its own where it was measured; else what all take."""
        return {**self.terms, **self.families.get(family, {})}


def path_for(h: Hardware, engine: str) -> Path:
    """Of a bundled GPU data/engines/<gpu>.<engine>.json; of another beside its profile, my-gpu.<engine>.json."""
    if is_bundled(h):
        return ENGINES / f"{h.name}.{engine}.json"
    assert h.measured
    return h.measured.with_suffix(f".{engine}.json")


def is_bundled(h: Hardware) -> bool:
    """Whether its terms are those of the host that the bundled ones were measured on."""
    return h.measured is None or h.measured.parent == hardware.PROFILES


def find(h: Hardware, engine: str) -> EngineProfile | None:
    """The one that goes with a GPU, if there is one."""
    path = path_for(h, engine)
    return given(path, h, engine) if h.profile is not None and path.is_file() else None


def given(path: Path, h: Hardware, engine: str) -> EngineProfile:
    """That of a file, which must be of that GPU and that engine."""
    found, device = read(path), h.profile.device if h.profile else h.title
    if found.engine != engine or found.device != device or h.profile is None:
        raise ChipError(f"{path}: holds terms of {found.engine} on {found.device}, not of {engine} on {device}")
    return found


@lru_cache(maxsize=32)
def read(path: Path) -> EngineProfile:
    found = codec.from_json(EngineProfile, artifact.read(path, EngineProfile.SCHEMA).data, f"{path}: data")
    for name, term in (item for held in (found.terms, *found.families.values()) for item in held.items()):
        if name not in TERMS:
            raise ChipError(f"{path}: unknown term {name!r}; known: {', '.join(TERMS)}")
        if not 0 <= term.low <= term.value <= term.high < 1e6:
            raise ChipError(f"{path}: term {name!r} must have 0 <= low <= value <= high, in seconds")
    if not 0 <= found.launch_ns < 1e9:
        raise ChipError(f"{path}: launch_ns must be a launch in nanoseconds, or 0 where nobody looked")
    return found
