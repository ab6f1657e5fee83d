"""How rows are dealt to programs: what the kernels over the rows of a matrix share.

A program takes ROWS rows at a time, each padded to COLS columns (a power of two), in some warps. `per_unit` 0 starts
as many programs as there are blocks of rows; otherwise that many per SM stay and walk over the blocks, the loads of
the next one under way (STAGES) while this one is computed. Rows over LONGEST columns are taken in chunks, twice: what
the second pass reads is still in L2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from chip.measure.build import normal
from chip.ops.elementwise import Elementwise
from chip.types import ChipError

LONGEST = 32768
CHUNK = 8192


@dataclass(frozen=True)
class Plan:
    rows: int = 1
    warps: int = 4
    stages: int = 1
    per_unit: int = 0
    chunk: int = 0  # columns at a time; 0: the whole row at once


# What `chip kernels tune` found best on an H200, by kernel and columns (the power of two they are padded to).
TUNED: dict[str, dict[int, Plan]] = {}


def candidates(cols: int) -> list[Plan]:
    """Plans worth trying for such rows: 8 to 64 elements a thread, each with programs that come and go or that stay."""
    padded = power_of_two(cols)
    dealt = set()
    for warps in (1, 2, 4, 8, 16, 32):
        alone = padded // (32 * warps)
        if 8 <= alone <= 64:
            dealt.add((1, warps))
        if alone < 32 and warps <= 4:
            dealt.add((1024 * warps // padded, warps))
    found = [Plan(rows, warps) for rows, warps in sorted(dealt) if rows]
    found += [replace(p, stages=2, per_unit=max(1, 32 // p.warps)) for p in found if padded * p.rows <= 1024 * p.warps]
    if padded >= LONGEST:
        found += [Plan(1, warps, 2, 0, chunk) for warps in (8, 16) for chunk in (4096, 8192)]
    return found


def power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def plan(kernel: str, cols: int) -> Plan:
    padded = power_of_two(cols)
    found = TUNED.get(kernel, {}).get(padded)
    if found:
        return found
    if padded > LONGEST:
        return Plan(1, 16, 2, 0, CHUNK)
    warps = max(1, min(16, padded // 1024))  # 32 elements a thread: four 16-byte loads under way
    return Plan(max(1, 1024 * warps // padded), warps)


@lru_cache
def units(index: int) -> int:
    return int(torch.cuda.get_device_properties(index).multi_processor_count)


def grid(p: Plan, rows: int, device: torch.device) -> tuple[int]:
    blocks = -(-rows // p.rows)
    if not p.per_unit or device.type != "cuda":
        return (blocks,)
    return (min(blocks, p.per_unit * units(device.index or 0)),)


def flat(x: torch.Tensor) -> torch.Tensor:
    """The tensor as rows, its memory unchanged; columns must be neighbours."""
    if x.stride(-1) != 1 and x.shape[-1] > 1:
        raise ChipError(f"columns must be contiguous, got strides {tuple(x.stride())}; call .contiguous()")
    return x if x.dim() == 2 else x.view(-1, x.shape[-1])


def random_rows(op: Elementwise, device: torch.device, generator: torch.Generator, pad: int = 0) -> torch.Tensor:
    """A rows x cols tensor whose rows are `pad` elements further apart than they are long."""
    return normal((op.rows, op.cols + pad), op.dtype, device, generator)[:, : op.cols]


def mebibytes(cls: type[Elementwise], total: int, cols: tuple[int, ...], dtype: str = "bf16") -> list[Elementwise]:
    """Calls on `total` MiB in rows of each length."""
    return [cls((total << 20) // (2 * n), n, dtype) for n in cols]
