"""The HGEMM ladder from Python: C = A B^T for fp16 or bf16 tensors, by any of its rungs (`cuda/hgemm_*.cu`)."""

from __future__ import annotations

import ctypes
from functools import cache

import torch

from chip.lab.kernels import build, catalog, cublaslt, gemm_plan, plans
from chip.lab.kernels.triton import skinny_gemm
from chip.lab.kernels.triton.rows import sm_count
from chip.ops.linear import Linear
from chip.types import ChipError

KIND = "linear"
COMPILED = False  # torch.compile leaves this call to the same library
RUNGS = catalog.steps("hgemm")
PATHS = {"naive": "fma", "shared": "fma", "wmma": "mma", "mma": "mma", "wgmma": "wgmma"}  # the instructions a rung runs
# What `config` may be, besides 0, which is the rung's own choice; see the end of its file.
CONFIGS: dict[str, tuple[int, ...]] = {
    "hgemm_4_mma": (1, 81, 321, 2, 3, 43, 163),
    "hgemm_5_wgmma": (
        *(401, 801, 1601, 3201, 403, 803, 1603, 802, *range(805, 817), *range(820, 826)),
        *(20802, 20805, 20807, 20808, 30808, 40808, 20809, 40809, 20815),
    ),
}
ARGUMENTS = (*(ctypes.c_void_p,) * 3, *(ctypes.c_int,) * 3, *(ctypes.c_int64,) * 3, ctypes.c_int, ctypes.c_int)
WITH_ARGUMENTS = (*ARGUMENTS, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int)
WGMMA = "hgemm_5_wgmma"
SQUARES = (4096, 8192)
LLM = ((4096, 6144, 4096), (4096, 28672, 4096), (8192, 4096, 14336))  # m, n, k: Llama-3.1-8B's qkv, gate+up, down
BENCH = [Linear(*s, dtype) for dtype in ("bf16", "fp16") for s in [*((n, n, n) for n in SQUARES), *LLM]]


# a second a call at the larger: timed at 4096 cubed alone
SLOW = {rung: [op for op in BENCH if op.m == op.n == op.k == SQUARES[0]] for rung in RUNGS[:2]}


def path_of(rung: str) -> str:
    return PATHS[rung.rsplit("_", 1)[1]]


def run(
    rung: str, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None, config: int = 0, overlap: bool = False
) -> torch.Tensor:
    """`a` (m x k) times `b` (n x k) transposed, as F.linear(a, b). `overlap`: `b` may be asked for before the kernel
    before has finished, by the rung that can; `a` never is."""
    (m, k), n = a.shape, b.shape[0]
    if a.dtype not in (torch.float16, torch.bfloat16) or b.dtype != a.dtype:
        raise ChipError(f"hgemm multiplies fp16 by fp16 or bf16 by bf16, not {a.dtype} by {b.dtype}")
    if b.shape[1] != k or a.stride(1) != 1 or b.stride(1) != 1:
        raise ChipError(f"hgemm wants m x k and n x k, contiguous along k; got {tuple(a.shape)} and {tuple(b.shape)}")
    out = torch.empty((m, n), dtype=a.dtype, device=a.device) if out is None else out
    config = config or plans.tuned(rung, plans.product(m, n, k)) or 0
    if rung == WGMMA:
        config = gemm_plan.fitting(config or gemm_plan.choose(m, n, k, sm_count(a.device.index or 0)), m, n, k)
    arguments = (
        a.data_ptr(), b.data_ptr(), out.data_ptr(), m, n, k, a.stride(0), b.stride(0), out.stride(0),
        a.dtype == torch.bfloat16, config,
    )  # fmt: skip
    if rung == WGMMA:
        shares = gemm_plan.splits_of(config) > 1
        room = [t.data_ptr() for t in workspace(a.device)] if shares else [0, 0]
        more = (overlap, *room, gemm_plan.FLOATS, gemm_plan.COUNTERS)
        build.launch(rung, "hgemm_with", a.device, WITH_ARGUMENTS, *arguments, *more)
    else:
        build.launch(rung, "hgemm", a.device, ARGUMENTS, *arguments)
    return out


@cache
def workspace(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums and counters of blocks that share a tile. One for a device: launches that use it must be on one stream."""
    sums = torch.empty(gemm_plan.FLOATS, dtype=torch.float32, device=device)
    return sums, torch.zeros(gemm_plan.COUNTERS, dtype=torch.int32, device=device)


def takes(rung: str, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> str:
    """Why a rung refuses such tensors; nothing where it takes them. The rungs say so themselves when called."""
    rows = {"mma": (a, b), "wgmma": (a, b, out)}.get(rung.rsplit("_", 1)[1], ())
    if any(t.stride(0) % 8 or t.data_ptr() % 16 for t in rows):
        return "rows must start at multiples of 16 bytes"
    return ""


inputs, native, reference = skinny_gemm.inputs, skinny_gemm.native, skinny_gemm.reference
rivals = cublaslt.rivals
