"""From measurements to points with a base time: what `chip fit` does. Needs numpy and scipy.

A group of points (kernel, context, dtype) gets the base of its kind, its few numbers fitted by least squares of
logarithms in which outliers count little; and for each point the error of predicting it from all others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import exp, inf, log
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from chip import measurements, ops, stats
from chip.measure.limits import is_sustained
from chip.measure.profile import LONG_SAMPLE_S, MAX_SETS, TABLES
from chip.ops.base_time import BaseTime
from chip.ops.linear import Linear
from chip.points import PointGroup
from chip.predict.clock import Settling
from chip.predict.interpolate import Points
from chip.records import fields, replace
from chip.types import ChipError, HardwareProfile, Measurement, Op

CONTEXTS = ("cold", "hot", "layer")
DISTURBED = "CPU shared"  # a flag of measurements that other work on the machine disturbed
LEAST_POINTS = 10
LIKE = {"matmul_int8": "matmul_fp8"}  # rates that are alike on tensor cores, to start a fit from
MOST = {"fill": 1.0}  # of numbers that have a meaning only up to here
FIXED = ("sm_count", "knee_bytes")  # numbers of a base that are known, not fitted
ROBUST_SCALE = 0.05  # error of a logarithm from which on a point counts less than its square
PRIOR_WEIGHT = 0.03  # pull of a number towards where it started from, for those that no point tells
ATTENTION_SHARE = 0.65  # of the matrix rate: where the base of attention starts from
FLOOR_S = 1.5e-6  # of one kernel: where a fit starts from
CACHE_SHARE = 2 / 3  # of a cache: what is read and written again stays in it up to here
LARGE_FLOPS, LARGE_AXIS, LEAST_LARGE = 1e12, 2048, 5  # products whose rate is the clock's, and how many are enough
Key = tuple[str, str, str, str]  # kind, kernel, dtype, context


def fit(found: Sequence[Measurement], profile: HardwareProfile) -> tuple[list[PointGroup], dict[str, str]]:
    """Groups of every operator with enough measurements in a context, and why others have none."""
    groups: list[PointGroup] = []
    left_out: dict[str, str] = {}
    for (kind, kernel, dtype, context), times in medians(found, settling(found, profile)).items():
        name = f"{kind} ({kernel}, {dtype}, {context})"
        if not next(iter(times)).place():
            left_out[name] = "has no coordinates to interpolate over"
        elif len(times) < LEAST_POINTS:
            left_out[name] = f"{len(times)} shapes measured, {LEAST_POINTS} needed"
        else:
            shapes, seconds = tuple(times), tuple(times.values())
            base = fit_base(start(kind, kernel, context, shapes[0], profile), shapes, seconds)
            group = PointGroup(kind, kernel, context, dtype, base, shapes, seconds)
            groups.append(replace(group, loo=leave_one_out(group, base)))
    if not groups:
        why = "; ".join(f"{n} {reason}" for n, reason in left_out.items()) or "there are no cold or hot measurements"
        raise ChipError(f"no points ({why}); `chip profile --suite tables` measures what is needed")
    return groups, left_out


def medians(found: Iterable[Measurement], clock: Settling | None = None) -> dict[Key, dict[Op, float]]:
    """Seconds of every shape, of those that the points of their kind can tell, at one clock where it is known."""
    seen: dict[Key, dict[Op, list[float]]] = defaultdict(lambda: defaultdict(list))
    for m in measurements.ok(found):
        op = measurements.operator(m.op)
        if m.context not in CONTEXTS or op.like_measured() != op or any(f.startswith(DISTURBED) for f in m.flags):
            continue
        key = (op.kind, op.kernel_of(m.implementation), getattr(op, "dtype", ""), m.context)
        seconds = stats.median(m.samples_ns) * 1e-9
        if clock and measurements.rested(m):
            seconds = clock.from_rest(seconds, op.cost().flops)
        seen[key][op].append(seconds)
    for (kind, kernel, dtype, context), by_op in seen.items():
        cold = seen.get((kind, kernel, dtype, "cold"), {}) if context == "layer" else {}
        by_op.update((op, times) for op, times in cold.items() if is_sustained(op))  # at the clock of all others
    return {key: {op: stats.median(times) for op, times in by_op.items()} for key, by_op in seen.items()}


def start(kind: str, kernel: str, context: str, op: Op, profile: HardwareProfile) -> BaseTime:
    """The base as the device's ceilings give it."""
    cls = ops.get(kind).base_class(kernel)
    share = ATTENTION_SHARE if "attention" in kind else 1.0
    known: dict[str, Any] = {"sm_count": profile.sm_count}
    if "knee_bytes" in {f.name for f in fields(cls)}:
        known["knee_bytes"] = profile.l2_bytes / MAX_SETS if context == "cold" else CACHE_SHARE * profile.l2_bytes
    moving = "hbm_copy" if op.compute == "matmul_fp32" else "hbm_read"
    rates = (share * _rate(profile, op.compute), _rate(profile, moving))
    made: BaseTime = cls(FLOOR_S * max(1, op.KERNELS), *rates, **known)
    return made


