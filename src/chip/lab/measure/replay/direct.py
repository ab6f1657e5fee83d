"""Calls of the CUDA runtime and of cuBLAS for a unit, without the framework."""

from __future__ import annotations

from collections.abc import Callable

import torch

from chip.files.traces import Kernel, Operator, TensorArg
from chip.lab.measure.replay import cublas, cudart
from chip.lab.measure.replay.arguments import Buffers
from chip.lab.replay.gemm import Gemm
from chip.lab.replay.signatures import Unit

Call = Callable[[], object]


def calls(unit: Unit, buffers: Buffers, count: int) -> list[Call] | None:
    """As many calls as asked for, in turn over the buffers; None where only the operator can be called."""
    if unit.tier == 1:
        return _runtime(unit.members[0].kernel, buffers, count)
    product_of = next((m.gemm for m in unit.members if m.gemm), None)
    return _products(product_of, buffers, count) if unit.tier == 2 and product_of is not None else None


def stand_in(unit: Unit) -> Operator:
    """For a copy or fill that no operator launched: as many bytes, cold."""
    size = max(1, unit.members[0].kernel.size_bytes)
    return Operator("", "", (TensorArg((size,), (1,), "uint8", 0), TensorArg((size,), (1,), "uint8", 1)), ())


def product(gemm: Gemm, buffers: Buffers) -> torch.Tensor:
    """Asked of cuBLAS now, into memory made for it."""
    into = torch.empty(_elements(gemm), dtype=getattr(torch, gemm.dtype), device=buffers.device)
    cublas.product(gemm, _operands(gemm, buffers, 0), into)()
    return into


def _products(gemm: Gemm, buffers: Buffers, count: int) -> list[Call]:
    into = torch.randn(_elements(gemm), dtype=getattr(torch, gemm.dtype), device=buffers.device)
    return [cublas.product(gemm, _operands(gemm, buffers, turn), into) for turn in range(count)]


def _operands(gemm: Gemm, buffers: Buffers, turn: int) -> list[torch.Tensor | None]:
    used = {gemm.a.tensor, gemm.b.tensor, gemm.bias}
    return [buffers.tensor(i, turn) if i in used else None for i in range(len(buffers.operator.tensors))]


def _elements(gemm: Gemm) -> int:
    return gemm.batch * gemm.m * gemm.n


def _runtime(kernel: Kernel, buffers: Buffers, count: int) -> list[Call]:
    """Copies or fills of the recorded size; as many places in turn as the operator's buffers have copies."""
    size = max(1, kernel.size_bytes)
    copies = min(count, max(map(len, buffers.copies.values()), default=1))
    word = next((w for w in cudart.KINDS if w in kernel.name), "DtoD")  # as the profiler names copies
    source, into = (_bytes(copies * size, end, kernel.name, buffers.device) for end in (word[0], word[-1]))
    runs: list[Call] = []
    for turn in range(count):
        at = slice((turn % copies) * size, (turn % copies + 1) * size)
        if kernel.kind == "memset":
            runs.append(cudart.fill(into[at], size))
        else:
            runs.append(cudart.copy(into[at], source[at], size, cudart.KINDS[word]))
    return runs


def _bytes(size: int, end: str, name: str, device: torch.device) -> torch.Tensor:
    flat = torch.empty(size, dtype=torch.uint8, device="cpu" if end == "H" else device)
    if end == "H" and "Pinned" in name:
        flat = flat.pin_memory()
    return flat.random_(0, 256)
