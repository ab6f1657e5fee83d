"""The ceilings of a GPU: measured ones times calibration factors, or those of its datasheet times the share of its own
datasheet that the nearest measured GPU reaches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from typing import NamedTuple

from chip import ops
from chip.hardware import gpus
from chip.hardware.gpus import Hardware
from chip.predictor import sustained
from chip.predictor.clock import Settling
from chip.predictor.stages import ALL, Stage
from chip.types import Ceiling, ChipError, HardwareProfile, HardwareSpec, Link, Op


class Range(NamedTuple):
    """A value between bounds."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, measured: Ceiling) -> Range:
        return cls(measured.value, measured.low, measured.high)

    @classmethod
    def exactly(cls, value: float) -> Range:
        return cls(value, value, value)

    def __mul__(self, other: Range) -> Range:  # type: ignore[override]
        return Range(self.value * other.value, self.low * other.low, self.high * other.high)


NOTHING = Range.exactly(0.0)
# Compute capabilities whose matrix units reach their rate only by instructions across warps (0: other vendors'), and
# the part of it that instructions within a warp reach, which older kernels have: 62.9 % on a Hopper (W. Luo and others,
# "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture", arXiv 2402.13499).
ACROSS_WARPS, WITHIN_WARP = (0.0, 9.0, 10.0, 10.3), 0.63
VECTOR = "matmul_fp32"  # the ceiling of products outside the matrix units
COPY = "hbm_copy"  # the ceiling of operators that multiply nothing


class Power(NamedTuple):
    """What energy is made of: idle power all the time, and above it joules for each FLOP of a product and each byte
    moved, as far as the power limit goes."""

    idle_w: float
    limit_w: float  # infinite where no datasheet tells it
    per_flop_j: dict[str, float]  # by ceiling name; a format that was not metered draws as much under full load as fp8
    per_byte_j: float

    def within(self, joules: float, seconds: float) -> float:
        """The joules above idle of work that takes this time: what its FLOPs and bytes sum up to, or the limit. Times
        are those of a clock that has fallen, and there a FLOP and a byte take less than each did when metered alone."""
        return min(joules, (self.limit_w - self.idle_w) * seconds)


@dataclass(frozen=True, slots=True)
class Roof:
    """Effective rates, which real kernels reach, with bounds."""

    name: str
    source: str  # of times under it: "roofline" where the device was measured, else "datasheet"
    basis: str  # what the rates rest on, in words
    compute: dict[str, Range]  # FLOP/s by ceiling name, matmul_bf16 ...
    ceilings: dict[str, Range]  # the same, and "memory" and "hbm_copy", without calibration factors
    weights: Range  # B/s of matrix products and attention, whose operands come cold from memory
    stream: Range  # B/s of elementwise kernels
    launch_s: Range  # least time between the starts of two kernels in a graph
    memory_bytes: float
    sm_count: int
    link: Link | None
    ranks_need: str  # where there is no link: why several GPUs cannot be predicted
    power: Power | None  # None where it was not measured
    settling: Settling | None = None  # how its clock falls to what the power limit allows; None where nothing tells
    is_cpu: bool = False
    within_warp: float = 1.0  # part of its matrix rate that instructions within a warp reach

    @property
    def memory(self) -> float:
        """B/s that a stream is read with, without calibration factors."""
        return self.ceilings["memory"].value

    def ridge(self, compute: str) -> float:
        """The intensity (FLOP/B) above which an operator is compute-bound."""
        return self.ceilings[compute].value / self.memory

    def moving(self, op: Op) -> Range:
        """The memory rate (B/s) of an operator."""
        return self.weights if ops.multiplies(op.kind) else self.stream


@lru_cache(maxsize=64)
def roof_of(h: Hardware, stage: Stage = ALL) -> Roof:
    if h.profile and stage > Stage.DATASHEET:
        found = _measured(h, h.profile)
    elif h.spec is None:
        raise ChipError(f"{h.name} has no datasheet to start from")
    else:
        promised = _promised(h, h.spec)
        found = promised if stage == Stage.DATASHEET else _as_reached(promised, h, h.spec)
    return replace(found, within_warp=WITHIN_WARP) if gpus.capability(h) in ACROSS_WARPS else found


def _measured(h: Hardware, p: HardwareProfile) -> Roof:
    found = {name: Range.of(c) for name, c in p.ceilings.items()}
    products = [name for name in found if name.startswith("matmul_") and not name.endswith("_settled")]
    # settled rates where there are any: inference is sustained load
    measured = {name: found.get(f"{name}_settled", found[name]) for name in products}
    rates = {**_unmeasured(h, measured), **measured}
    return Roof(
        h.name,
        "roofline",
        f"ceilings measured on {p.device}",
        rates,
        {**rates, "memory": found["hbm_read"], COPY: found[COPY]},
        found["hbm_read"],
        found[COPY],
        found.get("launch_graph") or found.get("launch_stream", NOTHING),
        h.memory_bytes,
        p.sm_count,
        *_link(h),
        _power(h, p, rates),
        sustained.settling_of(h),
        h.is_cpu,
    )


