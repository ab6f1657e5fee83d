"""Learning operator tables from measurements: what `chip fit` does. Needs numpy, scipy and scikit-learn.

What is learned is the logarithm of measured over base time, so that a fit can only bend the roofline, not replace it.
Errors and intervals come from cross-validation: each shape is judged by a fit that had not seen it.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from scipy.interpolate import RBFInterpolator
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from sklearn.model_selection import KFold
from sklearn.preprocessing import StandardScaler

from chip import measurements, stats
from chip.measure import bases
from chip.measure.profile import LONG_SAMPLE_S, TABLES
from chip.ops.attention import Attention
from chip.ops.composed import KINDS
from chip.ops.linear import Linear
from chip.ops.moe_experts import MoeExperts
from chip.predict.experts import EXPERT_KINDS, ROUTER_KINDS
from chip.predict.settling import Settling
from chip.predict.shapes import ALIGNED, JUMPS
from chip.predict.tables import AXES, ROW_AXES, ROW_OPS, Base, Forest, OperatorTable, Spread, Surface, Tables, place
from chip.types import ChipError, HardwareProfile, Measurement, Op

CONTEXTS = ("cold", "hot")
DISTURBED = "CPU shared"  # a flag of measurements that somebody else's work spoiled
LEAST_POINTS = 10
FOLDS = 10
# few and shallow trees: a sweep walks them a dozen times a scenario
FOREST = {"max_depth": 4, "subsample": 0.6, "max_features": 0.5, "loss": "huber"}
TREES = {"n_estimators": 40, "learning_rate": 0.25}
SMOOTHING = 0.02
GRID = 2.0**14  # steps in one of a feature in a fit: no tree may split between values that differ by rounding only
FLASH_SHARE = 0.65  # of the matrix rate: where the base of attention starts from
FLOORS_S = {
    "linear": 2.5e-6, "attention": 4e-6, "masked_attention": 12e-6, "growing_attention": 10e-6,
    **dict.fromkeys(KINDS, 16e-6), "moe_experts": 12e-6, "moe_experts_composed": 40e-6, "moe_router": 5e-6,
    "moe_router_composed": 14e-6,
}  # fmt: skip
# of several kernels: no ceiling is theirs
FITTED_BASES = ("masked_attention", "growing_attention", *KINDS, *EXPERT_KINDS, *ROUTER_KINDS)
TILED = ("fa3", "cudnn")  # implementations of plain attention whose base is `Tiled`
MIXES = 6000  # points between measured ones at which a forest learns what a smooth fit says
SMOOTH_FOREST = {"n_estimators": 60, "learning_rate": 0.2, "max_depth": 4, "min_samples_leaf": 5}

Group = tuple[str, str, str, str]  # kind, implementation, dtype, context
LARGE_FLOPS, LARGE_AXIS, LEAST_LARGE = 1e12, 2048, 5  # products whose rate is the clock's, and how many are enough
Fit = Callable[[np.ndarray, np.ndarray], Callable[[np.ndarray], np.ndarray]]


def fit(found: Iterable[Measurement], profile: HardwareProfile) -> tuple[Tables, dict[str, str]]:
    """Tables of every operator with enough measurements in a context, and why others have none."""
    groups: dict[Group, dict[Op, list[float]]] = defaultdict(lambda: defaultdict(list))
    for m in measurements.ok(found):
        op = measurements.operator(m.op)
        if m.context in CONTEXTS and _regular(op) and not any(f.startswith(DISTURBED) for f in m.flags):
            group = (op.kind, m.implementation, getattr(op, "dtype", ""), m.context)
            groups[group][op].append(stats.median(m.samples_ns) * 1e-9)
    tables: list[OperatorTable] = []
    left_out: dict[str, str] = {}
    for (kind, implementation, dtype, context), times in groups.items():
        name = f"{kind} ({implementation}, {dtype}, {context})"
        if kind not in FLOORS_S and not isinstance(next(iter(times)), ROW_OPS):
            left_out[name] = "has no features to learn from"
        elif len(times) < LEAST_POINTS:
            left_out[name] = f"{len(times)} shapes measured, {LEAST_POINTS} needed"
        else:
            medians = {op: float(np.median(t)) for op, t in times.items()}
            table, roofline_error = _table(kind, implementation, dtype, context, medians, profile)
            if table.median_error < roofline_error:
                tables.append(table)
            else:
                left_out[name] = (
                    f"errs by {table.median_error:.0%} on unseen shapes, the roofline by {roofline_error:.0%}"
                )
    if not tables:
        why = (
            "; ".join(f"{kind} {reason}" for kind, reason in left_out.items())
            or "there are no cold or hot measurements"
        )
        raise ChipError(f"nothing could be learned ({why}); `chip profile --suite tables` measures what is needed")
    return Tables(profile.device, profile.units, tuple(tables), _settling(groups, profile)), left_out


def _settling(groups: Mapping[Group, Mapping[Op, list[float]]], profile: HardwareProfile) -> Settling | None:
    """Boost and settled rates are the profile's; where the tables stand between them is told by large products, which
    reach either; and when they were measured, by how the tables are measured."""
    boost, settled = (profile.ceilings.get(name) for name in ("matmul_bf16", "matmul_bf16_settled"))
    large = [
        op.cost().flops / float(np.median(times))
        for (kind, _, dtype, _), by_op in groups.items()
        for op, times in by_op.items()
        if kind == "linear" and dtype == "bf16" and isinstance(op, Linear)
        if op.cost().flops > LARGE_FLOPS and min(op.m, op.n, op.k) >= LARGE_AXIS
    ]
    if boost is None or settled is None or len(large) < LEAST_LARGE or boost.value <= settled.value:
        return None
    gained, held = 1 - settled.value / boost.value, settled.value / float(np.median(large))
    if not 0 < 1 - held < gained:
        return None
    age_s = TABLES.arithmetic_warm_s + TABLES.runs * LONG_SAMPLE_S / 2
    time_s = age_s / float(np.log(gained / (1 - held)))
    return Settling(_short(gained), _short(held), _short(time_s), _short(settled.value))


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def _regular(op: Op) -> bool:
    if isinstance(op, Linear):
        return not op.bias and op.n % ALIGNED == 0 and op.k % ALIGNED == 0
    if isinstance(op, Attention):
        return not op.window and not op.v_head_dim and op.q_len <= op.kv_len
    if isinstance(op, MoeExperts):
        return op.gated and op.weight_dtype in ("", op.dtype)
    return True


def _rate(profile: HardwareProfile, name: str) -> float:
    found = profile.ceilings.get(f"{name}_settled") or profile.ceilings.get(name)
    if found is None:
        raise ChipError(f"the profile of {profile.device} has no ceiling {name}; run `chip calibrate` again")
    return found.value


def _table(
    kind: str, implementation: str, dtype: str, context: str, times: dict[Op, float], profile: HardwareProfile
) -> tuple[OperatorTable, float]:
    """The table, and the median error of the roofline it starts from."""
    ops, measured = list(times), np.array(list(times.values()))
    base = Base(
        FLOORS_S.get(kind, bases.SURFACE_FLOOR_S),
        _rate(profile, ops[0].compute) * (FLASH_SHARE if "attention" in kind else 1.0),
        _rate(profile, "hbm_read" if kind in FLOORS_S else "hbm_copy"),
    )
    roofline = np.array([base.seconds(op, op.cost(), profile.units) for op in ops])
    if kind in FLOORS_S:
        if kind == "attention" and implementation in TILED:
            base = bases.tiled_base(base, ops, measured, profile.units)
        elif kind in FITTED_BASES:
            base = bases.dense_base(base, ops, measured, profile.units)
        times_s = [base.seconds(op, op.cost(), profile.units) for op in ops]
        x = np.array([base.features(op, op.cost(), profile.units, s) for op, s in zip(ops, times_s)])
        fit_one: Fit = _Forest if kind == "linear" else _Smooth(x, np.log(measured / times_s))
    else:
        base = bases.row_base(base, ops, measured)
        x = np.log2([[op.rows, op.cols] for op in ops])  # type: ignore[attr-defined]
        edges = JUMPS.get(kind, ()) if implementation == "torch" else ()
        fit_one = partial(_Surface, edges=tuple((ROW_AXES.index(axis), float(np.log2(last))) for axis, last in edges))
    expected = np.array([base.seconds(op, op.cost(), profile.units) for op in ops])
    y = np.log(measured / expected)
    predicted = expected * np.exp(_unseen(fit_one, x, y))
    errors = np.abs(predicted / measured - 1)
    learned = fit_one(x, y)
    arrays: dict[str, Any] = {"forest": _forest(learned)} if kind in FLOORS_S else {"surface": _surface(learned)}
    table = OperatorTable(
        kind,
        implementation,
        dtype,
        base,
        _ranges(ops),
        _spreads(predicted, measured),
        len(ops),
        float(np.median(errors)),
        float(np.quantile(errors, 0.9)),
        context=context,
        **arrays,
    )
    return table, float(np.median(np.abs(roofline / measured - 1)))


def _ranges(ops: Sequence[Op]) -> dict[str, tuple[float, float]]:
    axes = AXES.get(ops[0].kind, ROW_AXES)
    return {a: (float(min(getattr(o, a) for o in ops)), float(max(getattr(o, a) for o in ops))) for a in axes}


def _unseen(fit_one: Fit, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Each point as predicted by a fit to the other folds."""
    out = np.empty_like(y)
    for train, test in KFold(FOLDS, shuffle=True, random_state=0).split(x):
        out[test] = fit_one(x[train], y[train])(x[test])
    return out


