"""What changed in an engine from version to version, and which GPUs each runs on: facts, each with its source."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from chip.types import ChipError, HardwareSpec

# PyTorch builds that still hold kernels for GPUs before Turing: pytorch/pytorch issues 157517, 172352 and 190385.
OLD_TORCH = "7.5"
OLD_TORCH_NOTE = (
    "PyTorch for it: the CUDA 12.6 wheels (pip install torch --index-url https://download.pytorch.org/whl/cu126), the "
    "last of them PyTorch 2.14; CUDA 12.8 and later have no kernels for GPUs before Turing"
)


class EngineVersion(NamedTuple):
    """What holds from version `since` on."""

    since: str = "0"
    overlaps_steps: bool = False  # whether the host prepares a step while the device runs the one before
    hopper_attention: str = ""  # the attention kernels that it runs on a Hopper GPU
    beside_tokens: int = 0  # in steps of up to so many tokens shared experts run beside the routed, on a second stream
    source: str = ""  # "" where nothing is known by version

    def on(self, capability: float) -> EngineVersion:
        """The same on a GPU of such a compute capability, 0 for other vendors: only NVIDIA's get the second stream."""
        return self if capability else self._replace(beside_tokens=0)


class Needs(NamedTuple):
    """From version `since` on (or its CUDA wheels), NVIDIA GPUs of at least this compute capability."""

    since: str
    capability: str
    source: str


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


def torch_note(spec: HardwareSpec) -> str:
    """What a user of an old GPU must know whatever the engine, else ""."""
    old = spec.vendor == "nvidia" and number(spec.compute_capability) < number(OLD_TORCH)
    return OLD_TORCH_NOTE if old else ""
