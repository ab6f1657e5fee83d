"""Row normalisation from Python: (x - mean) / std of each row, fp32, by any of its steps (`cuda/row_normalize_*`)."""

from __future__ import annotations

import ctypes

import torch

from chip.lab.kernels import build, catalog
from chip.lab.kernels.triton.rows import flat, random_rows
from chip.ops.elementwise import Elementwise, RowNormalize
from chip.types import ChipError

KIND = "row_normalize"
STEPS = catalog.steps("row_normalize")
ARGUMENTS = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
BENCH = [
    RowNormalize(rows, cols, "fp32")
    for rows, cols in ((1024, 128), (4096, 256), (8192, 512), (16384, 1024), (65536, 4096))
]


def run(step: str, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    if x.dtype != torch.float32:
        raise ChipError(f"row_normalize is fp32 only, not {x.dtype}")
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
    source, target = flat(x), flat(out)
    build.launch(
        step, "row_normalize", x.device, ARGUMENTS, source.data_ptr(), target.data_ptr(), *source.shape,
        source.stride(0), target.stride(0),
    )  # fmt: skip
    return out


def inputs(op: Elementwise, device: torch.device, generator: torch.Generator, pad: int = 0) -> tuple[torch.Tensor, ...]:
    return (random_rows(op, device, generator, pad),)


def native(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)


def reference(x: torch.Tensor) -> torch.Tensor:
    return native(x.double())
