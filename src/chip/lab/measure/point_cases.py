"""Which shapes to measure, taken from the points that the package has. The list is the same for every GPU.

`same`: the shapes of the points themselves.
`between`: new shapes where the points predict each other worst, each midway between such a point and a near neighbour.
They test the points first; then they become points too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import nsmallest
from math import dist, gcd, sqrt
from typing import Any

from chip import ops
from chip.hardware import gpus, points
from chip.hardware.points import PointGroup
from chip.lab.measure.limits import is_sustained
from chip.types import Op

GPU = "h200"  # whose shapes they are
MEASURED = "bf16"  # the dtype of operators that are not quantised
QUANTISED = (
    "add_rms_norm_quant", "fp8_attention", "kv_append_fp8", "packed_experts", "packed_linear", "quantize",
    "rms_norm_quant", "scaled_experts", "scaled_linear", "silu_mul_quant",
)  # fmt: skip
OF_VLLM, OWN = ("fa3", "paged", "vllm"), "chip"  # implementations
SIZES = ("m", "n", "k", "rows", "cols", "tokens", "batch", "q_len", "kv_len")  # axes that are taken midway
COARSEST = 128  # up to here, a middle is a multiple of all powers of two that divide both neighbours
WORST, WORST_S = 0.08, 1e-6  # a point is badly predicted by the others from this error on, relative and in seconds
NEIGHBOURS = 4  # tried for each bad point, nearest first, until the middle is a new shape


@dataclass(frozen=True, slots=True)
class SuiteCase:
    op: Op
    implementation: str = ""  # empty: the operator's default on the device
    context: str = ""  # empty: every one that is asked for


def same(suite: str, dtype: str) -> list[SuiteCase]:
    """The points' own shapes, as far as they belong to this suite (`suite_of`). Groups are interleaved, so that a run
    that was cut short has some of each."""
    places: dict[SuiteCase, float] = {}
    for group in groups():
        for i, op in enumerate(group.ops) if suite_of(group) == suite else ():
            if not is_copied(group, op):
                places.setdefault(_case(group, _in_dtype(op, dtype)), _scattered(i))
    return sorted(places, key=places.__getitem__)


def between(dtype: str) -> list[SuiteCase]:
    """New shapes beside badly predicted points, worst first. Not for our own kernels, which are timed in another way
    (`chip.lab.measure.own_ops`)."""
    errors: dict[SuiteCase, float] = {}
    known = {_case(group, op) for group in groups() for op in group.ops}
    in_layers = {(g.kind, g.kernel) for g in groups() if g.context == "layer"}
    for group in groups():
        if suite_of(group) == "native":
            continue
        places = [op.place() for op in group.ops]
        for i, (op, seconds, error) in enumerate(zip(group.ops, group.seconds, group.loo)):
            twice = group.context == "cold" and (group.kind, group.kernel) in in_layers and not is_sustained(op)
            if twice or is_copied(group, op) or abs(error) < WORST or abs(error) * seconds < WORST_S:
                continue
            fresh = [case for op in _middles(group, places, i) if (case := _case(group, op)) not in known]
            if fresh:
                errors.setdefault(fresh[0], abs(error))
    return [replace(c, op=_in_dtype(c.op, dtype)) for c in sorted(errors, key=lambda c: -errors[c])]


def suite_of(group: PointGroup) -> str:
    if group.kernel == OWN:
        return "native"
    if group.kind in QUANTISED:
        return "quant"
    return "vllm" if group.implementation in OF_VLLM else "tables"


def _middles(group: PointGroup, places: Sequence[tuple[float, ...]], at: int) -> Iterator[Op]:
    """Shapes midway between a point and its neighbours, the nearest neighbour first, that the same kernel runs."""
    near = nsmallest(NEIGHBOURS, ((dist(places[at], place), i) for i, place in enumerate(places) if i != at))
    for _, i in near:
        op = middle(group.ops[at], group.ops[i])
        if op and op.like_measured() == op and op.kernel_of(group.implementation) == group.kernel:
            yield op


def middle(op: Op, other: Op) -> Op | None:
    """An operator with sizes midway between both (by geometric mean); everything else is as in the first."""
    sizes: dict[str, Any] = {
        name: _between(getattr(op, name), getattr(other, name)) for name in SIZES if name in ops.axes(type(op))
    }
    if "q_len" in sizes:
        past = op.kv_len - op.q_len  # type: ignore[attr-defined]
        if past == other.kv_len - other.q_len or sizes["q_len"] > sizes["kv_len"]:  # type: ignore[attr-defined]
            sizes["q_len"] = max(1, sizes["kv_len"] - past)
    between: Op = replace(op, **sizes)  # type: ignore[type-var]
    return None if between == op else between


def _between(a: int, b: int) -> int:
    step = gcd(a, b, COARSEST)
    return max(1, round(sqrt(a * b) / step)) * step


def _scattered(i: int) -> float:
    """A place between 0 and 1 for each i, such that the first n places are spread evenly for any n."""
    return (0.5 + 0.618033988749895 * i) % 1


def is_copied(group: PointGroup, op: Op) -> bool:
    """Whether `chip fit` copied this point from the cold context: long arithmetic is not timed within a layer."""
    return group.context == "layer" and is_sustained(op)


def _in_dtype(op: Op, dtype: str) -> Op:
    other = getattr(op, "dtype", "") == MEASURED != dtype
    return replace(op, dtype=dtype) if other else op  # type: ignore[type-var]


def _case(group: PointGroup, op: Op) -> SuiteCase:
    return SuiteCase(op, group.implementation, group.context)


@lru_cache(maxsize=1)
def groups() -> tuple[PointGroup, ...]:
    folder = gpus.POINTS / GPU
    files = (points.read(folder / f"{kind}{points.SUFFIX}") for kind in points.kinds(folder))
    return tuple(group for file in files for group in file.groups)
