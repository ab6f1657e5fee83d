"""The base that a learned correction starts from, fitted to measurements by least absolute logarithmic error."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy.optimize import minimize

from chip.predict.tables import Base
from chip.predict.tiled import Tiled
from chip.types import Op

SURFACE_FLOOR_S = 1.5e-6


def dense_base(base: Base, ops: Sequence[Op], measured: np.ndarray, units: int) -> Base:
    """Floor and rates."""

    def made(p: np.ndarray) -> Base:
        floor, flops, rate, copy = _numbers(p)
        return Base(floor, flops, rate, copy_bytes_per_s=copy)

    start = np.log([base.floor_s, 0.6 * base.flop_per_s, 0.7 * base.bytes_per_s, 0.3 * base.bytes_per_s])
    return made(_nearest(made, ops, measured, units, start, 1000))


def tiled_base(base: Base, ops: Sequence[Op], measured: np.ndarray, units: int) -> Base:
    """Floor, rates and the numbers of `Tiled`; many, so the search starts twice."""

    def made(p: np.ndarray) -> Base:
        floor, flops, rate, *rest = _numbers(p)
        return Base(floor, flops, rate, tiled=Tiled(*rest))

    p = np.log([2 * base.floor_s, 1.2 * base.flop_per_s, base.bytes_per_s, 3e-6, 1.5, 0.8, 0.7, 200])
    for _ in range(2):
        p = _nearest(made, ops, measured, units, p, 1500)
    return made(p)


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


def row_base(base: Base, ops: Sequence[Op], measured: np.ndarray) -> Base:
    """Floor, bandwidth and the three numbers of a row."""
    rows, cols = (np.array([getattr(op, a) for op in ops], float) for a in ("rows", "cols"))
    moved = np.array([op.cost().bytes for op in ops])

    def seconds(p: np.ndarray) -> np.ndarray:
        floor, rate, row, column, at_once = np.exp(p)
        row_time = np.maximum(1.0, rows / at_once) * (row + column * cols)
        return np.asarray(floor + ((moved / rate) ** 4 + row_time**4) ** 0.25)

    def error(p: np.ndarray) -> float:
        return _log_error(seconds(p), measured)

    starts = [
        np.log([SURFACE_FLOOR_S, 0.9 * base.bytes_per_s, 5e-7, column, at_once])
        for at_once in (132, 1500, 8000)
        for column in (1e-9, 1e-10)
    ]
    tried = [minimize(error, p, method="Nelder-Mead", options={"maxiter": 3000, "maxfev": 3000}) for p in starts]
    floor, rate, row, column, at_once = _numbers(min(tried, key=lambda t: t.fun).x)
    return Base(floor, base.flop_per_s, rate, row, column, at_once)
