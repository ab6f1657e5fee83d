"""A hierarchical roofline from measured ceilings (or a datasheet), and measured operators placed under it.

An operator's roof is the larger of two times: its FLOPs at the compute ceiling of its dtype (vector fp32 for what runs
no matrix product), its bytes at the bandwidth of the memory level they come from, for its own mix of reads and writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from chip import ops, stats
from chip.files.measurements import operator
from chip.hardware.gpus import Hardware
from chip.types import ChipError, Cost, HardwareProfile, HardwareSpec, Measurement, Op

OVER = 1.02  # a rate this much above a roof is above it; less is noise of the two measurements
# Above this the roof itself is wrong. Of all operators in results/h200 the clock takes none more than 6 % above a roof.
TOO_LOW = 1.1
MATMUL = "matmul_"
SETTLED = "_settled"


@dataclass(frozen=True, slots=True)
class RoofLine:
    name: str  # as shown: "bf16", "vector fp32", "HBM"
    value: float  # FLOP/s or B/s
    settled: float | None = None  # what the clocks leave of it under sustained load


@dataclass(frozen=True, slots=True)
class Roofs:
    title: str
    source: str  # "measured" or "datasheet"
    compute: Mapping[str, RoofLine]  # by ceiling name
    memory: Mapping[str, RoofLine]  # by level: "hbm", and "l2" where it was measured
    mixes: tuple[tuple[float, float], ...]  # (share of reads in the traffic, B/s) of the hbm level
    floor_s: float  # the least time of a kernel in a graph; 0: not measured
    l2_bytes: float
    sm_count: int
    kind: str  # "cuda" or "cpu"
    flags: tuple[str, ...] = ()  # of the calibration
    estimated: bool = False  # from another GPU's datasheet

    def compute_roof(self, op: Op) -> RoofLine:
        """The ceiling an operator's arithmetic runs under: vector units where it has no matrix product."""
        wanted = ["vector_fp32", "matmul_fp32"] if not op.counted_flops else [op.compute]
        for name in wanted:
            if name in self.compute:
                return self.compute[name]
        known = ", ".join(sorted(self.compute)) or "none"
        raise ChipError(f"{self.title}: no {self.source} ceiling {wanted[0]} for {op.kind} (known: {known})")

    def bandwidth(self, cost: Cost) -> float:
        """HBM bandwidth at the measured mix of reads and writes nearest to the operator's own."""
        reads = cost.read_bytes / cost.bytes if cost.bytes else 1.0
        return min(self.mixes, key=lambda mix: abs(mix[0] - reads))[1]

    def ridge(self, compute: str, level: str) -> float:
        """FLOP per byte at which memory of that level and arithmetic of that kind take the same time."""
        return self.compute[compute].value / self.memory[level].value


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """A measured operator under its roof."""

    label: str
    op: Op
    implementation: str
    context: str
    seconds: float  # median
    mean_s: float
    p95_s: float
    cost: Cost
    level: str  # memory level its bytes are compared with: "hbm" or "l2"
    bound: str  # compute, memory or launch
    roof: RoofLine  # the one that bounds it
    compute: RoofLine
    ideal_s: float  # time at its roofs
    cached: bool  # cold by intent, yet faster than memory can be: part of it came from cache

    @property
    def share(self) -> float:
        """Share of the roof: 1.0 is at it."""
        return self.ideal_s / self.seconds

    @property
    def above(self) -> bool:
        """So far above the roof of its arithmetic that the roof is wrong. Bytes may come from a nearer level."""
        return self.bound == "compute" and self.share > TOO_LOW

    @property
    def flops_per_s(self) -> float:
        return self.cost.flops / self.seconds

    @property
    def bytes_per_s(self) -> float:
        return self.cost.bytes / self.seconds

    @property
    def settled_share(self) -> float | None:
        """Share of what the clocks sustain, for compute-bound points where that was measured."""
        if self.bound != "compute" or not self.compute.settled:
            return None
        return self.share * self.compute.value / self.compute.settled


def roofs_of(hardware: Hardware) -> Roofs:
    if hardware.profile:
        return from_profile(hardware.profile)
    assert hardware.spec
    return replace(from_spec(hardware.spec), estimated=bool(hardware.estimated_from))


