"""The base that a learned correction starts from, fitted to measurements by least absolute logarithmic error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares, minimize

from chip.measure.profile import MAX_SETS
from chip.predict.flash import Blocks
from chip.predict.rows import IN_TURN, JUMPS, Kernel, Rows, blended, sizes
from chip.predict.tables import Base
from chip.predict.tiled import Tiled
from chip.types import Op

SURFACE_FLOOR_S = 1.2e-6
USUAL = 0.05  # error of a logarithm from which on a point counts less than its square
HELD = 0.03  # pull of a number towards where it started from, for those that no point tells
MOST_BLEND = 2.0  # as a logarithm: with more, one limit hides the other altogether
CACHE_SHARE = 2 / 3  # of a cache: what is read and written again stays in it up to here


class Cache(NamedTuple):
    """Up to where calls find what they move in cache: calls in turn over many sets of buffers, or on one set."""

    knee_bytes: float
    rotated: bool  # then rows wait for memory beyond; on one set, bytes do

    @classmethod
    def of(cls, context: str, l2_bytes: float) -> Cache:
        if context == "cold":
            return cls(l2_bytes / MAX_SETS, True)
        return cls(CACHE_SHARE * l2_bytes, False)


def dense_base(base: Base, ops: Sequence[Op], measured: np.ndarray, units: int) -> Base:
    """Floor and rates."""

    def made(p: np.ndarray) -> Base:
        floor, flops, rate, copy = _numbers(p)
        return Base(floor, flops, rate, copy_bytes_per_s=copy)

    start = np.log([base.floor_s, 0.6 * base.flop_per_s, 0.7 * base.bytes_per_s, 0.3 * base.bytes_per_s])
    return made(_nearest(made, ops, measured, units, start, 1000))


def tiled_base(base: Base, ops: Sequence[Op], measured: np.ndarray, units: int, packs: bool) -> Base:
    """Floor, rates and the numbers of `Tiled`."""

    def made(p: np.ndarray) -> Base:
        floor, flops, rate, *rest = _numbers(p)
        return Base(floor, flops, rate, tiled=Tiled(packs, *rest))

    start = np.log([base.floor_s, base.flop_per_s, base.bytes_per_s, 1.5e-6, 30, 1.3, 0.8, 0.9, 0.9, 0.7])
    return _least(made, ops, measured, units, start)


def flash_base(base: Base, ops: Sequence[Op], measured: np.ndarray, units: int) -> Base:
    """Floor, rates and the numbers of `Blocks`."""

    def made(p: np.ndarray) -> Base:
        floor, flops, rate, copy, *rest = _numbers(p)
        return Base(floor, flops, rate, copy, blocks=Blocks(*rest))

    of_blocks = (1e-6, 1.3, 2.5e-6, 1e-7, 0.5, 0.8, 0.9, 0.8, base.bytes_per_s)
    rates = (base.flop_per_s, base.bytes_per_s, 0.5 * base.bytes_per_s)
    return _least(made, ops, measured, units, np.log([base.floor_s, *rates, *of_blocks]))


def _least(
    made: Callable[[np.ndarray], Base], ops: Sequence[Op], measured: np.ndarray, units: int, start: np.ndarray
) -> Base:
    """By least squares of logarithms that outliers count little in, held a little to where it started."""
    costs = [op.cost() for op in ops]

    def residuals(p: np.ndarray) -> np.ndarray:
        tried = made(p)
        said = np.array([tried.seconds(op, c, units) for op, c in zip(ops, costs)])
        return np.concatenate([np.log(said / measured), HELD * (p - start)])

    # steps that the rounding of the numbers does not swallow
    found = least_squares(residuals, start, loss="soft_l1", f_scale=USUAL, diff_step=1e-3, max_nfev=60)
    return made(found.x)


def _numbers(p: np.ndarray) -> list[float]:
    return [float(f"{v:.6g}") for v in np.exp(np.clip(p, -60, 60))]


def _nearest(
    made: Callable[[np.ndarray], Base],
    ops: Sequence[Op],
    measured: np.ndarray,
    units: int,
    start: np.ndarray,
    steps: int,
) -> np.ndarray:
    """Logarithms of a base's numbers with the least absolute logarithmic error."""
    costs = [op.cost() for op in ops]

    def error(p: np.ndarray) -> float:
        tried = made(p)
        return _log_error(np.array([tried.seconds(op, c, units) for op, c in zip(ops, costs)]), measured)

    return np.asarray(minimize(error, start, method="Nelder-Mead", options={"maxiter": steps, "maxfev": steps}).x)


def _log_error(seconds: np.ndarray, measured: np.ndarray) -> float:
    return float(np.mean(np.sqrt(np.log(seconds / measured) ** 2 + 1e-4)))


def row_base(base: Base, ops: Sequence[Op], measured: np.ndarray, edges: tuple[int, ...], cache: Cache) -> Base:
    """Floor and the numbers of `Rows`, by least squares of logarithms that outliers count little in."""
    kind, kernels = ops[0].kind, len(edges) + 1
    rows, cols = (np.array(v, float) for v in zip(*map(sizes, ops)))
    moved = np.array([op.cost().bytes for op in ops])
    which = np.zeros(len(ops), int)
    if edges:
        which = np.searchsorted(edges, [getattr(op, JUMPS[kind][0]) for op in ops])
    turns = np.where(which == IN_TURN.get(kind, -1), rows, 1.0)

    def seconds(p: np.ndarray) -> np.ndarray:
        floor, later, blend = np.exp(np.minimum(p[:3], MOST_BLEND))
        kernel = np.exp(p[3:]).reshape(4, kernels)[:, which]
        later_row, later_byte = (later, 0.0) if cache.rotated else (0.0, later)
        times = blended(kernel, turns, rows, cols, moved, 1 + blend, cache.knee_bytes, later_row, later_byte)
        return np.asarray(floor + times)

    def solved(column_s: float, each_s: float) -> Any:
        of_kernel = (5e-7, column_s, each_s, 1 / base.bytes_per_s)
        start = np.log([SURFACE_FLOOR_S, 0.5, 1.5, *np.repeat(of_kernel, kernels)])

        def residuals(p: np.ndarray) -> np.ndarray:
            return np.concatenate([np.log(seconds(p) / measured), HELD * (p - start)])

        return least_squares(residuals, start, loss="soft_l1", f_scale=USUAL, max_nfev=200)

    found = min((solved(*at) for at in product((1e-9, 1e-10), (1e-9, 1e-10))), key=lambda s: float(s.cost))
    floor, later, blend, *rest = _numbers(np.concatenate([np.minimum(found.x[:3], MOST_BLEND), found.x[3:]]))
    each = [Kernel(*rest[i::kernels]) for i in range(kernels)]
    later_row, later_byte = (later, 0.0) if cache.rotated else (0.0, later)
    made = Rows(tuple(each), edges, 1 + blend, cache.knee_bytes, later_row, later_byte)
    return Base(floor, base.flop_per_s, base.bytes_per_s, rows=made)
