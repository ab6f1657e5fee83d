"""Triton, where it is installed: without it every kernel's `run` is PyTorch's own answer, and says so."""

from __future__ import annotations

import os
from typing import Any

import torch

from chip.types import install

try:
    import triton
    import triton.language as tl
    from triton.language.extra import libdevice

    jit: Any = triton.jit

    @triton.jit
    def _exp(x: Any) -> Any:
        return tl.exp(x)

    @triton.jit
    def _exp2(x: Any) -> Any:
        return tl.exp2(x)

    @triton.jit
    def _fast_exp2(x):
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )

    @triton.jit
    def _larger(a, b):
        return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)

    @triton.jit
    def _packed_larger(a, b):
        if a.dtype == tl.bfloat16:
            m = tl.inline_asm_elementwise("max.NaN.bf16x2 $0, $1, $2;", "=r,r,r", [a, b], tl.bfloat16, True, 2)
        elif a.dtype == tl.float16:
            m = tl.inline_asm_elementwise("max.NaN.f16x2 $0, $1, $2;", "=r,r,r", [a, b], tl.float16, True, 2)
        else:
            m = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
        return m

    # results under 1e-38 become zero: tl.exp takes twice the instructions to keep them (the interpreter has no other)
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    exp: Any = _exp if interpreted else libdevice.fast_expf
    exp2: Any = _exp2 if interpreted else _fast_exp2
    larger: Any = _larger if interpreted else _packed_larger  # two 16-bit numbers at a time
    try:
        from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

        @triton.jit
        def _overlapped():
            gdc_launch_dependents()
            gdc_wait()

        # lets the next kernel start, and waits for the one before: nothing that it wrote may be read earlier
        overlapped: Any = _overlapped
    except ImportError:  # an older Triton
        overlapped = None
except ImportError:  # optional
    triton = None
    tl: Any = None  # type: ignore[no-redef]
    exp = exp2 = larger = overlapped = None

    def jit(kernel: Any) -> Any:
        return kernel


__all__ = [
    "FALLBACK", "OURS", "can_overlap", "early", "exp", "exp2", "jit", "label", "larger", "overlapped", "missing", "tl",
    "triton", "usable",
]  # fmt: skip
OURS, FALLBACK = "triton", "torch (fallback)"


def missing(device_type: str) -> str:
    """Why Triton kernels cannot run on such a device; nothing where they can."""
    if triton is None:
        return f"Triton is not installed: {install('kernels')}"
    if device_type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return "no GPU: Triton runs on a CPU only in its interpreter (TRITON_INTERPRET=1)"
    return ""


def usable(x: torch.Tensor) -> bool:
    return not missing(x.device.type)


def label(device_type: str) -> str:
    """What `run` really is there. A fallback is PyTorch against itself: no speed-up is made of it."""
    return FALLBACK if missing(device_type) else OURS


def can_overlap(device: torch.device) -> bool:
    """Whether a kernel may start on it before the last has finished (programmatic dependent launch)."""
    if device.type != "cuda" or overlapped is None:
        return False
    return bool(torch.cuda.get_device_capability(device)[0] >= 9)


def early(overlap: bool) -> dict[str, bool]:
    """What a launch is told so that it may begin before the kernel before it has finished; its kernel is to be compiled
    with `overlapped` then."""
    return {"launch_pdl": True} if overlap else {}
