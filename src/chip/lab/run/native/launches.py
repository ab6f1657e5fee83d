"""Who computes each launch: PyTorch, our Triton kernels, or those and our CUDA ones (`chip`).

Chosen launch by launch: where a kernel of ours cannot serve, the next best does, down to PyTorch, and `rows` says who
did and why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from chip.lab.run.native import own_launches, torch_launches
from chip.lab.run.native.batch import Batch
from chip.lab.run.native.spec import DecoderSpec
from chip.types import ChipError

KERNELS = ("torch", "triton", "chip")
LAUNCHES = (
    "rms_norm", "add_rms_norm", "linear", "linear_few", "gate_up", "gate_up_few", "rope_store", "decode_attention",
    "prefill_attention",
)  # fmt: skip
FEW = own_launches.FEW  # rows up to which a product is bound by reading its weights


@dataclass(frozen=True, slots=True)
class KernelChoice:
    launch: str
    by: str  # "torch", "triton", or the CUDA source
    call: Callable[..., Any]
    why: str = ""  # where it is not what was asked for


class Launches:
    """`only`: launches that may be ours, the others are PyTorch's; None: all. `overlap`: a product may begin to read
    its weights while the kernel before it still runs, where the device can."""

    def __init__(
        self,
        kernels: str,
        spec: DecoderSpec,
        dtype: torch.dtype,
        device: torch.device,
        page_tokens: int,
        only: frozenset[str] | None = None,
        overlap: bool = True,
    ) -> None:
        if kernels not in KERNELS:
            raise ChipError(f"--kernels {kernels!r}: choose {', '.join(KERNELS)}")
        if unknown := sorted((only or frozenset()) - set(LAUNCHES)):
            raise ChipError(f"launch {unknown[0]!r} is not one of {', '.join(LAUNCHES)}")
        self.kernels, self.eps = kernels, spec.eps
        setting = own_launches.LaunchSetting(spec, dtype, device, page_tokens)
        overlaps = overlap and kernels == "chip" and setting.overlaps
        if kernels == "chip" and device.type == "cuda":
            own_launches.compile_ahead(setting)
        kernels_of = {name: kernels if only is None or name in only else "torch" for name in LAUNCHES}
        chosen = [_choose(name, kernels_of[name], setting, overlaps) for name in LAUNCHES]
        self.by = {c.launch: c for c in chosen}

    def rows(self) -> list[dict[str, str]]:
        """For people and records: who computes what."""
        return [{"launch": c.launch, "by": c.by, "why": c.why} for c in self.by.values()]

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self.by["rms_norm"].call(x, weight, self.eps)

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(x + residual, its norm)."""
        total, normed = self.by["add_rms_norm"].call(x, residual, weight, self.eps)
        return total, normed

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return self.by["linear_few" if len(x) <= FEW else "linear"].call(x, weight, bias)

    def gate_up(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """silu(gate) * up of the merged product."""
        return self.by["gate_up_few" if len(x) <= FEW else "gate_up"].call(x, weight, bias)

    def rope_store(
        self, qkv: torch.Tensor, q_norm: torch.Tensor | None, k_norm: torch.Tensor | None, *rest: torch.Tensor
    ) -> torch.Tensor:
        return self.by["rope_store"].call(qkv, q_norm, k_norm, self.eps, *rest)

    def attention(self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Decodes and chunks by a launch each, where the step has both."""
        n = batch.decodes
        decode = self.by["decode_attention"].call
        if not batch.chunks:
            return decode(q, keys, values, batch.table, batch.lengths)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if n:
            out[:n] = decode(q[:n], keys, values, batch.table[:n], batch.lengths[:n])
        self.by["prefill_attention"].call(q, keys, values, batch.table[n:], batch.chunks, batch.tiles, out)
        return out


def _choose(name: str, kernels: str, setting: own_launches.LaunchSetting, overlaps: bool) -> KernelChoice:
    reasons: list[str] = []
    for kind in {"torch": (), "triton": ("triton",), "chip": ("cuda", "triton")}[kernels]:
        for candidate in own_launches.candidates(name, kind):
            why = candidate.unusable(setting)
            if not why:
                call = partial(candidate.call, overlap=True) if overlaps and candidate.overlaps else candidate.call
                return KernelChoice(name, candidate.by, call, "; ".join(reasons))
            reasons.append(f"{candidate.by}: {why}")
    if kernels != "torch" and not reasons:
        reasons.append(f"no {kernels} kernel for it")
    return KernelChoice(name, "torch", getattr(torch_launches, name.removesuffix("_few")), "; ".join(reasons))
