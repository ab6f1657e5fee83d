"""Our kernels as launches of the decoder: what each needs, and how it is called."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from chip.lab.kernels import build, catalog, hgemm, skinny
from chip.lab.kernels.triton import (
    add_rms_norm,
    language,
    paged_decode_attention,
    prefill_attention,
    rms_norm,
    rope_store,
    silu_mul,
    skinny_gemm,
)
from chip.lab.run.native.spec import DecoderSpec
from chip.types import ChipError

FEW = skinny_gemm.MOST_TOKENS
HALVES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class LaunchSetting:
    """What decides whether a kernel can serve."""

    spec: DecoderSpec
    dtype: torch.dtype
    device: torch.device
    page_tokens: int

    @property
    def overlaps(self) -> bool:
        return language.can_overlap(self.device)

    @property
    def capability(self) -> str | None:
        if self.device.type != "cuda":
            return None
        return ".".join(map(str, torch.cuda.get_device_capability(self.device)))


@dataclass(frozen=True, slots=True)
class Own:
    by: str
    call: Callable[..., Any]
    unusable: Callable[[LaunchSetting], str]
    overlaps: bool = False  # takes `overlap`: it lets the next kernel start, or starts before the last has finished


# -- what a kernel needs ----------------------------------------------------------------------------------------------
def _triton(setting: LaunchSetting) -> str:
    return language.missing(setting.device.type)


def _paged(setting: LaunchSetting) -> str:
    page = setting.page_tokens
    if page < prefill_attention.LEAST_PAGE or page & (page - 1):
        return f"pages of {page} tokens; it takes powers of two from {prefill_attention.LEAST_PAGE} on"
    return _triton(setting)


def _cuda(stem: str) -> Callable[[LaunchSetting], str]:
    def why_not(setting: LaunchSetting) -> str:
        why = build.unusable(stem, setting.device.type, setting.capability)
        if why:
            return why
        if setting.dtype not in HALVES:
            return "it multiplies bf16 and fp16"
        spec = setting.spec
        if any(k % 8 for k in (spec.hidden, spec.q_size, spec.intermediate)):
            return "rows must be multiples of 16 bytes"
        return _built(stem, setting.capability or "")

    return why_not


def _built(stem: str, capability: str) -> str:
    try:
        build.library(stem, capability)
    except Exception as e:  # no toolkit, no compiler, no room: any of them leaves the launch to the next
        return str(e).splitlines()[0]
    return ""


# -- how it is called -------------------------------------------------------------------------------------------------
def _by_eps(norm: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *tensors, overlap=False: norm(*tensors[:-1], eps=tensors[-1], overlap=overlap)


def _gate_up_by(linear: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def call(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, **how: bool) -> torch.Tensor:
        both = linear(x, weight, bias, **how)
        half = both.shape[1] // 2
        return silu_mul.run(both[:, :half], both[:, half:], overlap=how.get("overlap", False))

    return call


def _linear_by(rung: str) -> Callable[..., torch.Tensor]:
    def call(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, overlap: bool = False) -> torch.Tensor:
        y = hgemm.run(rung, x, weight, overlap=overlap)
        return y if bias is None else y.add_(bias)

    return call


def _rope_store(
    qkv: torch.Tensor, q_norm: torch.Tensor | None, k_norm: torch.Tensor | None, eps: float, *rest: torch.Tensor,
    overlap: bool = False,
) -> torch.Tensor:  # fmt: skip
    cos, sin, positions, slots, keys, values = rest
    dim, kv_heads = keys.shape[3], keys.shape[1]
    q = torch.empty((len(qkv), qkv.shape[1] // dim - 2 * kv_heads, dim), dtype=qkv.dtype, device=qkv.device)
    rope_store.run(qkv, cos, sin, positions, slots, keys, q_norm, k_norm, (q, keys, values), eps, overlap)
    return q


def _prefill_attention(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, table: torch.Tensor, chunks: Any, tiles: torch.Tensor,
    out: torch.Tensor, overlap: bool = False,
) -> None:  # fmt: skip
    prefill_attention.launch(q, keys, values, table, tiles, out, overlap=overlap)


_RUNGS = catalog.steps("hgemm")[:2:-1]  # the fastest first: wgmma, then mma
_TRITON: dict[str, Own] = {
    "rms_norm": Own("triton", _by_eps(rms_norm.run), _triton, overlaps=True),
    "add_rms_norm": Own("triton", _by_eps(add_rms_norm.run), _triton, overlaps=True),
    "linear_few": Own("triton", skinny_gemm.run, _triton),
    "gate_up": Own("torch + triton", _gate_up_by(torch.nn.functional.linear), _triton),
    "gate_up_few": Own("triton", partial(skinny_gemm.run, gated=True), _triton),
    "rope_store": Own("triton", _rope_store, _triton, overlaps=True),
    "decode_attention": Own("triton", paged_decode_attention.run, _paged, overlaps=True),
    "prefill_attention": Own("triton", _prefill_attention, _paged, overlaps=True),
}
_CUDA: dict[str, list[Own]] = {
    "linear": [Own(rung, _linear_by(rung), _cuda(rung), overlaps=True) for rung in _RUNGS],
    "gate_up": [Own(f"{rung} + triton", _gate_up_by(_linear_by(rung)), _cuda(rung), overlaps=True) for rung in _RUNGS],
    "linear_few": [Own(rung, partial(skinny.run, rung), _cuda(rung), overlaps=True) for rung in skinny.RUNGS],
    "gate_up_few": [
        Own(rung, partial(skinny.run, rung, gated=True), _cuda(rung), overlaps=True) for rung in skinny.RUNGS
    ],
}


def compile_ahead(setting: LaunchSetting) -> None:
    """The CUDA sources that this device can run, at once: one after another they take a minute. What goes wrong here is
    said when a launch asks for its kernel."""
    with suppress(ChipError):
        arch = catalog.arch_of(setting.capability or "")
        best = [next((r for r in rungs if catalog.runs_on(r, arch)), None) for rungs in (skinny.RUNGS, _RUNGS)]
        build.compile_all([rung for rung in best if rung], arch)


def candidates(launch: str, kind: str) -> list[Own]:
    """Kernels for a launch, the best first."""
    if kind == "cuda":
        return _CUDA.get(launch, [])
    return [_TRITON[launch]] if launch in _TRITON else []