def from_profile(p: HardwareProfile) -> Roofs:
    c = p.ceilings
    compute = {
        name: RoofLine(_short(name), ceiling.value, c[name + SETTLED].value if name + SETTLED in c else None)
        for name, ceiling in c.items()
        if name.startswith((MATMUL, "vector_")) and not name.endswith(SETTLED)
    }
    for level in ("hbm_read", "hbm_copy"):
        if level not in c:
            raise ChipError(f"profile {p.name}: ceiling {level} is missing; run `chip calibrate` again")
    mixes = {1.0: c["hbm_read"].value, 0.5: c["hbm_copy"].value}
    if "hbm_write" in c:
        mixes[0.0] = c["hbm_write"].value
    for name, ceiling in c.items():
        reads, to, writes = name.removeprefix("hbm_mix_").partition("to")
        if name.startswith("hbm_mix_") and to and reads.isdigit() and writes.isdigit():
            mixes[int(reads) / (int(reads) + int(writes))] = ceiling.value
    on_gpu = p.kind != "cpu"
    memory = {"hbm": RoofLine("HBM" if on_gpu else "memory", max(mixes.values()))}
    if "l2_read" in c:
        memory["l2"] = RoofLine("L2" if on_gpu else "cache", c["l2_read"].value)
    floor = c["launch_graph"].value if "launch_graph" in c else 0.0
    title = f"{p.device}, measured"
    return Roofs(
        title, "measured", compute, memory, tuple(mixes.items()), floor, p.l2_bytes, p.sm_count, p.kind, p.flags
    )


def from_spec(s: HardwareSpec) -> Roofs:
    compute = {name: RoofLine(_short(name), q.value) for name, q in s.ceilings.items() if name.startswith(MATMUL)}
    hbm = s.ceilings["hbm"].value
    title = f"{s.title}, datasheet"
    memory = {"hbm": RoofLine("HBM", hbm)}
    return Roofs(title, "datasheet", compute, memory, ((0.5, hbm),), 0.0, s.l2_bytes.value, s.sm_count, "cuda")


def describe(roofs: Roofs) -> dict[str, Any]:
    """The roofs as JSON: what `chip roofline` and the pages draw."""
    return {
        "title": roofs.title,
        "source": roofs.source,
        "compute": {n: {"flops_per_s": r.value, "settled_flops_per_s": r.settled} for n, r in roofs.compute.items()},
        "memory": {level: {"name": r.name, "bytes_per_s": r.value} for level, r in roofs.memory.items()},
        "ridges_flop_per_byte": {n: {level: roofs.ridge(n, level) for level in roofs.memory} for n in roofs.compute},
        "launch_floor_s": roofs.floor_s or None,
    }


def _short(name: str) -> str:
    return name.removeprefix(MATMUL).replace("_", " ")


def label(op: Op) -> str:
    """A name short enough to stand beside a point."""
    values: dict[str, Any] = {name: getattr(op, name) for name in ops.axes(type(op))}
    dtype = values.pop("dtype", "")
    if op.kind in ("linear", "bmm"):
        shape = "x".join(str(values[a]) for a in ("batch", "m", "n", "k") if a in values)
    elif op.kind == "attention":
        heads = "{heads}".format(**values) + ("/{kv_heads}".format(**values) if op.kind == "attention" else "")
        shape = f"b{values['batch']} h{heads} d{values['head_dim']} q{values['q_len']} kv{values['kv_len']}"
        shape += f" w{values['window']}" if values["window"] else ""
    elif op.kind == "conv2d":
        shape = "b{batch} {in_channels}x{height}x{width}>{out_channels} k{kernel_h}".format(**values)
    elif set(values) == {"rows", "cols"}:
        shape = "{rows}x{cols}".format(**values)
    else:
        shape = " ".join(f"{k}{v}" for k, v in values.items() if v not in ("", False))
    return f"{op.kind} {shape}" + (f" {dtype}" if dtype not in ("", "bf16") else "")


def place(m: Measurement, roofs: Roofs) -> RooflinePoint:
    """Where a measurement lies. It must be `ok`."""
    op = operator(m.op)
    cost = op.cost()
    seconds = stats.median(m.samples_ns) * 1e-9
    if seconds <= 0:
        raise ChipError(f"{label(op)}: the measured time is {seconds} s; samples must be positive")
    arithmetic = roofs.compute_roof(op)
    hbm, l2 = roofs.bandwidth(cost), roofs.memory.get("l2")
    level, bandwidth = "hbm", hbm
    cached = cost.bytes / seconds > hbm * OVER
    if l2 and (cached or (m.context == "hot" and cost.bytes <= roofs.l2_bytes)):
        level, bandwidth = "l2", l2.value
    compute_s, memory_s = cost.flops / arithmetic.value, cost.bytes / bandwidth
    bound = "compute" if compute_s > memory_s else "memory"
    ideal = max(compute_s, memory_s)
    if m.context != "host" and ideal < roofs.floor_s:
        bound = "launch"
    roof = arithmetic if bound == "compute" else RoofLine(roofs.memory[level].name, bandwidth)
    mean, p95 = sum(m.samples_ns) / len(m.samples_ns) * 1e-9, stats.quantile(m.samples_ns, 0.95) * 1e-9
    return RooflinePoint(
        label(op), op, m.implementation, m.context, seconds, mean, p95, cost, level, bound, roof, arithmetic, ideal,
        cached and m.context != "hot",
    )  # fmt: skip
