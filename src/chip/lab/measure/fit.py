"""From measurements to points with a base time: what `chip fit` does. Needs numpy and scipy.

Points of one kernel, context and dtype are a group. A group gets a base time, a formula with a few numbers that are
fitted by least squares of logarithms, in which outliers count little. Each of its points gets the error of predicting
it from all others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from math import exp, inf, log
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from chip import ops, stats
from chip.files import measurements
from chip.hardware.points import PointGroup
from chip.lab.measure.limits import is_sustained
from chip.lab.measure.profile import LONG_SAMPLE_S, MAX_SETS, TABLES
from chip.ops import BaseTime
from chip.ops.experts import MoeExperts
from chip.ops.linear import Linear
from chip.predictor.clock import Settling
from chip.predictor.interpolate import Points
from chip.types import ChipError, HardwareProfile, Measurement, Op

CONTEXTS = ("cold", "hot", "layer")
DISTURBED = "CPU shared"  # the flag of a measurement that other work on the machine disturbed
LEAST_POINTS = 10  # of a group
MOST_VARIED = 0.08  # of experts whose time one draw tells: few tokens may read one expert more or less
LIKE = {"matmul_int8": "matmul_fp8"}  # a missing rate, and another of about the same size to start a fit from
MOST = {"fill": 1.0}  # the largest value of a number that means a share
FIXED = ("sm_count", "knee_bytes")  # numbers of a base that are known, not fitted
ROBUST_SCALE = 0.05  # a point whose logarithm is off by more than this counts less than its square
PRIOR_WEIGHT = 0.03  # pulls a number towards its start, so that one that no point tells stays there
ATTENTION_SHARE = 0.65  # of the matrix rate: where a fit of attention starts from
FLOOR_S = 1.5e-6  # of one kernel: where a fit starts from
CACHE_SHARE = 2 / 3  # a call that moves up to this share of the last cache finds its data there again
# A product whose rate only the clock limits has more FLOPs and no shorter axis than this. So many of them are enough.
LARGE_FLOPS, LARGE_AXIS, LEAST_LARGE = 1e12, 2048, 5
Key = tuple[str, str, str, str]  # kind, kernel, dtype, context


def fit(
    records: Sequence[Measurement], profile: HardwareProfile, least: int = LEAST_POINTS
) -> tuple[list[PointGroup], dict[str, str]]:
    """A group of points for every kernel, context and dtype with enough measurements, and why others have none."""
    groups: list[PointGroup] = []
    left_out: dict[str, str] = {}
    for (kind, kernel, dtype, context), times in medians(records, settling(records, profile)).items():
        name = f"{kind} ({kernel}, {dtype}, {context})"
        if not next(iter(times)).place():
            left_out[name] = "has no coordinates to interpolate over"
        elif len(times) < least:
            left_out[name] = f"{len(times)} shapes measured, {least} needed"
        else:
            shapes, seconds = tuple(times), tuple(times.values())
            base = fit_base(start(kind, kernel, context, shapes[0], profile), shapes, seconds)
            group = PointGroup(kind, kernel, context, dtype, base, shapes, seconds)
            groups.append(replace(group, loo=leave_one_out(group, base)))
    if chancy := {op for m in measurements.ok(records) if is_chancy(op := measurements.operator(m.op))}:
        left_out[f"{len(chancy)} shapes of experts"] = "so few tokens that chance decides how many experts are read"
    if not groups:
        why = "; ".join(f"{n} {reason}" for n, reason in left_out.items()) or "there are no cold or hot measurements"
        raise ChipError(f"no points ({why}); `chip profile --suite tables` measures what is needed")
    return groups, left_out


def is_chancy(op: Op) -> bool:
    """Whether chance decides how much work one draw of it is."""
    return isinstance(op, MoeExperts) and op.varies() > MOST_VARIED


def medians(records: Iterable[Measurement], clock: Settling | None = None) -> dict[Key, dict[Op, float]]:
    """Median seconds of every shape, by group, without disturbed measurements and shapes that points do not tell.
    `clock`: brings what was measured on a rested GPU to the clock of the others."""
    seen: dict[Key, dict[Op, list[float]]] = defaultdict(lambda: defaultdict(list))
    for m in measurements.ok(records):
        op = measurements.operator(m.op)
        if (
            m.context not in CONTEXTS
            or op.like_measured() != op
            or is_chancy(op)
            or any(f.startswith(DISTURBED) for f in m.flags)
        ):
            continue
        if is_chancy(op):
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
    """The base time before it is fitted: by the device's ceilings. How kernels cut their work is known of GPUs."""
    of_kind = ops.get(kind)
    cls = (of_kind.ON_CPU if profile.kind == "cpu" else of_kind.base_class(kernel)) or BaseTime
    share = ATTENTION_SHARE if "attention" in kind else 1.0
    known: dict[str, Any] = {"sm_count": profile.sm_count}
    if profile.kind == "cpu" and "copy_bytes_per_s" in {f.name for f in fields(cls)}:
        known["copy_bytes_per_s"] = _rate(profile, "hbm_copy")
    if "knee_bytes" in {f.name for f in fields(cls)}:
        known["knee_bytes"] = profile.l2_bytes / MAX_SETS if context == "cold" else CACHE_SHARE * profile.l2_bytes
    moving = "hbm_read" if ops.multiplies(kind) else "hbm_copy"
    rates = (share * _rate(profile, op.compute), _rate(profile, moving))
    base: BaseTime = cls(FLOOR_S * max(1, op.KERNELS), *rates, **known)
    return base


