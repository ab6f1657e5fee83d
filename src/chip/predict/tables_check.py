"""What a file of operator tables may say in the right types and yet not mean: told before a prediction stumbles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple

from chip import ops
from chip.predict import tiled
from chip.predict.rows import JUMPS, Rows
from chip.predict.shapes import FEATURES
from chip.predict.tables import AXES, ROW_OPS, Base, Forest, OperatorTable, Surface, Tables, axes
from chip.types import ChipError

LARGEST = 1e30  # of any number; what is not a number is not below it either


def check(tables: Tables, where: str) -> None:
    if not 1 <= tables.units < LARGEST:
        raise ChipError(f"{where}.units must be a positive number, got {str(tables.units)[:40]}")
    s = tables.settling
    if s is not None and not (
        0 <= s.boost < 1 and 0.5 <= s.measured <= 1.5 and 0 < s.time_s < LARGEST and s.flop_per_s > 0
    ):
        raise ChipError(f"{where}.settling must have 0 <= boost < 1, measured near 1, and time and rate above 0")
    for i, t in enumerate(tables.operators):
        wrong = _wrong(t)
        if wrong:
            raise ChipError(f"{where}.operators[{i}], {t.op[:40]!r}: {wrong}")


def _wrong(t: OperatorTable) -> str:
    if t.op not in ops.names():
        return "there is no such operator"
    if (t.forest is None) == (t.surface is None):
        return "it needs either a forest or a surface"
    if (t.surface is None) != (t.op in AXES):
        return f"it needs a {'forest' if t.op in AXES else 'surface'}"
    if t.surface and not issubclass(ops.get(t.op), ROW_OPS):
        return "it has no surface over rows and columns"
    if set(t.ranges) != set(axes(t.op)) or not all(0 < low <= high < LARGEST for low, high in t.ranges.values()):
        return f"ranges must give 0 < least <= most of {', '.join(axes(t.op))}"
    if not t.spreads or not all(0 < s.low <= 1 <= s.high < LARGEST and 0 < s.upto_s < LARGEST for s in t.spreads):
        return "spreads must be there, each with 0 < low <= 1 <= high and 0 < upto_s"
    learnt = (
        _wrong_forest(t.forest, tiled.FEATURES if t.base.tiled else FEATURES[t.op])
        if t.forest
        else _wrong_surface(t.surface)
    )
    return _wrong_base(t.base, t.op) or learnt


def _wrong_base(b: Base, op: str) -> str:
    rates: tuple[float, ...] = (b.flop_per_s, b.bytes_per_s, b.copy_bytes_per_s)
    if b.tiled is not None:
        rates += astuple(b.tiled)[1:]
    if b.blocks is not None:
        rates += astuple(b.blocks)
    if not all(0 < v < LARGEST for v in rates) or not 0 <= b.floor_s < LARGEST:
        return "its base must have positive rates and times"
    if b.rows and op in AXES:
        return "its base has times of rows, but it has none"
    return _wrong_rows(b.rows, op) if b.rows else ""


def _wrong_rows(r: Rows, op: str) -> str:
    if len(r.kernels) != len(r.edges) + 1 or (r.edges and op not in JUMPS):
        return "the rows of its base need a kernel up to each edge and one after the last"
    times = [v for k in r.kernels for v in astuple(k)]
    if not all(0 < v < LARGEST for v in (*times, r.blend, r.knee_bytes)) or not all(
        0 <= v < LARGEST for v in (r.later_row, r.later_byte)
    ):
        return "the rows of its base must have positive times"
    return ""


def _wrong_forest(f: Forest, features: int) -> str:
    size = len(f.feature)
    if not f.roots or any(len(a) != size for a in (f.threshold, f.left, f.right, f.value)):
        return "its forest needs roots, and arrays of one length"
    if not _finite((f.start, *f.threshold, *f.value)):
        return "its forest holds NaN or infinity"
    if not all(0 <= r < size for r in f.roots) or not all(0 <= i < features for i in f.feature):
        return "its forest has a root or a feature that is not there"
    # children come after their node, so that no walk goes round in circles
    inner = [node for node in zip(range(size), f.left, f.right) if node[1] >= 0]
    if not all(i < left < size and i < right < size for i, left, right in inner):
        return "its forest has a node whose child is none of the nodes after it"
    return ""


def _wrong_surface(s: Surface | None) -> str:
    assert s is not None
    if not s.weight or not len(s.x) == len(s.y) == len(s.weight):
        return "its surface needs points, and arrays of one length"
    if any(axis not in (0, 1) for axis, _ in s.edges):
        return "an edge of its surface must be of rows, 0, or columns, 1"
    finite = _finite((s.constant, *s.x, *s.y, *s.weight, *(at for _, at in s.edges)))
    return "" if finite else "its surface holds NaN or infinity"


def _finite(numbers: Sequence[float]) -> bool:
    return all(-LARGEST < v < LARGEST for v in numbers)
