"""Copies and fills of the CUDA runtime, called directly in the library that torch has loaded."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

from chip.types import ChipError

KINDS = {"HtoD": 1, "DtoH": 2, "DtoD": 3}  # cudaMemcpyKind


def loaded(stem: str) -> ctypes.CDLL:
    """The library of that name in this process: the very one that torch calls."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if Path(path).name.startswith(f"{stem}.so"):
            return ctypes.CDLL(path)
    raise ChipError(f"{stem} is not loaded: this torch ({torch.__version__}) was built without it")


@cache
def _library() -> ctypes.CDLL:
    torch.cuda.init()
    lib = loaded("libcudart")
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    lib.cudaMemcpyAsync.argtypes = [pointer, pointer, size, ctypes.c_int, pointer]
    lib.cudaMemsetAsync.argtypes = [pointer, ctypes.c_int, size, pointer]
    return lib


def copy(into: torch.Tensor, source: torch.Tensor, size_bytes: int, kind: int) -> Callable[[], None]:
    lib = _library()

    def call() -> None:  # holds both tensors: a graph of it does not
        stream = torch.cuda.current_stream().cuda_stream
        _check(lib.cudaMemcpyAsync(into.data_ptr(), source.data_ptr(), size_bytes, kind, stream))

    return call


def fill(into: torch.Tensor, size_bytes: int) -> Callable[[], None]:
    lib = _library()

    def call() -> None:
        _check(lib.cudaMemsetAsync(into.data_ptr(), 0, size_bytes, torch.cuda.current_stream().cuda_stream))

    return call


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"the CUDA runtime answered with error {status}")
