"""The product for few rows from Python: y = x W^T (+ bias), or silu(gate) * up (`cuda/skinny_*.cu`)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from chip.lab.kernels import build, cublaslt
from chip.lab.kernels.triton import skinny_gemm
from chip.ops.linear import Linear
from chip.types import ChipError

KIND = "linear"
COMPILED = False
MMA, WGMMA = "skinny_1_mma", "skinny_2_wgmma"
RUNGS = (WGMMA, MMA)  # the fastest first
MOST_TOKENS = 64
CONFIGS: dict[str, tuple[int, ...]] = {
    MMA: (1, 2, 4, 8),  # blocks that divide k among them
    WGMMA: (11, 21, 12, 22, 121, 112),  # warpgroups, boxes of k, depth of the queue
}  # 0: the kernel's own choice
BENCH = skinny_gemm.BENCH
ARGUMENTS = (
    *(ctypes.c_void_p,) * 6, *(ctypes.c_int,) * 3, *(ctypes.c_int64,) * 3, *(ctypes.c_int,) * 4, ctypes.c_int64,
    ctypes.c_int,
)  # fmt: skip
FLOATS, COUNTERS = 1 << 22, 1024  # workspace: 1024 tiles of 64 x 64 sums


@cache
def workspace(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums and counters of blocks that share a tile. One for a device: launches that use it must be on one stream."""
    floats = torch.empty(FLOATS, dtype=torch.float32, device=device)
    return floats, torch.zeros(COUNTERS, dtype=torch.int32, device=device)


def run(
    stem: str,
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    gated: bool = False,
    overlap: bool = False,
    config: int = 0,
) -> torch.Tensor:
    """`overlap`: W may be asked for before the kernel before has finished; x never is."""
    (m, k), n = x.shape, len(w) // 2 if gated else len(w)
    if x.dtype not in (torch.float16, torch.bfloat16) or w.dtype != x.dtype:
        raise ChipError(f"skinny multiplies fp16 by fp16 or bf16 by bf16, not {x.dtype} by {w.dtype}")
    if w.shape[1] != k or x.stride(1) != 1 or w.stride(1) != 1:
        raise ChipError(f"skinny wants m x k and n x k, contiguous along k; got {tuple(x.shape)} and {tuple(w.shape)}")
    out = torch.empty((m, n), dtype=x.dtype, device=x.device) if out is None else out
    floats, counters = workspace(x.device)
    build.launch(
        stem, "skinny", x.device, ARGUMENTS, x.data_ptr(), w.data_ptr(), None if bias is None else bias.data_ptr(),
        out.data_ptr(), floats.data_ptr(), counters.data_ptr(), m, n, k, x.stride(0), w.stride(0), out.stride(0),
        x.dtype == torch.bfloat16, gated, config, overlap, FLOATS, COUNTERS,
    )  # fmt: skip
    return out


def takes(stem: str, x: torch.Tensor, w: torch.Tensor, *rest: torch.Tensor) -> str:
    """Why the kernel refuses such tensors; nothing where it takes them."""
    if len(x) > MOST_TOKENS:
        return f"more than {MOST_TOKENS} rows"
    if any(t.stride(0) % 8 or t.data_ptr() % 16 for t in (x, w)):
        return "rows must start at multiples of 16 bytes"
    return ""


def cases(draw: Any, count: int, small: bool, dtypes: Sequence[str]) -> list[Linear]:
    """One token to 64, tails along n and k, and products small and deep enough that blocks divide k."""
    shapes = [(1, 1, 8), (8, 16, 64), (9, 17, 72), (16, 48, 4096), (17, 33, 200), (32, 100, 8192), (33, 64, 4096),
              (64, 129, 1000), (1, 4096, 4096), (64, 6144, 4096), (5, 2048, 14336)]  # fmt: skip
    shapes += [(draw.randint(1, 64), draw.randint(1, 3000), 8 * draw.randint(1, 400)) for _ in range(count)]
    return [Linear(m, n, k, dtype) for m, n, k in shapes for dtype in ("bf16", "fp16")]


inputs, native, reference = skinny_gemm.inputs, skinny_gemm.native, skinny_gemm.reference
rivals = cublaslt.rivals
