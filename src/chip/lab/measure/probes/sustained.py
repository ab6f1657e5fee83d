"""Seconds of unbroken load: the rate, the clock and the power they settle at, and the joules an operation takes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

import torch

from chip.lab.measure.bench import Bench, ProbeCase, ceiling
from chip.lab.measure.device import Sensors
from chip.lab.measure.energy import EnergyReading, NotAvailable
from chip.lab.measure.journal import Outcome
from chip.lab.measure.probes.compute import FORMATS, arithmetic, fits_memory, has_format, product, require_format
from chip.lab.measure.probes.memory import reader
from chip.lab.measure.stopping import Samples, flags_of
from chip.lab.measure.timing import Call, inner_for, unbroken
from chip.stats import median
from chip.types import Ceiling

BATCH_S = 0.02
LEAST_SAMPLES = 5
GPU_SIZE, CPU_SIZE = 8192, 1024


@dataclass(frozen=True)
class SustainedLoad:
    """The tail of a sustained load."""

    samples: Samples
    watts: tuple[float, ...]
    celsius: float | None
    energy: EnergyReading | NotAvailable


def cases(bench: Bench) -> list[ProbeCase]:
    seconds = bench.budget.settle_s + bench.budget.tail_s + 0.3
    products = [
        ProbeCase(
            f"matmul_{f}_settled",
            (f"matmul_{f}_settled", f"joules_per_flop_{f}"),
            seconds * has_format(bench.device, f),
            partial(_product, dtype=f),
        )
        for f in FORMATS
    ]
    streams = [
        ProbeCase(way, (f"joules_per_byte_{way}", f"hbm_{way}_settled"), seconds, partial(_stream, way=way))
        for way in ("copy", "read")
    ]
    return [*products, *streams]


def sustain(bench: Bench, call: Call) -> SustainedLoad:
    """Run without a pause; keep what the last `tail_s` seconds gave."""
    inner = inner_for(bench.device, [call], BATCH_S, limit=200)
    start = time.monotonic()
    tail_at, end = start + bench.budget.settle_s, start + bench.budget.settle_s + bench.budget.tail_s

    def batch() -> None:
        for _ in range(inner):
            call()

    take = unbroken(bench.device, batch, inner)
    while time.monotonic() < tail_at:
        take()
    samples: list[int] = []
    beside: list[Sensors] = []
    bench.energy.start()
    try:
        while time.monotonic() < end or len(samples) < LEAST_SAMPLES:
            samples.append(take())
            beside.append(bench.device.sensors())
    finally:
        energy = bench.energy.stop()
    bench.device.synchronize()
    clocks = tuple(s.clock_hz for s in beside if s.clock_hz is not None)
    watts = tuple(s.watts for s in beside if s.watts is not None)
    flags = flags_of(samples, clocks, "time", bench.budget.rule, None)
    return SustainedLoad(Samples(tuple(samples), clocks, "time", flags), watts, beside[-1].celsius, energy)


def _product(bench: Bench, dtype: str) -> Outcome:
    require_format(bench.device, dtype)
    size = GPU_SIZE if bench.device.kind == "cuda" else CPU_SIZE
    while size > 256 and not fits_memory(bench, size):
        size //= 2
    with arithmetic(dtype):
        load = sustain(bench, product(bench, dtype, size))
    work = 2.0 * size**3
    rate = _rate(bench, load, work, "FLOP/s", f"{size}^3, random normal")
    bench.check_compute(dtype, rate, load.samples.clocks_hz)
    power, missing = _per_unit(bench, load, rate, f"joules_per_flop_{dtype}", "J/FLOP")
    if dtype == "bf16":
        power |= _settled_clock(load, f"{size}^3 bf16")
        if "settled_clock" not in power:
            missing["settled_clock"] = "no clock readable on this device"
    return Outcome(ceilings={f"matmul_{dtype}_settled": rate}, power=power, missing=missing)


def _stream(bench: Bench, way: str) -> Outcome:
    size = bench.buffer_bytes()
    a = bench.buffer(0, size)
    call: Call
    if way == "copy":
        b = bench.buffer(1, size)
        call, moved, what = (lambda: b.copy_(a)), 2.0 * size, "copy_"
    elif loop := reader(bench.device, a, size):
        call, moved, what = loop, float(size), "triton read loop"
    else:
        call, moved, what = (lambda: torch.sum(a)), float(size), "sum"
    load = sustain(bench, call)
    rate = _rate(bench, load, moved, "B/s", f"{what} of {size >> 20} MiB")
    bench.check_memory(rate)
    power, missing = _per_unit(bench, load, rate, f"joules_per_byte_{way}", "J/B")
    return Outcome(ceilings={f"hbm_{way}_settled": rate}, power=power, missing=missing)


def _rate(bench: Bench, load: SustainedLoad, work: float, unit: str, what: str) -> Ceiling:
    load.samples.require_time(what)
    b = bench.budget
    method = f"{what}, median of {b.tail_s:g} s after {b.settle_s:g} s of unbroken load"
    values = [work / (ns * 1e-9) for ns in load.samples.samples_ns]
    watts = median(load.watts) if load.watts else None
    return ceiling(values, unit, method, load.samples.clock_hz, watts, load.celsius, load.samples.flags)


def _per_unit(
    bench: Bench, load: SustainedLoad, rate: Ceiling, name: str, unit: str
) -> tuple[dict[str, Ceiling], dict[str, str]]:
    """Joules of one operation above idle: (watts under load - idle watts) / rate."""
    idle = bench.found.power.get("idle_power")
    if isinstance(load.energy, NotAvailable):
        return {}, {name: load.energy.reason}
    if idle is None:
        return {}, {name: "needs idle_power, which is missing"}
    readings = [load.energy.joules] + ([load.energy.cross_check_joules] if load.energy.cross_check_joules else [])
    each = [(joules / load.energy.seconds - idle.value) / rate.value for joules in readings]
    if min(each) <= 0:
        return {}, {name: "the meter shows no more than idle power under load"}
    method = f"{load.energy.method} over {load.energy.seconds:.1f} s of settled load, idle power taken off"
    apart = max(each) > 1.1 * min(each)
    flags = ("counter and integrated power differ by more than 10 %",) if apart else ()
    found = Ceiling(each[0], min(each), max(each), unit, method, (), rate.clock_hz, rate.watts, rate.celsius, flags)
    return {name: found}, {}


def _settled_clock(load: SustainedLoad, what: str) -> dict[str, Ceiling]:
    power = {}
    if load.samples.clocks_hz:
        power["settled_clock"] = ceiling(
            list(load.samples.clocks_hz), "Hz", f"SM clock beside each batch, settled load of {what}"
        )
    if load.watts:
        power["settled_power"] = ceiling(list(load.watts), "W", f"power beside each batch, settled load of {what}")
    return power
