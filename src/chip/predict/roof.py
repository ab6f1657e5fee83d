"""The ceilings a prediction stands under: measured ones times calibration factors, or a datasheet's times the share of
its datasheet's rates that the nearest measured architecture reaches."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from chip import hardware
from chip.hardware import Hardware
from chip.predict.stages import ALL, Stage
from chip.records import dataclass
from chip.types import ChipError, HardwareProfile, HardwareSpec, Link


class Range(NamedTuple):
    """A value between bounds."""

    value: float
    low: float
    high: float

    def __mul__(self, other: object) -> Range:
        if not isinstance(other, Range):
            return NotImplemented
        return Range(self.value * other.value, self.low * other.low, self.high * other.high)


EXACT = Range(1.0, 1.0, 1.0)


class Power(NamedTuple):
    """What energy is made of: idle watts all the time, joules for each FLOP of a matrix product and each byte moved."""

    idle_w: Range
    per_flop_j: dict[str, Range]  # by number format
    per_byte_j: Range

    def joules(self, dtype: str, seconds: Range, flops: float, moved: float) -> Range:
        flop = self.per_flop_j.get(dtype) or self.per_flop_j["bf16"]
        idle, byte = self.idle_w, self.per_byte_j
        return Range(
            idle.value * seconds.value + flop.value * flops + byte.value * moved,
            idle.low * seconds.low + flop.low * flops + byte.low * moved,
            idle.high * seconds.high + flop.high * flops + byte.high * moved,
        )


# Which calibration factor a kernel's share of a ceiling is read from.
FACTOR_OF = {"compute": "tensor_utilisation", "weights": "gemm_memory", "stream": "memory_kernel"}


@dataclass(frozen=True, slots=True)
class Roof:
    """Effective rates: what a real kernel gets, with bounds."""

    name: str
    source: str  # "roofline" where the device was measured, "datasheet" where not
    basis: str  # one line for people: what the rates rest on
    compute: dict[str, Range]  # FLOP/s by ceiling name, matmul_bf16 ...
    ideal: dict[str, float]  # the same before calibration factors, and "memory": for ridge points
    weights: Range  # B/s of matrix products and attention, whose operands come cold from memory
    stream: Range  # B/s of elementwise kernels
    launch_s: Range  # least time between the starts of two kernels in a graph
    memory_bytes: float
    sm_count: int
    link: Link | None
    ranks_need: str  # why several GPUs cannot be predicted, "" when they can
    power: Power | None  # None where no meter was there

    def ridge(self, compute: str) -> float:
        """FLOP/B above which an operator is compute-bound."""
        return self.ideal[compute] / self.ideal["memory"]

    def moving(self, compute: str) -> Range:
        """B/s of an operator that runs under a compute ceiling."""
        return self.stream if compute == "matmul_fp32" else self.weights


@lru_cache(maxsize=64)
def roof_of(h: Hardware, stage: Stage = ALL) -> Roof:
    if stage == Stage.DATASHEET:
        return _promised(h)
    if h.profile:
        return _measured(h, h.profile, stage >= Stage.FACTORS)
    assert h.spec
    return _from_datasheet(h, h.spec)


def compute_ceiling(p: HardwareProfile, name: str) -> Range:
    """The settled rate where there is one: inference is sustained load."""
    c = p.ceilings.get(f"{name}_settled") or p.ceilings[name]
    return Range(c.value, c.low, c.high)


def compute_names(p: HardwareProfile) -> list[str]:
    return [n for n in p.ceilings if n.startswith("matmul_") and not n.endswith("_settled")]


def _factor(p: HardwareProfile, use: str) -> Range:
    f = p.factors.get(FACTOR_OF[use])
    return Range(f.value, f.low, f.high) if f else EXACT


def _ceiling(p: HardwareProfile, name: str) -> Range:
    c = p.ceilings[name]
    return Range(c.value, c.low, c.high)


def _link(h: Hardware) -> tuple[Link | None, str]:
    s = h.spec
    if h.link:
        return h.link, ""
    if s is None:
        return None, "its profile has no datasheet, so the link between GPUs is not known"
    for link in s.links.values():
        return link, ""
    return None, "its datasheet names no link between GPUs"


def _measured(h: Hardware, p: HardwareProfile, factors: bool) -> Roof:
    link, why = _link(h)
    factor = {use: _factor(p, use) if factors else EXACT for use in FACTOR_OF}
    measured = {n: compute_ceiling(p, n) for n in compute_names(p)}
    rates = {**_unmeasured(h.spec, measured), **measured}
    ideal = {n: rate.value for n, rate in rates.items()}
    launch = p.ceilings.get("launch_graph") or p.ceilings.get("launch_stream")
    return Roof(
        h.name,
        "roofline",
        f"ceilings measured on {p.device}" + (", times calibration factors" if factors else ""),
        {n: rate * factor["compute"] for n, rate in rates.items()},
        {**ideal, "memory": p.ceilings["hbm_read"].value},
        _ceiling(p, "hbm_read") * factor["weights"],
        _ceiling(p, "hbm_copy") * factor["stream"],
        Range(launch.value, launch.low, launch.high) if launch else Range(0.0, 0.0, 0.0),
        h.memory_bytes,
        p.sm_count,
        link,
        why,
        _power(p),
    )


def _unmeasured(spec: HardwareSpec | None, measured: dict[str, Range]) -> dict[str, Range]:
    """Rates of a datasheet that no probe measured (int8): the share of them that fp8 reaches."""
    fp8 = measured.get("matmul_fp8")
    if spec is None or fp8 is None or "matmul_fp8" not in spec.ceilings:
        return {}
    share = _share(fp8, spec.ceilings["matmul_fp8"].value)
    return {
        n: Range(q.value, q.value, q.value) * share
        for n, q in spec.ceilings.items()
        if n in ("matmul_int8", "matmul_fp4") and n not in measured
    }


def _power(p: HardwareProfile) -> Power | None:
    flop = {
        n.removeprefix("joules_per_flop_"): Range(c.value, c.low, c.high)
        for n, c in p.power.items()
        if n.startswith("joules_per_flop_")
    }
    idle, byte = p.power.get("idle_power"), p.power.get("joules_per_byte_copy")
    if idle is None or byte is None or "bf16" not in flop:
        return None
    return Power(Range(idle.value, idle.low, idle.high), flop, Range(byte.value, byte.low, byte.high))


@lru_cache(maxsize=8)
def reference(architecture: str, vendor: str) -> tuple[HardwareSpec, Roof]:
    """The measured GPU whose kept share stands in: of the same architecture, else vendor, else any."""
    measured = [hardware.find(n) for n in hardware.profile_names()]

    def distance(h: Hardware) -> tuple[bool, bool]:
        assert h.spec
        return h.spec.architecture != architecture, h.spec.vendor != vendor

    nearest = min(measured, key=distance)
    assert nearest.spec
    return nearest.spec, roof_of(nearest)


def _share(effective: Range, promised: float) -> Range:
    """Share of a datasheet's rate that another GPU reaches. This one may reach anything from all of its rate to as far
    below that share as the datasheet is above it."""
    kept = effective.value / promised
    return Range(kept, min(kept, kept * kept), max(kept, 1.0))


def _from_datasheet(h: Hardware, s: HardwareSpec) -> Roof:
    ref_spec, ref = reference(s.architecture, s.vendor)
    link, why = _link(h)
    shares = {n: _share(r, ref_spec.ceilings[n].value) for n, r in ref.compute.items() if n in ref_spec.ceilings}
    typical = shares["matmul_bf16"]
    ideal = {n: q.value for n, q in s.ceilings.items() if n.startswith("matmul_")}
    hbm = s.ceilings["hbm"].value
    promised = ref_spec.ceilings["hbm"].value
    stands_in = f"the datasheet of {h.estimated_from}" if h.estimated_from else f"the datasheet of {s.title}"
    return Roof(
        h.name,
        "datasheet",
        f"{stands_in}, times the share of its datasheet that a measured {ref_spec.title} reaches",
        {n: Range(v, v, v) * shares.get(n, typical) for n, v in ideal.items()},
        {**ideal, "memory": hbm},
        Range(hbm, hbm, hbm) * _share(ref.weights, promised),
        Range(hbm, hbm, hbm) * _share(ref.stream, promised),
        ref.launch_s,
        h.memory_bytes,
        s.sm_count,
        link,
        why,
        None,
    )


def _promised(h: Hardware) -> Roof:
    """The datasheet taken at its word: nothing measured, no least time of a kernel."""
    if h.spec is None:
        raise ChipError(f"{h.name} has no datasheet to start from")
    link, why = _link(h)
    rates = {n: q.value for n, q in h.spec.ceilings.items() if n.startswith("matmul_")}
    hbm = h.spec.ceilings["hbm"].value
    return Roof(
        h.name,
        "datasheet",
        f"the datasheet of {h.spec.title}, as if it were kept in full",
        {n: Range(v, v, v) for n, v in rates.items()},
        {**rates, "memory": hbm},
        Range(hbm, hbm, hbm),
        Range(hbm, hbm, hbm),
        Range(0.0, 0.0, 0.0),
        h.memory_bytes,
        h.spec.sm_count,
        link,
        why,
        None,
    )


def check_dtype(roof: Roof, compute: str) -> None:
    if compute not in roof.compute:
        known = ", ".join(n.removeprefix("matmul_") for n in roof.compute)
        wanted = compute.removeprefix("matmul_")
        raise ChipError(f"{roof.name} has no {wanted} matrix rate; it has {known}: choose another --dtype")
