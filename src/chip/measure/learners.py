"""What learns a correction from measured points, and what of it ships as plain arrays."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.interpolate import RBFInterpolator
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from sklearn.preprocessing import StandardScaler

from chip.measure import bases
from chip.predict.rows import FLAT, JUMPS, ROW_AXES
from chip.predict.tables import Base, Forest, Surface, place, sizes_log2
from chip.types import Op

# few and shallow trees: a sweep walks them a dozen times a scenario
FOREST = {"max_depth": 4, "subsample": 0.6, "max_features": 0.5, "loss": "huber"}
TREES = {"n_estimators": 40, "learning_rate": 0.25}
MIXES = 6000  # points between measured ones at which a forest learns what a smooth fit says
SMOOTH_FOREST = {"n_estimators": 60, "learning_rate": 0.2, "max_depth": 4, "min_samples_leaf": 5}
GRID = 2.0**14  # steps in one of a feature in a fit: no tree may split between values that differ by rounding only
SMOOTHING, FLAT_SMOOTHING = 0.02, 0.3  # of points in a plane; on a line, where neighbours are near


class Boosted:
    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        settings: dict[str, Any] = {**FOREST, **TREES}
        self.model = GradientBoostingRegressor(random_state=0, min_samples_leaf=2, **settings)
        self.model.fit(np.round(x * GRID) / GRID, y)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self.model.predict(np.round(x * GRID) / GRID))


class Smooth:
    """A Gaussian process, shipped as a forest that learned what it says between the measured points: few measurements
    of a smooth function are better told by their neighbours than by steps. Length scales are of all points; each fold
    keeps them."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.scaler = StandardScaler().fit(x)
        kernel = ConstantKernel(1.0) * Matern(np.full(x.shape[1], 3.0), (0.3, 100.0), nu=1.5) + WhiteKernel(
            0.003, (1e-4, 0.1)
        )
        with warnings.catch_warnings():  # a scale at its bound is an axis that does not matter
            warnings.simplefilter("ignore")
            whole = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)
            self.kernel = whole.fit(self.scaler.transform(x), y).kernel_

    def __call__(self, x: np.ndarray, y: np.ndarray) -> Distilled:
        process = GaussianProcessRegressor(self.kernel, optimizer=None, normalize_y=True)
        process.fit(self.scaler.transform(x), y)
        drawn = np.random.default_rng(0)
        first, second = drawn.integers(0, len(x), (2, MIXES))
        share = 0.6 * drawn.random((MIXES, 1))
        mixes = np.vstack([x[first] * (1 - share) + x[second] * share, np.repeat(x, 3, 0)])
        return Distilled(mixes, process.predict(self.scaler.transform(mixes)))


class Distilled:
    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.model = GradientBoostingRegressor(random_state=0, subsample=0.5, max_features=0.5, **SMOOTH_FOREST)
        self.model.fit(np.round(x * GRID) / GRID, y)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self.model.predict(np.round(x * GRID) / GRID))


def forest(learned: Any) -> Forest:
    model: GradientBoostingRegressor = learned.model
    parts: dict[str, list[Any]] = {name: [] for name in ("feature", "threshold", "left", "right", "value")}
    roots = []
    for (tree,) in model.estimators_:
        t, offset = tree.tree_, len(parts["feature"])
        roots.append(offset)
        leaf = t.children_left < 0
        parts["feature"] += np.where(leaf, 0, t.feature).tolist()
        parts["threshold"] += [float(f"{v:.9g}") for v in np.where(leaf, 0.0, t.threshold)]
        parts["left"] += np.where(leaf, -1, t.children_left + offset).tolist()
        parts["right"] += np.where(leaf, -1, t.children_right + offset).tolist()
        parts["value"] += [float(f"{v:.7g}") for v in np.where(leaf, model.learning_rate * t.value[:, 0, 0], 0.0)]
    start = float(np.ravel(model.init_.constant_)[0])
    return Forest(start, tuple(roots), *(tuple(parts[n]) for n in ("feature", "threshold", "left", "right", "value")))


class RowFit:
    """Base and correction of an operator over rows and columns; the few numbers of both are of these points alone."""

    def __init__(
        self, start: Base, ops: Sequence[Op], measured: np.ndarray, edges: tuple[int, ...], cache: bases.Cache
    ) -> None:
        self.base = bases.row_base(start, ops, measured, edges, cache)
        axis = ROW_AXES.index(JUMPS[ops[0].kind][0]) if edges else 0
        x = np.array([sizes_log2(op) for op in ops])
        places = [(axis, float(np.log2(e))) for e in edges]
        smoothing = FLAT_SMOOTHING if ops[0].kind in FLAT else SMOOTHING
        self.surface = Drawn(x, np.log(measured / self._expected(ops)), places, smoothing)

    def __call__(self, ops: Sequence[Op]) -> np.ndarray:
        x = np.array([sizes_log2(op) for op in ops])
        return np.asarray(self._expected(ops) * np.exp(self.surface(x)))

    def _expected(self, ops: Sequence[Op]) -> np.ndarray:
        return np.array([self.base.seconds(op, op.cost(), 1) for op in ops])


class Drawn:
    def __init__(
        self, x: np.ndarray, y: np.ndarray, edges: Sequence[tuple[int, float]] = (), smoothing: float = SMOOTHING
    ) -> None:
        self.edges = tuple(edges)
        self.points, at = np.unique(x, axis=0, return_index=True)
        self.model = RBFInterpolator(self._placed(self.points), y[at], kernel="linear", smoothing=smoothing, degree=0)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self.model(self._placed(x)))

    def _placed(self, x: np.ndarray) -> np.ndarray:
        return np.array([place((float(r), float(c)), self.edges) for r, c in x])


def surface(learned: Any) -> Surface:
    """The interpolator's own coefficients: kernel -r times weight for each point, and a constant."""
    weights = learned.model._coeffs[:-1, 0]
    constant = float(learned.model._coeffs[-1, 0])
    x, y, w = (
        tuple(float(f"{v:.9g}") for v in part) for part in (learned.points[:, 0], learned.points[:, 1], -weights)
    )
    return Surface(x, y, w, constant, learned.edges)