def _spreads(predicted: np.ndarray, measured: np.ndarray) -> tuple[Spread, ...]:
    """The interval of each third of the predictions by length: short kernels are known less well."""
    ratio = measured / predicted
    edges = np.quantile(predicted, [1 / 3, 2 / 3, 1.0])
    edges[-1] = 1e9
    out, low_edge = [], 0.0
    for edge in edges:
        inside = ratio[(predicted > low_edge) & (predicted <= edge)]
        if not inside.size:  # many predictions of one length
            continue
        low, high = np.quantile(inside, [0.05, 0.95])
        out.append(Spread(float(edge), min(1.0, float(low)), max(1.0, float(high))))
        low_edge = edge
    return tuple(out)


class _Forest:
    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        settings: dict[str, Any] = {**FOREST, **TREES}
        self.model = GradientBoostingRegressor(random_state=0, min_samples_leaf=2, **settings)
        self.model.fit(np.round(x * GRID) / GRID, y)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self.model.predict(np.round(x * GRID) / GRID))


class _Smooth:
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

    def __call__(self, x: np.ndarray, y: np.ndarray) -> _Distilled:
        process = GaussianProcessRegressor(self.kernel, optimizer=None, normalize_y=True)
        process.fit(self.scaler.transform(x), y)
        drawn = np.random.default_rng(0)
        first, second = drawn.integers(0, len(x), (2, MIXES))
        share = 0.6 * drawn.random((MIXES, 1))
        mixes = np.vstack([x[first] * (1 - share) + x[second] * share, np.repeat(x, 3, 0)])
        return _Distilled(mixes, process.predict(self.scaler.transform(mixes)))


