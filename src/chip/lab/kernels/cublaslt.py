"""cublasLt's best algorithm for a product: all that its heuristic offers for the shape, timed, the fastest kept.

PyTorch takes the heuristic's first answer; this is what the library can do. Called through the copy of it that torch
has loaded. Matrices are column-major there, so C^T = (B^T)^T A^T: our n x k weight is its first factor, transposed.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from functools import lru_cache
from typing import Any

import torch

from chip.stats import median
from chip.types import ChipError

TYPES = {torch.float16: 2, torch.bfloat16: 14}  # cudaDataType
FP32, COMPUTE_FP32, TRANSPOSED = 0, 68, 1
DESC_TRANSPOSE_A, MOST_WORKSPACE = 3, 1  # attributes of a product's description and of a preference
WORKSPACE_BYTES = 64 << 20
OFFERS = 16
REPEATS = 5


class Offer(ctypes.Structure):
    _fields_ = [
        ("algorithm", c_uint64 * 8),
        ("workspace_bytes", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    ]


@lru_cache(maxsize=1)
def _library() -> Any:
    major = (torch.version.cuda or "0").split(".")[0]
    try:
        return ctypes.CDLL(f"libcublasLt.so.{major}")
    except OSError:
        raise ChipError(f"libcublasLt.so.{major} is not loaded: torch {torch.__version__} has no cuBLAS") from None


def _must(status: int, what: str) -> None:
    if status:
        raise ChipError(f"cublasLt: {what} gave status {status}")


@lru_cache(maxsize=1)
def _handle() -> c_void_p:
    handle = c_void_p()
    _must(_library().cublasLtCreate(byref(handle)), "cublasLtCreate")
    return handle


class Product:
    """F.linear(a, b) for one shape, by the best of cublasLt's algorithms."""

    def __init__(self, a: torch.Tensor, b: torch.Tensor) -> None:
        (m, k), n = a.shape, b.shape[0]
        lib, kind = _library(), c_int(TYPES[a.dtype])
        self.desc, self.preference = c_void_p(), c_void_p()
        self.layouts = [c_void_p() for _ in range(3)]
        _must(lib.cublasLtMatmulDescCreate(byref(self.desc), c_int(COMPUTE_FP32), c_int(FP32)), "a description")
        turned = c_int32(TRANSPOSED)
        _must(
            lib.cublasLtMatmulDescSetAttribute(self.desc, c_int(DESC_TRANSPOSE_A), byref(turned), c_size_t(4)),
            "a transpose",
        )
        for layout, (rows, cols, step) in zip(self.layouts, ((k, n, b.stride(0)), (k, m, a.stride(0)), (n, m, n))):
            status = lib.cublasLtMatrixLayoutCreate(byref(layout), kind, c_uint64(rows), c_uint64(cols), c_int64(step))
            _must(status, "a layout")
        _must(lib.cublasLtMatmulPreferenceCreate(byref(self.preference)), "a preference")
        most = c_size_t(WORKSPACE_BYTES)
        _must(
            lib.cublasLtMatmulPreferenceSetAttribute(self.preference, c_int(MOST_WORKSPACE), byref(most), c_size_t(8)),
            "a preference",
        )
        self.workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=a.device)
        self.one, self.zero = c_float(1), c_float(0)
        self.offer = min(self._offers(), key=lambda offer: self._seconds(offer, a, b))

    def _offers(self) -> list[Offer]:
        offers, count = (Offer * OFFERS)(), c_int()
        w, x, y = self.layouts
        status = _library().cublasLtMatmulAlgoGetHeuristic(
            _handle(), self.desc, w, x, y, y, self.preference, c_int(OFFERS), offers, byref(count)
        )
        _must(status, "the heuristic")
        return [offer for offer in offers[: count.value] if offer.state == 0]

    def _seconds(self, offer: Offer, a: torch.Tensor, b: torch.Tensor) -> float:
        times = []
        for _ in range(REPEATS):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            self._run(offer, a, b)
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        return median(times)

    def _run(self, offer: Offer, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        out = torch.empty((a.shape[0], b.shape[0]), dtype=a.dtype, device=a.device)
        w, x, y = self.layouts
        to = c_void_p(out.data_ptr())
        status = _library().cublasLtMatmul(
            _handle(), self.desc, byref(self.one), c_void_p(b.data_ptr()), w, c_void_p(a.data_ptr()), x,
            byref(self.zero), to, y, to, y, byref(offer.algorithm), c_void_p(self.workspace.data_ptr()),
            c_size_t(WORKSPACE_BYTES), c_void_p(torch.cuda.current_stream(a.device).cuda_stream),
        )  # fmt: skip
        _must(status, "a product")
        return out

    def __call__(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self._run(self.offer, a, b)


def rivals(a: torch.Tensor, b: torch.Tensor) -> dict[str, Any]:
    """What else the vendor offers for F.linear(a, b)."""
    return {"cublaslt": Product(a, b)} if a.is_cuda and torch.version.cuda is not None else {}