def _rate(profile: HardwareProfile, name: str) -> float:
    for like in (name, LIKE.get(name, name)):
        for known in (f"{like}_settled", like):
            if known in profile.ceilings:
                return profile.ceilings[known].value
    raise ChipError(f"the profile of {profile.device} has no ceiling {name}; run `chip calibrate` again")


def fit_base(base: BaseTime, shapes: Sequence[Op], seconds: Sequence[float]) -> BaseTime:
    names = [f.name for f in fields(base) if f.name not in FIXED]
    at = np.log([getattr(base, n) for n in names])
    wanted = np.log(seconds)

    def base_of(p: np.ndarray) -> BaseTime:
        numbers = np.exp(np.clip(p, -60, 60))
        changed: dict[str, Any] = {n: min(float(f"{v:.6g}"), MOST.get(n, inf)) for n, v in zip(names, numbers)}
        return replace(base, **changed)

    def residuals(p: np.ndarray) -> np.ndarray:
        first = base_of(p)
        predicted = np.array([log(first.seconds(op)) for op in shapes])
        return np.concatenate([predicted - wanted, PRIOR_WEIGHT * (p - at)])

    # steps that the rounding of the numbers does not swallow
    return base_of(least_squares(residuals, at, loss="soft_l1", f_scale=ROBUST_SCALE, diff_step=1e-3, max_nfev=80).x)


def leave_one_out(group: PointGroup, base: BaseTime) -> tuple[float, ...]:
    """The relative error of each point as predicted from all others."""
    points = Points(group, base)
    others = [points.correction(place, but=i).value for i, place in enumerate(points.places)]
    return tuple(round(exp(value - points.residual(i)[0]) - 1, 4) for i, value in enumerate(others))


def settling(records: Iterable[Measurement], profile: HardwareProfile) -> Settling | None:
    """How the clock falls under load; None where the measurements do not tell.

    The rates at the boost and at the settled clock are the profile's. Large products tell the rate between them that
    points were measured at, and the settings of measuring say how long the GPU had been busy by then.
    """
    boost, settled = (profile.ceilings.get(name) for name in ("matmul_bf16", "matmul_bf16_settled"))
    large = large_rate([m for m in records if not measurements.rested(m)], "linear", "bf16")
    if boost is None or settled is None or not large or boost.value <= settled.value:
        return None
    gained, remaining = 1 - settled.value / boost.value, settled.value / large
    if not 0 < 1 - remaining < gained:
        return None
    age_s = TABLES.arithmetic_warm_s + TABLES.runs * LONG_SAMPLE_S / 2
    time_s = age_s / log(gained / (1 - remaining))
    return Settling(*(float(f"{v:.4g}") for v in (gained, remaining, time_s, settled.value)))


def clocks(records: Iterable[Measurement], profile: HardwareProfile) -> dict[str, dict[str, str]]:
    """Kinds of operators whose arithmetic settles at a rate of its own, and what their files say of the clock that
    their points were timed at."""
    settled, large = profile.ceilings.get("matmul_fp8_settled"), large_rate(records, "scaled_linear", "fp8")
    if settled is None or not large:
        return {}
    return {"scaled_linear": {"clock fp8": f"measured={settled.value / large:.4g} flop_per_s={settled.value:.4g}"}}


def large_rate(records: Iterable[Measurement], of_kind: str, of_dtype: str) -> float:
    """FLOP/s of large products, which only the clock limits; 0 where too few were measured. Products with scales of
    blocks do not count."""
    large = [
        op.cost().flops / seconds
        for (kind, _, dtype, _), times in medians(records).items()
        for op, seconds in times.items()
        if kind == of_kind and dtype == of_dtype and isinstance(op, Linear) and not getattr(op, "block_k", 0)
        if op.cost().flops > LARGE_FLOPS and min(op.m, op.n, op.k) >= LARGE_AXIS
    ]
    return float(np.median(large)) if len(large) >= LEAST_LARGE else 0.0
