"""Which GPUs an engine runs on, as data: the least compute capability by version, each with its source."""

from __future__ import annotations

import re
from typing import NamedTuple

from chip.types import HardwareSpec


class Needs(NamedTuple):
    """From version `since` on (or its CUDA wheels), NVIDIA GPUs of at least this compute capability."""

    since: str
    capability: str
    source: str


# newest first
NEEDS: dict[str, tuple[Needs, ...]] = {
    "vllm": (
        Needs("0.21.0", "7.5", "vLLM 0.21.0, docs/getting_started/installation/gpu.cuda.inc.md"),
        Needs("0", "7.0", "vLLM 0.3.3 to 0.14.0, docs, installation on GPUs"),
    ),
}
# PyTorch builds that still hold kernels for GPUs before Turing: pytorch/pytorch issues 157517, 172352 and 190385.
OLD_TORCH = "7.5"
OLD_TORCH_NOTE = (
    "PyTorch for it: the CUDA 12.6 wheels (pip install torch --index-url https://download.pytorch.org/whl/cu126), the "
    "last of them PyTorch 2.14; CUDA 12.8 and later have no kernels for GPUs before Turing"
)


def number(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version))


def too_old(engine: str, spec: HardwareSpec, version: str = "") -> str:
    """One line where the engine (its newest version, if none is given) has no kernels for the GPU, else ""."""
    if spec.vendor != "nvidia":
        return ""
    rules = NEEDS.get(engine, ())
    rule = next((r for r in rules if not version or number(version) >= number(r.since)), None)
    if rule is None or number(spec.compute_capability) >= number(rule.capability):
        return ""
    later = next((r for r in rules if number(spec.compute_capability) >= number(r.capability)), None)
    remedy = f"{engine} before {rule.since} ran on it, " if later else ""
    return (
        f"{engine} {rule.since} and later needs compute capability {rule.capability}, {spec.title} has "
        f"{spec.compute_capability}; {remedy}--engine hf-eager runs"
        if rule.since != "0"
        else f"{engine} needs compute capability {rule.capability}, {spec.title} has {spec.compute_capability}; "
        "--engine hf-eager runs"
    )


def note(spec: HardwareSpec) -> str:
    """What a user of an old GPU must know whatever the engine, else ""."""
    old = spec.vendor == "nvidia" and number(spec.compute_capability) < number(OLD_TORCH)
    return OLD_TORCH_NOTE if old else ""
