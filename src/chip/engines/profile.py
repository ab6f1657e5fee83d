"""Engine profiles: the terms of one engine on one host (`chip.engines.timeline`), measured on small models that the
profile names, never on models that predictions are judged by.

The host's terms hold at one launch latency, which is what the host takes to launch a small kernel. At another latency
they are longer or shorter in proportion. They are a property of the host, not of the GPU: a GPU without terms of its
own is predicted with those of the reference host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from chip.engines.timeline import MEANING, ON_HOST, Terms
from chip.files import artifact, codec
from chip.hardware import gpus, hosts
from chip.hardware.gpus import Hardware
from chip.types import Ceiling, ChipError

ENGINES = gpus.DATA / "engines"
REFERENCE = "h200"  # the GPU whose host stands for one that was not measured
# How many times faster or slower than the reference host an unmeasured host may be: one with the GPU of the terms, and
# one with another GPU, which may be any machine. Servers with an H200 launched a kernel in 7.2 to 14.3 us, at most 1.6
# times off the 10.1 and 11.5 us that the terms hold at.
SUCH_HOST, OTHER_HOST = 1.75, 2.0
LIKE_ANOTHER = 1.5  # and how many times those of another engine may be off, where that stands in: what nobody measured
# How many times longer or shorter the host's terms may be than their own interval says. On the same host at another
# time: the largest ratio between two processes of one calibration model. Then on any host of a known launch latency.
SAME_HOST, KNOWN_LATENCY = 1.3, 1.25


@dataclass(frozen=True, slots=True)
class EngineProfile:
    SCHEMA: ClassVar[str] = "chip.engine_profile/2"

    engine: str
    engine_version: str
    device: str
    cpu: str  # of the host it was measured on
    models: tuple[str, ...]  # that it was measured on
    terms: dict[str, Ceiling]
    launch_ns: float = 0.0  # the launch latency that the host's terms hold at; 0 where it was not measured


@dataclass(frozen=True, slots=True)
class FoundTerms:
    """Terms for a prediction, with an interval that covers the host, and where they come from."""

    terms: tuple[Terms, Terms, Terms]  # as expected, at the least, at the most
    host: str  # the CPU of the reference host; "" where the terms are for the asker's own host
    at_latency: bool  # whether they were scaled to the launch latency that was asked for, or to that of a CPU
    launch_ns: float = 0.0  # the launch latency they hold at; 0 where it is not known
    off: float = 1.0  # how many times faster or slower the asker's host may be, where nobody measured it


def find(
    h: Hardware, engine: str, file: str = "", launch_ns: float = 0.0, host: str = "", like: str = ""
) -> FoundTerms | None:
    """The terms of an engine: those that go with the GPU, else of the reference host, or those of `file`. `like`: the
    engine whose terms on the reference host stand in where it has none.

    `launch_ns` scales them to a launch latency. `host` is a host's name or file (`chip.hosts`), which has either.
    """
    if host:
        if file or launch_ns:
            raise ChipError("--host does not go with --engine-profile or --launch-ns: each says which host it is")
        _, launch_ns, file = hosts.find(host)
    path, reference = Path(file) if file else path_for(h, engine), ENGINES / f"{REFERENCE}.{engine}.json"
    own = given(path, h, engine) if file or (h.profile is not None and path.is_file()) else None
    stands_in = bool(like) and own is None and not reference.is_file()
    reference = ENGINES / f"{REFERENCE}.{like}.json" if stands_in else reference
    held = own or (read(reference) if reference.is_file() else None)
    if held is None:
        return None
    if own is None and h.is_cpu and held.launch_ns:
        return _on_cpu(held, launch_ns or _dispatch_ns(h) or held.launch_ns)
    if launch_ns and held.launch_ns:
        return FoundTerms(_widened(held.terms, KNOWN_LATENCY, launch_ns / held.launch_ns), "", True, launch_ns)
    if own is None or (not file and is_bundled(h)):
        off = SUCH_HOST if own else OTHER_HOST  # wider than the host terms' own interval, so it takes its place
        off *= LIKE_ANOTHER if stands_in else 1.0
        known = {n: replace(t, low=t.value, high=t.value) if n in ON_HOST else t for n, t in held.terms.items()}
        return FoundTerms(_widened(known, off), held.cpu, False, held.launch_ns, off)
    return FoundTerms(_widened(held.terms, SAME_HOST), "", False, held.launch_ns)


def _dispatch_ns(h: Hardware) -> float:
    """What a CPU takes for an operator of one element, from one to the next; 0 where that was not measured."""
    assert h.profile
    launch = h.profile.ceilings.get("launch_stream")
    return launch.value * 1e9 if launch else 0.0


def _on_cpu(held: EngineProfile, launch_ns: float) -> FoundTerms:
    """The terms of the reference host at the launch latency of a CPU that computes by itself. To launch a kernel there
    is to run it, so that its least time, which each kernel's own time has in it, is no term of the host as well."""
    kernel = held.terms.get("host_kernel_s")
    terms = {n: t for n, t in held.terms.items() if n in ON_HOST}
    if kernel:
        left_s = max(0.0, kernel.value - held.launch_ns * 1e-9)
        terms["host_kernel_s"] = replace(kernel, value=left_s)
    terms = {n: replace(t, low=t.value, high=t.value) for n, t in terms.items()}
    scaled = _widened(terms, OTHER_HOST, launch_ns / held.launch_ns)
    return FoundTerms(scaled, held.cpu, True, launch_ns, OTHER_HOST)


def _widened(terms: Mapping[str, Ceiling], by: float, slower: float = 1.0) -> tuple[Terms, Terms, Terms]:
    """Expected, least and most terms on a host so many times slower, which may be `by` times off either way."""
    value, low, high = (Terms(**{n: getattr(t, of) for n, t in terms.items()}) for of in ("value", "low", "high"))
    return value.on_host(slower), low.on_host(slower / by), high.on_host(slower * by)


def path_for(h: Hardware, engine: str) -> Path:
    """data/engines/<gpu>.<engine>.json of a bundled GPU; of any other my-gpu.<engine>.json, beside its profile."""
    if is_bundled(h):
        return ENGINES / f"{h.name}.{engine}.json"
    assert h.measured
    return h.measured.with_suffix(f".{engine}.json")


def is_bundled(h: Hardware) -> bool:
    return h.measured is None or h.measured.parent == gpus.PROFILES


def given(path: Path, h: Hardware, engine: str) -> EngineProfile:
    """The profile in a file, which must be of this engine, and of this GPU if the GPU was measured."""
    found, device = read(path), h.profile.device if h.profile else ""
    if found.engine != engine or (device and found.device != device):
        raise ChipError(
            f"{path}: holds terms of {found.engine} on {found.device}, not of {engine} on {device or h.title}"
        )
    return found


@lru_cache(maxsize=32)
def read(path: Path) -> EngineProfile:
    found = codec.from_json(EngineProfile, artifact.read(path, EngineProfile.SCHEMA).data, f"{path}: data")
    for name, term in found.terms.items():
        if name not in MEANING:
            known = f"known: {', '.join(MEANING)}; `chip calibrate --engine {found.engine}` makes such a file anew"
            raise ChipError(f"{path}: unknown term {name!r}; {known}")
        if not 0 <= term.low <= term.value <= term.high < 1e6:
            raise ChipError(f"{path}: term {name!r} must have 0 <= low <= value <= high, in seconds")
    if not 0 <= found.launch_ns < 1e9:
        raise ChipError(f"{path}: launch_ns must be a launch latency in nanoseconds, or 0 where it was not measured")
    return found
