"""Hosts by name or file: what a host takes to launch a small kernel, by which the terms of engines are brought to it.

Bundled are the hosts whose launch latency was recorded beside the runs of an H200 (`chip calibrate --host --runs`);
`reference` is the one of the bundled terms themselves. A file is what `chip calibrate --host` wrote, or
`chip calibrate --engine`, whose terms are then taken as they are.
"""

from __future__ import annotations

from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from chip.files import artifact, codec
from chip.hardware import gpus
from chip.types import ChipError, HostProfile

HOSTS = gpus.DATA / "hosts"
REFERENCE = "reference"  # the host that stands for one that nobody measured
LATENCY = "launch_latency"  # the term of a host's profile that counts here
LEAST_NS, MOST_NS = 100.0, 1e6  # of a launch latency that a host can have


def host_path(path: Path) -> Path:
    """Where the host's profile lies, beside that of its device."""
    return path.parent / f"{path.stem}.host.json"


class NamedHost(NamedTuple):
    """`launch_ns` 0: that of the bundled terms. `terms_file`: terms of one engine on it, to be taken as they are."""

    name: str
    launch_ns: float = 0.0
    terms_file: str = ""


@lru_cache(maxsize=1)
def names() -> tuple[str, ...]:
    return (REFERENCE, *sorted(p.stem for p in HOSTS.glob("*.json")))


@lru_cache(maxsize=32)
def find(name: str) -> NamedHost:
    """The host that a name or a file stands for."""
    if name == REFERENCE:
        return NamedHost(name)
    if name in names():
        return _read(HOSTS / f"{name}.json")
    path = Path(name)
    if not path.is_file():
        near = get_close_matches(name[:80], names(), 1, 0.5)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(names())}."
        raise ChipError(f"no host {name[:80]!r}; {hint} `chip calibrate --host -o my-host.json` measures yours")
    raw = artifact.read_json(path)
    if isinstance(raw, dict) and str(raw.get("schema", "")).startswith("chip.engine_profile/"):
        return NamedHost(path.stem, terms_file=name)
    return _read(path)


def _read(path: Path) -> NamedHost:
    found = codec.from_json(HostProfile, artifact.read(path, HostProfile.SCHEMA).data, f"{path}: data")
    latency = found.terms.get(LATENCY)
    if latency is None:
        raise ChipError(f"{path}: data.terms.{LATENCY} is missing; `chip calibrate --host -o {path.name}` measures it")
    launch_ns = latency.value * 1e9
    if not LEAST_NS <= launch_ns <= MOST_NS:
        raise ChipError(f"{path}: data.terms.{LATENCY} must be a time between 100 ns and 1 ms, got {launch_ns:g} ns")
    return NamedHost(found.name, launch_ns)
