"""Passes over rows and columns: the functions of torch that each is, and what torch.compile makes one kernel of.

What is compiled serves any number of rows above one; a single row is measured as two, which take the same time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from chip.lab.measure import own_ops
from chip.lab.measure.build import Closure, Draw, builds, compiled
from chip.ops.elementwise import Elementwise

EPSILON = 1e-6


class Pass(NamedTuple):
    """A function of so many tensors of rows x cols and then of so many vectors of cols."""

    function: Callable[..., object]
    tensors: int = 1
    vectors: int = 0
    compiled: Callable[..., object] | None = None
    ours: Callable[..., Closure] | None = None


def gated(merged: Tensor) -> Tensor:
    """What a merged projection gives, its first half activated, times the second."""
    half = merged.shape[-1] // 2
    return F.silu(merged[:, :half]) * merged[:, half:]


def _gelu_new(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def _gelu_fast(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, weight.shape, weight, bias)


def _add_layer_norm(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    total = x + y
    return total, F.layer_norm(total, weight.shape, weight, bias)


def _add_then_rms_norm(x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x + y
    return total, F.rms_norm(total, weight.shape, weight, EPSILON)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPSILON)).to(x.dtype) * weight


def add_rms_norm(x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    wide = x.float() + y.float()
    total = wide.to(x.dtype)
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPSILON)).to(x.dtype) * weight, total


def _normalised(x: Tensor) -> Tensor:
    wide = x.to(torch.float32)
    variance = wide.pow(2).mean(-1, keepdim=True)
    return wide * torch.rsqrt(variance + EPSILON)


def _cohere_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.to(torch.float32)
    mean = wide.mean(-1, keepdim=True)
    variance = (wide - mean).pow(2).mean(-1, keepdim=True)
    wide = (wide - mean) * torch.rsqrt(variance + EPSILON)
    return (weight.to(torch.float32) * wide).to(x.dtype)


PASSES = {
    "add": Pass(lambda x, y: x + y, 2),
    "copy": Pass(lambda x, y: y.copy_(x), 2),
    "fill": Pass(lambda x: x.fill_(1.2345)),
    "scale": Pass(lambda x: x * 0.7071),
    "softcap": Pass(lambda x: torch.tanh(x / 30.0) * 30.0),  # as Gemma-2 writes it: three kernels
    "relu": Pass(torch.relu, compiled=torch.relu),
    "silu": Pass(F.silu),
    "gelu": Pass(F.gelu, compiled=lambda x: F.gelu(x)),  # exact (erf)
    "gelu_new": Pass(_gelu_new),  # HF's NewGELUActivation
    "gelu_fast": Pass(_gelu_fast),  # as BLOOM spells it; FastGELUActivation takes the same in another order
    "softmax": Pass(lambda x: torch.softmax(x, -1)),
    "row_normalize": Pass(lambda x: (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)),
    "layer_norm": Pass(_layer_norm, 1, 2, _layer_norm),
    "layer_norm_gelu": Pass(lambda x, weight, bias: F.gelu(_layer_norm(x, weight, bias)), 1, 2),  # two kernels
    "add_layer_norm": Pass(_add_layer_norm, 2, 2, _add_layer_norm),
    "rms_norm": Pass(lambda x, w: F.rms_norm(x, w.shape, w, EPSILON), 1, 1, rms_norm, own_ops.rms_norm),
    "add_rms_norm": Pass(_add_then_rms_norm, 2, 1, add_rms_norm, own_ops.add_rms_norm),
    # The forwards of HF's LlamaRMSNorm and its many copies, of Olmo2RMSNorm, GemmaRMSNorm and CohereLayerNorm
    "rms_norm_composed": Pass(lambda x, weight: weight * _normalised(x).to(x.dtype), 1, 1),
    "rms_norm_fp32": Pass(lambda x, weight: (weight * _normalised(x)).to(x.dtype), 1, 1),
    "rms_norm_plus_one": Pass(lambda x, weight: (_normalised(x) * (1.0 + weight.float())).type_as(x), 1, 1),
    "layer_norm_composed": Pass(_cohere_norm, 1, 1),
}


def build_pass(op: Elementwise, draw: Draw, implementation: str) -> Closure:
    one = PASSES[op.kind]
    if implementation == own_ops.NAME and one.ours:
        return one.ours(op, *draw)
    rows = max(2, op.rows) if implementation == "compiled" else op.rows
    tensors = [draw.normal((rows, op.cols), op.dtype) for _ in range(one.tensors)]
    vectors = [draw.normal((op.cols,), op.dtype) for _ in range(one.vectors)]
    if implementation == "compiled" and one.compiled:
        return compiled(one.compiled, tensors, vectors)
    return partial(one.function, *tensors, *vectors)


for kind, one in PASSES.items():
    ways = ("torch", *(["compiled"] if one.compiled else []), *([own_ops.NAME] if one.ours else []))
    builds(kind, gpu=ways, cpu=ways)(build_pass)


@builds("silu_mul", gpu=("torch", "compiled", "chip"))
def silu_mul(op: Elementwise, draw: Draw, implementation: str) -> Closure:
    """F.silu(x) * y, two kernels: what an eager model runs between its gate and down projections. `compiled` is one
    kernel over the result of a merged projection, as vLLM runs it."""
    if implementation == own_ops.NAME:
        return own_ops.silu_mul(op, *draw)
    if implementation == "compiled":
        return compiled(gated, (draw.normal((max(2, op.rows), 2 * op.cols), op.dtype),))
    x, y = (draw.normal((op.rows, op.cols), op.dtype) for _ in range(2))
    return lambda: F.silu(x) * y


@lru_cache(maxsize=1)
def _gated_of_any_size() -> Callable[..., object]:
    compiled_once: Callable[..., object] = torch.compile(gated, dynamic=True)
    return compiled_once


@builds("shared_silu_mul", gpu=("compiled",))
def shared_silu_mul(op: Elementwise, draw: Draw, implementation: str) -> Closure:
    """One kernel of torch.compile for any number of rows and columns, over what a merged projection gives."""
    merged = draw.normal((max(2, op.rows), 2 * op.cols), op.dtype)
    run = _gated_of_any_size() if draw.device.type == "cuda" else gated  # a CPU shows the values, not the kernel
    return lambda: run(merged)


@builds("silu_mul_halves")
def silu_mul_halves(op: Elementwise, draw: Draw, implementation: str) -> Closure:
    """What HF's merged MLPs run between their projections: chunk, then up * silu(gate) on the halves where they lie."""
    merged = draw.normal((1, op.rows, 2 * op.cols), op.dtype)

    def call() -> object:
        gate, up = merged.chunk(2, dim=-1)
        return up * F.silu(gate)

    return call
