"""Learning operator tables from measurements: what `chip fit` does. Needs numpy, scipy and scikit-learn.

What is learned is the logarithm of measured over base time, so that a fit can only bend the roofline, not replace it.
Errors and intervals come from cross-validation: each shape is judged by a fit that had not seen it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.model_selection import KFold

from chip import measurements, stats
from chip.measure import bases
from chip.measure.learners import Boosted, RowFit, Smooth, forest, surface
from chip.measure.profile import LONG_SAMPLE_S, TABLES
from chip.ops.attention import Attention
from chip.ops.composed import KINDS
from chip.ops.linear import Linear
from chip.ops.moe_experts import MoeExperts
from chip.predict.experts import EXPERT_KINDS, ROUTER_KINDS
from chip.predict.rows import JUMPS
from chip.predict.settling import Settling
from chip.predict.shapes import ALIGNED
from chip.predict.tables import ROW_OPS, Base, OperatorTable, Spread, Tables, axes
from chip.types import ChipError, HardwareProfile, Measurement, Op

CONTEXTS = ("cold", "hot")
DISTURBED = "CPU shared"  # a flag of measurements that somebody else's work spoiled
LEAST_POINTS = 10
FOLDS = 10
FLASH_SHARE = 0.65  # of the matrix rate: where the base of attention starts from
FLOORS_S = {
    "linear": 2.5e-6, "attention": 4e-6, "masked_attention": 12e-6, "growing_attention": 10e-6,
    **dict.fromkeys(KINDS, 16e-6), "moe_experts": 12e-6, "moe_experts_composed": 40e-6, "moe_router": 5e-6,
    "moe_router_composed": 14e-6,
}  # fmt: skip
# of several kernels: no ceiling is theirs
FITTED_BASES = ("masked_attention", *KINDS, *EXPERT_KINDS, *ROUTER_KINDS)
OWN_KERNELS = ("torch", "fp32")  # implementations of row operators whose kernels torch chooses by their sizes
TILED = ("fa3", "cudnn")  # implementations of plain attention whose base is `Tiled`; the others' is `Blocks`
PACKS = ("fa3",)  # of those, whose tiles take the heads of a group together

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
    arrays: dict[str, Any]
    if kind in FLOORS_S:
        if kind == "attention" and implementation in TILED:
            base = bases.tiled_base(base, ops, measured, profile.units, implementation in PACKS)
        elif kind in ("attention", "growing_attention"):
            base = bases.flash_base(base, ops, measured, profile.units)
        elif kind in FITTED_BASES:
            base = bases.dense_base(base, ops, measured, profile.units)
        expected = np.array([base.seconds(op, op.cost(), profile.units) for op in ops])
        x = np.array([base.features(op, op.cost(), profile.units, s) for op, s in zip(ops, expected)])
        y = np.log(measured / expected)
        fit_one: Fit = Boosted if kind == "linear" else Smooth(x, y)
        predicted = expected * np.exp(_unseen(fit_one, x, y))
        arrays = {"forest": forest(fit_one(x, y))}
    else:
        edges = _edges(ops) if implementation in OWN_KERNELS else ()
        whole, *parts = (
            RowFit(base, [ops[i] for i in at], measured[at], edges, bases.Cache.of(context, profile.l2_bytes))
            for at in (np.arange(len(ops)), *(train for train, _ in _folds(ops)))
        )
        predicted = np.empty_like(measured)
        for part, (_, test) in zip(parts, _folds(ops)):
            predicted[test] = part([ops[i] for i in test])
        base, arrays = whole.base, {"surface": surface(whole.surface)}
    errors = np.abs(predicted / measured - 1)
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
    found = {a: [float(getattr(o, a)) for o in ops] for a in axes(ops[0].kind)}
    return {a: (min(values), max(values)) for a, values in found.items()}


def _edges(ops: Sequence[Op]) -> tuple[int, ...]:
    """Of its kernels, those between which there are measurements."""
    axis, found = JUMPS.get(ops[0].kind, ("", ()))
    return tuple(e for e in found if any(getattr(op, axis) > e for op in ops))


def _folds(points: Sequence[Any] | np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    return KFold(FOLDS, shuffle=True, random_state=0).split(np.arange(len(points)))  # type: ignore[no-any-return]


def _unseen(fit_one: Fit, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Each point as predicted by a fit to the other folds."""
    out = np.empty_like(y)
    for train, test in _folds(x):
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
