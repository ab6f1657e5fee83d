"""Matrix products asked of cuBLAS and cuBLASLt directly, with the settings that torch gives them.

The library picks the algorithm, as it did in the model; it goes by shapes, leading dimensions, alignment, epilogue and
the size of the workspace, all of which are the same here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from typing import Any

import torch

from chip.lab.measure.replay.cudart import loaded
from chip.lab.replay.gemm import Gemm, GemmOperand
from chip.types import ChipError

TYPES = {"float32": 0, "float16": 2, "bfloat16": 14}  # cudaDataType
COMPUTE_32F = 68
DEFAULT_TENSOR_OP = 99
EPILOGUES = {"bias": 4, "relu_bias": 6, "gelu_bias": 36}
# attributes of cublasLt descriptors and preferences
TRANSA, TRANSB, EPILOGUE, BIAS_POINTER = 3, 4, 7, 8
MAX_WORKSPACE, ALIGNMENTS = 1, (5, 6, 7, 8)
WORKSPACE_HOPPER, WORKSPACE_ELSE = 32 * 2**20, 2 * 4096 * 1024 + 8 * 16 * 1024  # torch's defaults


class Heuristic(ctypes.Structure):
    _fields_ = [
        ("algo", c_uint64 * 8),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    ]


@cache
def _workspace(device: int) -> torch.Tensor:
    major = torch.cuda.get_device_capability(device)[0]
    size = WORKSPACE_HOPPER if major in (9, 10) else WORKSPACE_ELSE
    return torch.empty(size, dtype=torch.uint8, device=f"cuda:{device}")


@cache
def _blas(device: int) -> tuple[Any, c_void_p]:
    """cuBLAS and a handle on the device."""
    with torch.cuda.device(device):
        torch.cuda.current_blas_handle()  # loads the library and warms it up
        lib = loaded("libcublas")
        handle = c_void_p()
        _check(lib.cublasCreate_v2(byref(handle)), "cublasCreate")
        _check(lib.cublasSetMathMode(handle, 0), "cublasSetMathMode")
    return lib, handle


@cache
def _lt(device: int) -> tuple[Any, c_void_p]:
    _blas(device)
    lib = loaded("libcublasLt")
    handle = c_void_p()
    with torch.cuda.device(device):
        _check(lib.cublasLtCreate(byref(handle)), "cublasLtCreate")
    return lib, handle


def product(gemm: Gemm, tensors: Sequence[torch.Tensor | None], into: torch.Tensor) -> Callable[[], None]:
    """A call that computes the product of the given operands (by the operator's numbering) into `into`."""
    if gemm.dtype not in TYPES:
        raise ChipError(f"matrix products of {gemm.dtype} are not called directly")
    return _lt_call(gemm, tensors, into) if gemm.epilogue else _ex_call(gemm, tensors, into)


def _address(tensors: Sequence[torch.Tensor | None], matrix: GemmOperand) -> int:
    tensor = tensors[matrix.tensor] if matrix.tensor is not None else None
    if tensor is None:
        raise ChipError("an operand of the product was not recorded")
    return int(tensor.data_ptr())


def _ex_call(gemm: Gemm, tensors: Sequence[torch.Tensor | None], into: torch.Tensor) -> Callable[[], None]:
    device = into.device.index or 0
    lib, handle = _blas(device)
    room = _workspace(device)
    kind = c_int(TYPES[gemm.dtype])
    alpha, beta = c_float(gemm.alpha), c_float(gemm.beta)
    a, b, c = _address(tensors, gemm.a), _address(tensors, gemm.b), into.data_ptr()
    shape = [handle, c_int(gemm.a.transposed), c_int(gemm.b.transposed), *map(c_int, (gemm.m, gemm.n, gemm.k))]

    def operand(address: int, m: GemmOperand) -> list[Any]:
        strided = [c_int64(m.batch_stride)] if gemm.batch > 1 else []
        return [c_void_p(address), kind, c_int(m.ld), *strided]

    args = [*shape, byref(alpha), *operand(a, gemm.a), *operand(b, gemm.b), byref(beta), *operand(c, gemm.c)]
    if gemm.batch > 1:
        function, more = lib.cublasGemmStridedBatchedEx, [c_int(gemm.batch)]
    else:
        function, more = lib.cublasGemmEx, []
    args += [*more, c_int(COMPUTE_32F), c_int(DEFAULT_TENSOR_OP)]
    keep = (alpha, beta, into, *tensors)

    def call() -> None:
        _ = keep
        _check(lib.cublasSetStream_v2(handle, c_void_p(torch.cuda.current_stream().cuda_stream)), "cublasSetStream")
        _check(lib.cublasSetWorkspace_v2(handle, c_void_p(room.data_ptr()), c_size_t(room.numel())), "workspace")
        _check(function(*args), gemm.api)

    return call


def _lt_call(gemm: Gemm, tensors: Sequence[torch.Tensor | None], into: torch.Tensor) -> Callable[[], None]:
    device = into.device.index or 0
    lib, handle = _lt(device)
    room = _workspace(device)
    kind = TYPES[gemm.dtype]
    bias = tensors[gemm.bias] if gemm.bias is not None else None
    if bias is None:
        raise ChipError("the bias of the product was not recorded")
    a, b, c = _address(tensors, gemm.a), _address(tensors, gemm.b), into.data_ptr()
    described = c_void_p()
    _check(lib.cublasLtMatmulDescCreate(byref(described), c_int(COMPUTE_32F), c_int(0)), "descriptor")
    for attribute, value in (
        (TRANSA, c_int32(gemm.a.transposed)),
        (TRANSB, c_int32(gemm.b.transposed)),
        (EPILOGUE, c_int32(EPILOGUES[gemm.epilogue])),
        (BIAS_POINTER, c_void_p(bias.data_ptr())),
    ):
        status = lib.cublasLtMatmulDescSetAttribute(described, attribute, byref(value), c_size_t(ctypes.sizeof(value)))
        _check(status, f"descriptor attribute {attribute}")
    layouts = [
        _layout(lib, kind, (gemm.k, gemm.m) if gemm.a.transposed else (gemm.m, gemm.k), gemm.a.ld),
        _layout(lib, kind, (gemm.n, gemm.k) if gemm.b.transposed else (gemm.k, gemm.n), gemm.b.ld),
        _layout(lib, kind, (gemm.m, gemm.n), gemm.c.ld),
    ]
    choice = _heuristic(lib, handle, described, layouts, (a, b, c, bias.data_ptr()), room.numel())
    one, zero = c_float(gemm.alpha), c_float(gemm.beta)
    keep = (one, zero, choice, into, *tensors)

    def call() -> None:
        _ = keep
        la, lb, lc = layouts
        stream = c_void_p(torch.cuda.current_stream().cuda_stream)
        status = lib.cublasLtMatmul(
            handle, described, byref(one), c_void_p(a), la, c_void_p(b), lb, byref(zero), c_void_p(c), lc,
            c_void_p(c), lc, byref(choice.algo), c_void_p(room.data_ptr()), c_size_t(room.numel()), stream,
        )  # fmt: skip
        _check(status, gemm.api)

    return call


def _layout(lib: Any, kind: int, shape: tuple[int, int], ld: int) -> c_void_p:
    layout = c_void_p()
    rows, cols = shape
    _check(
        lib.cublasLtMatrixLayoutCreate(byref(layout), c_int(kind), c_uint64(rows), c_uint64(cols), c_int64(ld)),
        "layout",
    )
    return layout


def _heuristic(
    lib: Any, handle: c_void_p, described: c_void_p, layouts: list[c_void_p], addresses: tuple[int, ...], room: int
) -> Heuristic:
    """The library's first choice, asked for as torch asks: with the alignment of each pointer."""
    preference = c_void_p()
    _check(lib.cublasLtMatmulPreferenceCreate(byref(preference)), "preference")
    limits: list[tuple[int, Any]] = [(MAX_WORKSPACE, c_size_t(room))]
    limits += [(attribute, c_uint32(_alignment(at))) for attribute, at in zip(ALIGNMENTS, addresses)]
    for attribute, value in limits:
        lib.cublasLtMatmulPreferenceSetAttribute(preference, attribute, byref(value), c_size_t(ctypes.sizeof(value)))
    choice, count = Heuristic(), c_int(0)
    la, lb, lc = layouts
    status = lib.cublasLtMatmulAlgoGetHeuristic(
        handle, described, la, lb, lc, lc, preference, c_int(1), byref(choice), byref(count)
    )
    _check(status, "cublasLtMatmulAlgoGetHeuristic")
    lib.cublasLtMatmulPreferenceDestroy(preference)
    if not count.value:
        raise RuntimeError("cuBLASLt knows no algorithm for this product")
    return choice


def _alignment(address: int) -> int:
    return min(256, address & -address) if address else 256


def _check(status: int, what: str) -> None:
    if status:
        raise RuntimeError(f"{what}: cuBLAS answered with error {status}")
