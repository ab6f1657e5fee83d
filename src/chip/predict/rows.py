"""Operators over rows and columns: what limits them, in a few numbers that are fitted to measurements.

A row by itself takes its time, however few there are; many rows are limited by what the device does for each of them
and by their bytes. Whether those come from cache makes another difference. What is left to learn is smooth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chip.types import Op

# Operators that take each element by itself: only how many there are counts.
FLAT = ("add", "copy", "fill", "gelu", "gelu_fast", "gelu_new", "relu", "scale", "silu", "silu_mul", "softcap")
ROW_AXES, FLAT_AXES = ("rows", "cols"), ("elements",)
# Where torch takes another kernel: the last size of the one before. Softmax: a warp a row, the row in registers, the
# row in shared memory. A few rows are gathered by a kernel that walks over them. An argmax of 256 values and more for
# each of 512 threads is shared by several blocks.
JUMPS: dict[str, tuple[str, tuple[int, ...]]] = {
    "softmax": ("cols", (2048, 9216, 24511)),
    "embedding": ("rows", (16,)),
    "sampling": ("cols", (256 * 512 - 1,)),
}
# Columns that a block of torch's norms takes at a time: 128 threads, four each.
STEPS = dict.fromkeys(("rms_norm", "layer_norm", "add_rms_norm"), 512)
IN_TURN = {"embedding": 0}  # the kernel, of those of an operator, whose rows come one after another
SHARP = 3  # of the blend of one row's time and many rows'
KNEE = 4  # how suddenly the cache ends


@dataclass(frozen=True)
class Kernel:
    row_s: float  # a row by itself: start and end, ...
    column_s: float  # ... and each column
    each_s: float  # for each of many rows
    byte_s: float


@dataclass(frozen=True)
class Rows:
    """The numbers of an operator: a kernel up to each edge and one after the last."""

    kernels: tuple[Kernel, ...]
    edges: tuple[int, ...]  # of columns, or rows: as in JUMPS
    blend: float  # of rows and bytes: 1 where their times add, more where one hides the other
    knee_bytes: float  # that a call may move and still find them in cache
    later_row: float  # how much longer a row takes beyond, as a share
    later_byte: float  # and a byte


def sizes(op: Any) -> tuple[int, int]:
    """Rows and columns, with those that idle lanes would take in a row's last step."""
    if op.kind in FLAT:
        return 1, op.rows * op.cols
    step = STEPS.get(op.kind, 1)
    return op.rows, -(-op.cols // step) * step


def seconds(op: Op, moved: float, r: Rows) -> float:
    """Without the floor."""
    rows, cols = sizes(op)
    which = 0
    if r.edges:
        size = getattr(op, JUMPS[op.kind][0])
        which = sum([size > edge for edge in r.edges])
    turns = rows if IN_TURN.get(op.kind) == which else 1
    k = r.kernels[which]
    numbers = (k.row_s, k.column_s, k.each_s, k.byte_s)
    return float(blended(numbers, turns, rows, cols, moved, r.blend, r.knee_bytes, r.later_row, r.later_byte))


def blended(
    kernel: Any, turns: Any, rows: Any, cols: Any, moved: Any, blend: Any, knee_bytes: float, *later: Any
) -> Any:
    """Of numbers, or of arrays of them."""
    row_s, column_s, each_s, byte_s = kernel
    later_row, later_byte = later
    beyond = 1 / (1 + (knee_bytes / moved) ** KNEE)
    alone_s = turns * (row_s + column_s * cols) * (1 + later_row * beyond)
    many_s = (rows * each_s) ** blend + (moved * byte_s * (1 + later_byte * beyond)) ** blend
    return (alone_s**SHARP + many_s ** (SHARP / blend)) ** (1 / SHARP)
