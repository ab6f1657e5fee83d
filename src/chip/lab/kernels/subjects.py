"""A kernel as `check`, `bench` and `profile` see it: whose it is, what it is compared with, how its inputs are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from typing import Any

from chip.lab.kernels import build, catalog
from chip.lab.measure.device import Device
from chip.types import ChipError, Op


@dataclass(frozen=True)
class Variant:
    """One of our implementations: `call(*inputs, out=...)`."""

    name: str  # "triton", or the CUDA source, with ":config" where it is not the source's own choice
    call: Callable[..., Any]
    unusable: str = ""  # why it cannot run here
    takes: Callable[..., str] = field(default=lambda *tensors: "")  # why it refuses such tensors


@dataclass(frozen=True)
class KernelSubject:
    name: str
    module: Any  # inputs, native, reference, BENCH, KIND
    variants: tuple[Variant, ...]

    @property
    def kind(self) -> str:
        return str(self.module.KIND)

    @property
    def baseline(self) -> str:
        """What PyTorch's own is called here."""
        return str(getattr(self.module, "BASELINE", "torch"))

    @property
    def compiled(self) -> bool:
        return bool(getattr(self.module, "COMPILED", True))

    def timed(self, op: Op) -> KernelSubject:
        """With the variants that are worth timing on one of its own calls: the slowest have few (SLOW)."""
        only = getattr(self.module, "SLOW", {})
        return replace(self, variants=tuple(v for v in self.variants if op in only.get(v.name, [op])))

    @property
    def bench(self) -> list[Op]:
        return list(self.module.BENCH)


def names(wanted: list[str]) -> list[str]:
    known = catalog.kernels()
    for name in wanted:
        if name not in known:
            near = get_close_matches(name, known, 1)
            raise ChipError(
                f"no kernel {name!r}; {f'did you mean {near[0]}?' if near else 'kernels: ' + ', '.join(known)}"
            )
    return wanted or known


def subject(name: str, device: Device, only: str = "", configs: bool = False) -> KernelSubject:
    """A kernel with its variants; `only` keeps those whose name holds the word, `configs` adds every configuration."""
    if name in catalog.LADDERS:
        module = import_module(f"chip.lab.kernels.{name}")
        variants = [v for stem in catalog.steps(name) for v in _steps(module, stem, device, configs)]
    else:
        from chip.lab.kernels.triton import language

        module = import_module(f"chip.lab.kernels.triton.{name}")
        variants = [Variant(language.label(device.kind), module.run, language.missing(device.kind))]
    return KernelSubject(name, module, tuple(v for v in variants if only in v.name))


def _steps(module: Any, stem: str, device: Device, configs: bool) -> list[Variant]:
    why_not = build.unusable(stem, device.kind, device.compute_capability)
    takes = partial(module.takes, stem) if hasattr(module, "takes") else (lambda *tensors: "")
    variants = [Variant(stem, partial(module.run, stem), why_not, takes)]
    if configs:
        more = getattr(module, "CONFIGS", {}).get(stem, ())
        variants += [Variant(f"{stem}:{c}", partial(module.run, stem, config=c), why_not, takes) for c in more]
    return variants


def compile_for(subjects: list[KernelSubject], device: Device, tell: build.Tell) -> None:
    """Build at once, in parallel, what these will need."""
    steps = [v.name.split(":")[0] for s in subjects if s.name in catalog.LADDERS for v in s.variants if not v.unusable]
    if steps and device.compute_capability:
        arch = catalog.arch_of(device.compute_capability)
        build.compile_all([*dict.fromkeys(steps)], arch, build.BuildSettings.debug, tell)