def _rate(profile: HardwareProfile, name: str) -> float:
    names = (f"{like}{clock}" for like in (name, LIKE.get(name, name)) for clock in ("_settled", ""))
    found = next((profile.ceilings[n] for n in names if n in profile.ceilings), None)
    if found is None:
        raise ChipError(f"the profile of {profile.device} has no ceiling {name}; run `chip calibrate` again")
    return found.value


def fit_base(base: BaseTime, shapes: Sequence[Op], seconds: Sequence[float]) -> BaseTime:
    names = [f.name for f in fields(base) if f.name not in FIXED]
    at = np.log([getattr(base, n) for n in names])
    wanted = np.log(seconds)

    def made(p: np.ndarray) -> BaseTime:
        numbers = np.exp(np.clip(p, -60, 60))
        changed: dict[str, Any] = {n: min(float(f"{v:.6g}"), MOST.get(n, inf)) for n, v in zip(names, numbers)}
        return replace(base, **changed)

    def residuals(p: np.ndarray) -> np.ndarray:
        tried = made(p)
        said = np.array([log(tried.seconds(op)) for op in shapes])
        return np.concatenate([said - wanted, PRIOR_WEIGHT * (p - at)])

    # steps that the rounding of the numbers does not swallow
    return made(least_squares(residuals, at, loss="soft_l1", f_scale=ROBUST_SCALE, diff_step=1e-3, max_nfev=80).x)


def leave_one_out(group: PointGroup, base: BaseTime) -> tuple[float, ...]:
    """Each point as predicted from the others, over what was measured, less 1."""
    points = Points(group, base)
    found = []
    for i, place in enumerate(points.places):
        correction = points.corrections([place], but=i)[0]
        found.append(round(exp(correction.value - points.residual(i)[0]) - 1, 4))
    return tuple(found)


def settling(found: Iterable[Measurement], profile: HardwareProfile) -> Settling | None:
    """How the clock falls under load. Boost and settled rates are the profile's; where the points stand between them is
    told by large products, which reach either; and when they were measured, by how points are measured."""
    boost, settled = (profile.ceilings.get(name) for name in ("matmul_bf16", "matmul_bf16_settled"))
    large = large_rate([m for m in found if not measurements.rested(m)], "linear", "bf16")
    if boost is None or settled is None or not large or boost.value <= settled.value:
        return None
    gained, held = 1 - settled.value / boost.value, settled.value / large
    if not 0 < 1 - held < gained:
        return None
    age_s = TABLES.arithmetic_warm_s + TABLES.runs * LONG_SAMPLE_S / 2
    time_s = age_s / log(gained / (1 - held))
    return Settling(*(float(f"{v:.4g}") for v in (gained, held, time_s, settled.value)))


def clocks(found: Iterable[Measurement], profile: HardwareProfile) -> dict[str, dict[str, str]]:
    """Kinds whose arithmetic settles at another rate, and what their files say: the clock that points were timed at."""
    settled, large = profile.ceilings.get("matmul_fp8_settled"), large_rate(found, "scaled_linear", "fp8")
    if settled is None or not large:
        return {}
    return {"scaled_linear": {"clock fp8": f"measured={settled.value / large:.4g} flop_per_s={settled.value:.4g}"}}


def large_rate(found: Iterable[Measurement], of_kind: str, of_dtype: str) -> float:
    """FLOP/s of large products without scales of blocks, which only the clock limits; 0 where too few were measured."""
    large = [
        op.cost().flops / seconds
        for (kind, _, dtype, _), times in medians(found).items()
        for op, seconds in times.items()
        if kind == of_kind and dtype == of_dtype and isinstance(op, Linear) and not getattr(op, "block_k", 0)
        if op.cost().flops > LARGE_FLOPS and min(op.m, op.n, op.k) >= LARGE_AXIS
    ]
    return float(np.median(large)) if len(large) >= LEAST_LARGE else 0.0
