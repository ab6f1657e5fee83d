"""How rows are dealt to programs: what the kernels over the rows of a matrix share.

Each comes in three forms (`choose`). Short rows: a program takes ROWS of them at a time, padded to COLS columns (a
power of two), as fp32 in registers. Long rows are *held*: one row a program, in PARTS parts of COLS columns, kept as
they came from memory and made fp32 anew for each use, which takes half the registers, so that an SM always holds
128 KiB of rows, be it one of them or four. Rows too long even for that are read *twice*, in chunks of COLS columns, by
few enough programs that the second reading finds them in L1 and L2.

`per_unit` 0 starts a program for each block of rows; otherwise that many per SM stay and walk over the blocks, the
loads of what comes next under way (STAGES) while this is computed.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from chip.lab.kernels.plans import LaunchPlan, power_of_two
from chip.lab.kernels.triton.language import jit, tl
from chip.lab.measure.build import normal
from chip.ops.elementwise import Elementwise
from chip.types import ChipError


def choose(p: LaunchPlan, short: Any, held: Any, twice: Any) -> Any:
    """The form of a kernel that a plan is for."""
    return short if not p.chunk else held if p.held else twice


def launch(p: LaunchPlan, cols: int) -> dict[str, Any]:
    """What a plan says to the kernel and to the compiler."""
    sizes: dict[str, Any] = {"COLS": p.chunk or power_of_two(cols)}
    if not p.chunk:
        sizes["ROWS"] = p.rows
    elif p.held:
        sizes |= {"PARTS": -(-cols // p.chunk), "FETCHED": p.fetched, "KEPT": p.kept}
    if p.held or not p.chunk:
        sizes |= {"EVICT": p.evict, "CACHE": p.cache}
    return {**sizes, "STAGES": p.stages, "num_warps": p.warps, "maxnreg": p.registers or None}


@jit
def inside(lane, cols, part, PARTS: tl.constexpr, COLS: tl.constexpr):
    """Which lanes of a part have a column: all but in the last, so that only there anything is compared."""
    return tl.full((COLS,), True, tl.int1) if part < PARTS - 1 else part * COLS + lane < cols


@jit
def load_parts(
    row, cols, other: tl.constexpr, PARTS: tl.constexpr, COLS: tl.constexpr, EVICT: tl.constexpr, CACHE: tl.constexpr
):
    lane = tl.arange(0, COLS)
    held = ()
    for i in tl.static_range(PARTS):
        here = inside(lane, cols, i, PARTS, COLS)
        at = row + i * COLS + lane
        held += (tl.load(at, mask=here, other=other, eviction_policy=EVICT, cache_modifier=CACHE),)  # type: ignore
    return held


@jit
def with_part(
    vectors, vector, cols, part: tl.constexpr, before: tl.constexpr, PARTS: tl.constexpr, COLS: tl.constexpr, KEPT:
    tl.constexpr,
):  # fmt: skip
    """`vectors`, parts of a weight that every row needs, and one more of them, asked for before an earlier part of the
    result is stored: no load overtakes a store that it might depend on, and each would cost its full latency. L1 is to
    keep KEPT columns of weights, of which `before` are another's."""
    if part < PARTS:
        lane = tl.arange(0, COLS)
        here = inside(lane, cols, part, PARTS, COLS)
        stays: tl.constexpr = before + (part + 1) * COLS <= KEPT
        EVICT: tl.constexpr = "evict_last" if stays else ""
        CACHE: tl.constexpr = "" if stays else ".cg"
        at = vector + part * COLS + lane
        vectors += (tl.load(at, mask=here, other=0.0, eviction_policy=EVICT, cache_modifier=CACHE),)
    return vectors


@jit
def added(a, b, c, d):
    """Two sums at once, in one reduction."""
    return a + c, b + d


@jit
def grouped(part, GROUP: tl.constexpr):
    """By 16 bytes: what a thread has in one piece, so that sums over such a group stay within it."""
    return tl.reshape(part, (part.shape[0] // GROUP, GROUP))


@jit
def first_of(groups, GROUP: tl.constexpr):
    """The first column of each group, which costs nothing where a group is one thread's."""
    if GROUP == 8:
        groups, _ = tl.split(tl.reshape(groups, (groups.shape[0], 4, 2)))
    if GROUP >= 4:
        groups, _ = tl.split(tl.reshape(groups, (groups.shape[0], 2, 2)))
    groups, _ = tl.split(groups)
    return groups


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
def sm_count(index: int) -> int:
    return int(torch.cuda.get_device_properties(index).multi_processor_count)


def grid(p: LaunchPlan, rows: int, device: torch.device) -> tuple[int]:
    blocks = -(-rows // p.rows)
    if not p.per_unit:
        return (blocks,)
    return (min(blocks, p.per_unit * (sm_count(device.index or 0) if device.type == "cuda" else 1)),)


def flat(x: torch.Tensor) -> torch.Tensor:
    """The tensor as rows, its memory unchanged; columns must be neighbours."""
    if x.stride(-1) != 1 and x.shape[-1] > 1:
        raise ChipError(f"columns must be contiguous, got strides {tuple(x.stride())}; call .contiguous()")
    return x if x.dim() == 2 else x.view(-1, x.shape[-1])


def random_rows(op: Elementwise, device: torch.device, generator: torch.Generator, pad: int = 0) -> torch.Tensor:
    """A rows x cols tensor whose rows are `pad` elements further apart than they are long."""
    return normal((op.rows, op.cols + pad), op.dtype, device, generator)[:, : op.cols]


def mebibytes(cls: type[Elementwise], total: int, cols: tuple[int, ...]) -> list[Elementwise]:
    """Calls on `total` MiB in rows of each length."""
    return [cls((total << 20) // (2 * n), n) for n in cols]