def _promised(h: Hardware, s: HardwareSpec) -> Roof:
    """The datasheet's rates in full, and no launch floor."""
    rates = {name: q.value for name, q in s.ceilings.items() if name.startswith("matmul_")}
    memory = Range.exactly(s.ceilings["hbm"].value)
    return Roof(
        h.name,
        "datasheet",
        f"the datasheet of {s.title}, as if it were kept in full",
        {name: Range.exactly(rate) for name, rate in rates.items()},
        {**{name: Range.exactly(rate) for name, rate in rates.items()}, "memory": memory, COPY: memory},
        memory,
        memory,
        NOTHING,
        h.memory_bytes,
        s.sm_count,
        *_link(h),
        None,
    )


def _as_reached(promised: Roof, h: Hardware, s: HardwareSpec) -> Roof:
    """The datasheet times the share of its own that the nearest measured GPU reaches."""
    like = reference(s.architecture, s.vendor)
    reached, full = roof_of(like), {n: r.value for n, r in roof_of(like, Stage.DATASHEET).ceilings.items()}
    settling, power = sustained.settling_of(h), sustained.relative_share(h, like)
    shares = {
        name: _share(rate, full[name], 1.0 if name == VECTOR else power)
        for name, rate in reached.compute.items()
        if name in full
    }
    known = "of its datasheet that a measured {} reaches" + ", by its own power" * bool(settling)
    return replace(
        promised,
        basis=f"the datasheet of {h.estimated_from or s.title}, times the share {known.format(like.title)}",
        compute={n: rate * shares.get(n, shares["matmul_bf16"]) for n, rate in promised.compute.items()},
        ceilings={**promised.ceilings, COPY: promised.ceilings[COPY] * _share(reached.ceilings[COPY], full["memory"])},
        weights=promised.weights * _share(reached.weights, full["memory"]),
        stream=promised.stream * _share(reached.stream, full["memory"]),
        launch_s=reached.launch_s,
        settling=settling,
    )


def _share(effective: Range, promised: float, power: float = 1.0) -> Range:
    """The share of its datasheet's rate that a measured GPU reaches, to be applied to another GPU. That one may reach
    anything from its whole rate down to as far below this share as the datasheet is above it. `power`: how many times
    as large a share its power allows."""
    share = effective.value / promised * power
    return Range(share, min(share, share * share), max(share, 1.0))


@lru_cache(maxsize=8)
def reference(architecture: str, vendor: str) -> Hardware:
    """The measured GPU whose share stands in: of the same architecture, else of the same vendor, else any."""

    def distance(name: str) -> tuple[bool, bool]:
        return gpus.spec(name).architecture != architecture, gpus.spec(name).vendor != vendor

    return gpus.find(min(gpus.profile_names(), key=distance))


def _unmeasured(h: Hardware, measured: dict[str, Range]) -> dict[str, Range]:
    """Rates that no probe measured (int8, fp4): the datasheet's, times the share that fp8 reaches."""
    promised = roof_of(h, Stage.DATASHEET).compute if h.spec else {}
    if "matmul_fp8" not in measured or "matmul_fp8" not in promised:
        return {}
    share = _share(measured["matmul_fp8"], promised["matmul_fp8"].value)
    missing = [name for name in promised if name in ("matmul_int8", "matmul_fp4") and name not in measured]
    return {name: promised[name] * share for name in missing}


def _link(h: Hardware) -> tuple[Link | None, str]:
    """The link between GPUs of this kind, and what to say where there is none."""
    if h.spec is None:
        return h.link, "its profile has no datasheet, so the link between GPUs is not known"
    return h.link or next(iter(h.spec.links.values()), None), "its datasheet names no link between GPUs"


def _power(h: Hardware, p: HardwareProfile, rates: Mapping[str, Range]) -> Power | None:
    """`rates`: of products, settled where there are such."""
    found, prefix = {name: c.value for name, c in p.power.items()}, "joules_per_flop_"
    metered = {
        f"matmul_{name.removeprefix(prefix)}": joules for name, joules in found.items() if name.startswith(prefix)
    }
    like = next((name for name in ("matmul_fp8", "matmul_bf16") if name in metered and name in rates), "")
    if not like or not {"idle_power", "joules_per_byte_copy"} <= found.keys():
        return None
    full_load_w = metered[like] * rates[like].value
    per_flop = {name: full_load_w / rate.value for name, rate in rates.items()}
    limit_w = h.spec.power_w.value if h.spec else inf
    return Power(found["idle_power"], limit_w, per_flop | metered, found["joules_per_byte_copy"])


def check_dtype(roof: Roof, compute: str) -> None:
    if compute not in roof.compute:
        known = ", ".join(n.removeprefix("matmul_") for n in roof.compute)
        wanted = compute.removeprefix("matmul_")
        raise ChipError(f"{roof.name} has no {wanted} matrix rate; it has {known}: choose another --dtype")
