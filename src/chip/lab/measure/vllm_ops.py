"""vLLM's own kernels, where vLLM is installed: imported on use, and what is missing becomes `Unsupported`."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

import torch

from chip.lab.measure.build import Unsupported

QUANTISATION = "vllm.model_executor.layers.quantization.utils"
BITS = {"int4": 4, "int8": 8, "fp8": 8, "fp4": 4}
TILE = 16  # inputs that Marlin keeps together


def module(name: str, what: str) -> ModuleType:
    try:
        return import_module(name)
    except Exception as e:  # besides a missing package: a library it wants, a driver that is too old
        reason = str(e).strip().splitlines()[0][:160] if str(e).strip() else type(e).__name__
        raise Unsupported(f"{what} is part of vLLM, which cannot be imported here ({reason})") from None


def function(path: str, name: str, what: str) -> Any:
    operator = getattr(module(path, what), name, None)
    if operator is None:
        raise Unsupported(f"{what} is part of vLLM, which has no {name} here")
    return operator


def custom_ops(what: str, *needed: str) -> Any:
    """vLLM's compiled operators; `needed` are those of torch.ops._C that the call ends in."""
    ops = module("vllm._custom_ops", what)
    for name in needed:
        if not hasattr(torch.ops._C, name):
            raise Unsupported(f"{what}: this build of vLLM has no {name}")
    return ops


def weight_type(dtype: str, zeros: bool, what: str) -> Any:
    types = module("vllm.scalar_type", what).scalar_types
    known = {
        ("int4", False): types.uint4b8,
        ("int4", True): types.uint4,
        ("int8", False): types.uint8b128,
        ("int8", True): types.uint8,
        ("fp8", False): types.float8_e4m3fn,
        ("fp4", False): types.float4_e2m1f,
    }
    if (dtype, zeros) not in known:
        raise Unsupported(f"{what} takes no {dtype} weights{' with zero points' if zeros else ''}")
    return known[dtype, zeros]


def packed(shape: tuple[int, ...], device: torch.device, generator: torch.Generator) -> torch.Tensor:
    """Random 32-bit words: packed weights of any kind."""
    low, high = -(2**31), 2**31 - 1
    return torch.randint(low, high, shape, device=device, generator=generator, dtype=torch.int64).to(torch.int32)


def marlin_weight(
    lead: tuple[int, ...], n: int, k: int, dtype: str, device: torch.device, generator: torch.Generator
) -> torch.Tensor:
    """Weights as Marlin keeps them: tiles of 16 inputs, packed into words. Random ones need no repacking."""
    if k % 128 or n % 64:
        raise Unsupported(f"Marlin's tiles do not divide {n} x {k}: the engine would pad")
    return packed((*lead, k // TILE, n * TILE * BITS[dtype] // 32), device, generator)


def scales(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> torch.Tensor:
    """Positive, around a hundredth."""
    return (0.005 + 0.01 * torch.rand(shape, device=device, generator=generator)).to(dtype)