class _Distilled:
    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.model = GradientBoostingRegressor(random_state=0, subsample=0.5, max_features=0.5, **SMOOTH_FOREST)
        self.model.fit(np.round(x * GRID) / GRID, y)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self.model.predict(np.round(x * GRID) / GRID))


def _forest(learned: Any) -> Forest:
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


class _Surface:
    def __init__(self, x: np.ndarray, y: np.ndarray, edges: tuple[tuple[int, float], ...] = ()) -> None:
        self.edges = edges
        self.points, at = np.unique(x, axis=0, return_index=True)
        self.model = RBFInterpolator(self._placed(self.points), y[at], kernel="linear", smoothing=SMOOTHING, degree=0)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self.model(self._placed(x)))

    def _placed(self, x: np.ndarray) -> np.ndarray:
        return np.array([place((float(r), float(c)), self.edges) for r, c in x])


def _surface(learned: Any) -> Surface:
    """The interpolator's own coefficients: kernel -r times weight for each point, and a constant."""
    weights = learned.model._coeffs[:-1, 0]
    constant = float(learned.model._coeffs[-1, 0])
    x, y, w = (
        tuple(float(f"{v:.9g}") for v in part) for part in (learned.points[:, 0], learned.points[:, 1], -weights)
    )
    return Surface(x, y, w, constant, learned.edges)
