"""How rows are dealt to programs: what the kernels over the rows of a matrix share.

Each comes in three forms (`choose`). Short rows: a program takes ROWS of them at a time, padded to COLS columns (a
power of two), as fp32 in registers. Long rows are *held*: one row a program, in PARTS parts of COLS columns, kept as
they came from memory and made fp32 anew for each use, which takes half the registers, so that an SM always holds
128 KiB of rows, be it one of them or four. Rows too long even for that are read *twice*, in chunks of COLS columns, by
few enough programs that the second reading finds them in L2.

`per_unit` 0 starts a program for each block of rows; otherwise that many per SM stay and walk over the blocks, the
loads of what comes next under way (STAGES) while this is computed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from chip.kernels.triton.language import jit, tl
from chip.measure.build import normal
from chip.ops.elementwise import Elementwise
from chip.types import ChipError

THREAD_BYTES = 128  # of a row in each thread: eight 16-byte loads under way
LONG_BYTES = 32 << 10  # rows from here on are held
HELD_BYTES = 128 << 10  # what 1024 threads can hold


@dataclass(frozen=True)
class Plan:
    rows: int = 1
    warps: int = 4
    stages: int = 1
    per_unit: int = 0
    chunk: int = 0  # columns at a time; 0: the whole row at once
    held: bool = False  # the chunks of a row stay in registers; otherwise they are read twice
    registers: int = 0  # at most, a thread; 0: as many as the compiler likes


# Where `chip kernels tune` found another plan than `plan`'s rule best on an H200: 16-bit elements, by kernel and
# columns (the power of two they are padded to).
TUNED: dict[str, dict[int, Plan]] = {
    "layer_norm": {
        16384: Plan(rows=1, warps=8, stages=1, per_unit=0, chunk=2048, held=True, registers=64),
        32768: Plan(rows=1, warps=16, stages=1, per_unit=0, chunk=8192, held=True, registers=64),
        65536: Plan(rows=1, warps=32, stages=1, per_unit=0, chunk=16384, held=True, registers=64),
    },
    "rms_norm": {
        16384: Plan(rows=1, warps=16, stages=1, per_unit=0, chunk=4096, held=True, registers=40),
        32768: Plan(rows=1, warps=16, stages=1, per_unit=0, chunk=4096, held=True, registers=64),
        65536: Plan(rows=1, warps=32, stages=1, per_unit=0, chunk=16384, held=True, registers=64),
    },
    "softmax": {
        16384: Plan(rows=1, warps=16, stages=1, per_unit=0, chunk=4096, held=True, registers=40),
        32768: Plan(rows=1, warps=8, stages=1, per_unit=0, chunk=2048, held=True, registers=128),
        65536: Plan(rows=1, warps=16, stages=1, per_unit=0, chunk=4096, held=True, registers=128),
    },
}


def plan(kernel: str, cols: int, element_bytes: int) -> Plan:
    """128 bytes of a row a thread, at least 2 KiB of rows a warp."""
    padded = power_of_two(cols)
    found = TUNED.get(kernel, {}).get(padded)
    if found and element_bytes == 2:
        return found
    if cols * element_bytes > HELD_BYTES:
        return Plan(1, 16, 2, 1, 8192)
    row_bytes = padded * element_bytes
    warps = max(1, row_bytes // (32 * THREAD_BYTES))
    if row_bytes >= LONG_BYTES:
        return hold(warps, element_bytes)
    return Plan(max(1, 2048 // row_bytes), warps)


def candidates(cols: int) -> list[Plan]:
    """Plans worth trying for such rows of 16-bit elements."""
    padded = power_of_two(cols)
    if 2 * padded >= LONG_BYTES:
        return LONG.get(padded, TWICE)
    dealt = set()  # 8 to 64 elements a thread, each with programs that come and go or that stay
    for warps in (1, 2, 4, 8, 16, 32):
        alone = padded // (32 * warps)
        if 8 <= alone <= 64:
            dealt.add((1, warps))
        if alone < 32 and warps <= 4:
            dealt.add((1024 * warps // padded, warps))
    found = [Plan(rows, warps) for rows, warps in sorted(dealt) if rows]
    return found + [
        replace(p, stages=2, per_unit=max(1, 32 // p.warps)) for p in found if padded * p.rows <= 1024 * p.warps
    ]


def hold(warps: int, element_bytes: int = 2, loads: int = 1, registers: int = 64) -> Plan:
    """Parts of so many 16-byte loads a thread. With 64 registers a thread, 1024 threads fill an SM."""
    return Plan(1, warps, chunk=32 * warps * loads * 16 // element_bytes, held=True, registers=registers)


TWICE = [Plan(1, 16, 3, 1, 8192), Plan(1, 32, 3, 1, 8192), Plan(1, 32, 2, 1, 16384), Plan(1, 16, 3, 2, 8192),
         Plan(1, 8, 4, 2, 4096)]  # fmt: skip
LONG = {
    16384: [Plan(1, 8), Plan(1, 16), hold(8), hold(8, loads=2), hold(8, registers=80), hold(16), hold(16, registers=40),
            hold(4, registers=128)],
    32768: [hold(16), hold(16, loads=2), hold(32), hold(8, registers=128), Plan(1, 32, 2, 1),
            replace(hold(16, registers=128), stages=2, per_unit=1), replace(hold(32), stages=2, per_unit=1),
            Plan(1, 16, 3, 2, 8192), Plan(1, 8, 3, 3, 4096)],
    65536: [hold(32), hold(32, loads=2), hold(16, registers=128), replace(hold(32), stages=2, per_unit=1), *TWICE],
}  # fmt: skip


def power_of_two(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def choose(p: Plan, short: Any, held: Any, twice: Any) -> Any:
    """The form of a kernel that a plan is for."""
    return short if not p.chunk else held if p.held else twice


def launch(p: Plan, cols: int) -> dict[str, Any]:
    """What a plan says to the kernel and to the compiler."""
    if not p.chunk:
        sizes = {"ROWS": p.rows, "COLS": power_of_two(cols)}
    else:
        sizes = {"COLS": p.chunk} | ({"PARTS": -(-cols // p.chunk)} if p.held else {})
    return {**sizes, "STAGES": p.stages, "num_warps": p.warps, "maxnreg": p.registers or None}


@jit
def inside(lane, cols, part, PARTS: tl.constexpr, COLS: tl.constexpr):
    """Which lanes of a part have a column: all but in the last, so that only there anything is compared."""
    return tl.full((COLS,), True, tl.int1) if part < PARTS - 1 else part * COLS + lane < cols


@jit
def load_parts(row, cols, other: tl.constexpr, PARTS: tl.constexpr, COLS: tl.constexpr):
    lane = tl.arange(0, COLS)
    held = ()
    for i in tl.static_range(PARTS):
        here = inside(lane, cols, i, PARTS, COLS)
        held += (tl.load(row + i * COLS + lane, mask=here, other=other, eviction_policy="evict_first"),)  # type: ignore
    return held


@jit
def again(held, known):
    """What is held, as fp32, made anew once `known` is: a number of the row that, if NaN, makes the result NaN. Only
    then a bit is changed, but that ties the conversion to it. Otherwise the compiler would do it once, before, and
    keep the result for every use, at twice the registers."""
    if held.dtype == tl.float32:
        v = held
    else:
        flip = (known != known).to(tl.int16)
        v = (held.to(tl.int16, bitcast=True) ^ flip).to(held.dtype, bitcast=True).to(tl.float32)
    return v


@lru_cache
def units(index: int) -> int:
    return int(torch.cuda.get_device_properties(index).multi_processor_count)


def grid(p: Plan, rows: int, device: torch.device) -> tuple[int]:
    blocks = -(-rows // p.rows)
    if not p.per_unit:
        return (blocks,)
    return (min(blocks, p.per_unit * (units(device.index or 0) if device.type == "cuda" else 1)),)


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
