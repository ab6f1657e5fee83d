"""Energy of a stretch of work, by the device's own meter or by one of the user's.

A user's meter is a class with `start` and `stop` (`EnergyProbe`), named by `--energy-probe FILE.py:NAME` or by
CHIP_ENERGY_PROBE. The name goes through the environment, so that worker processes use the same meter.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, cast

from chip.lab.measure.device import Device
from chip.types import ChipError

VARIABLE = "CHIP_ENERGY_PROBE"
POLL_S = 0.01
IDLE_S = 1.0
TICK_S = 0.5  # a counter that does not move for so long has stopped
TICKS = 2  # of an idle device: a counter may tell late what was drawn before its first move, but not before its second
CHECKED_S = 1.0  # of work: power readings move ten times a second too, and fewer of them prove nothing
Read = Callable[[], "float | None"]
Readings = Sequence[tuple[float, float]]  # when, and what


@dataclass(frozen=True)
class EnergyReading:
    joules: float
    seconds: float
    method: str
    cross_check_joules: float | None = None  # the same by integrated power, where there are both
    flags: tuple[str, ...] = ()

    def above(self, idle_w: float) -> float:
        """Joules without what the device draws at rest."""
        return self.joules - idle_w * self.seconds


@dataclass(frozen=True)
class NotAvailable:
    reason: str


class EnergyProbe(Protocol):
    """Called around work that lasts seconds; what it returns covers everything between the two calls."""

    def start(self) -> None: ...

    def stop(self) -> EnergyReading | NotAvailable: ...


class NoProbe:
    """Where nothing can be read: says why."""

    def __init__(self, reason: str = "no energy meter on this device") -> None:
        self.reason = reason

    def start(self) -> None:
        pass

    def stop(self) -> EnergyReading | NotAvailable:
        return NotAvailable(self.reason)


class SampledProbe:
    """Reads a running total of joules, or watts, or both, in a thread; either may be missing.

    By itself it tells what a steady load draws: the rate between two ticks of the counter. With `start(whole=True)` the
    stretch begins and ends on ticks, the device idle at both, and its joules are exact whatever ran in between.
    """

    def __init__(self, name: str, joules: Read | None, watts: Read | None) -> None:
        self.name, self._readers = name, (joules, watts)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._joules: list[tuple[float, float]] = []
        self._watts: list[tuple[float, float]] = []
        self._started, self._whole = 0.0, False

    def start(self, whole: bool = False) -> None:
        self._whole = whole
        self._stop.clear()
        self._joules, self._watts = [], []
        if whole:
            self._wait_for_ticks()
            self._joules, self._watts = self._joules[-1:], []
        self._started = time.monotonic()
        self.poll()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> EnergyReading | NotAvailable:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self.poll()
        if self._whole:
            self._wait_for_ticks()
        seconds = time.monotonic() - self._started
        counted = joules_between(self._joules) if self._whole else joules_by_counter(self._joules, seconds)
        integrated = joules_by_power(self._watts, seconds)
        if counted is not None:
            return EnergyReading(counted, seconds, f"{self.name} energy counter", integrated)
        if integrated is not None:
            return EnergyReading(integrated, seconds, f"{self.name} power, integrated over {len(self._watts)} readings")
        return NotAvailable(f"{self.name} gives neither an energy counter nor watts")

    def _wait_for_ticks(self) -> None:
        """Until the counter has moved, and moved again; not at all where there is none."""
        self.poll()
        for _ in range(TICKS if self._joules else 0):
            before, end = self._joules[-1][1], time.monotonic() + TICK_S
            while self._joules[-1][1] == before:
                if time.monotonic() > end:
                    return
                time.sleep(POLL_S)
                self.poll()

    def _run(self) -> None:
        while not self._stop.wait(POLL_S):
            self.poll()

    def poll(self) -> None:
        for read, into in zip(self._readers, (self._joules, self._watts)):
            value = read() if read else None
            if value is not None:
                into.append((time.monotonic(), value))


def idle_watts(probe: EnergyProbe, seconds: float | None = None) -> float | NotAvailable:
    """What the device draws with the model loaded and nothing to do."""
    if isinstance(probe, NoProbe):
        return NotAvailable(probe.reason)
    probe.start()
    time.sleep(IDLE_S if seconds is None else seconds)
    reading = probe.stop()
    return reading if isinstance(reading, NotAvailable) else reading.joules / reading.seconds


def each(probe: EnergyProbe, work: Callable[[], object], seconds: float, idle_w: float) -> EnergyReading | NotAvailable:
    """Energy and time of one call, idle power included, out of as many as fill `seconds`."""
    work()  # the clocks of this work, not of what ran before
    start_whole(probe)
    began, count = time.monotonic(), 0
    while not count or time.monotonic() - began < seconds:
        work()
        count += 1
    worked_s = time.monotonic() - began
    reading = probe.stop()
    return reading if isinstance(reading, NotAvailable) else of_work(reading, worked_s, idle_w, count)


def joules_above(
    probe: EnergyProbe, work: Callable[[], object], seconds: float, idle_w: float | NotAvailable
) -> float | NotAvailable:
    """Joules of one call, idle power subtracted, out of as many as fill `seconds`."""
    if isinstance(idle_w, NotAvailable):
        return idle_w
    reading = each(probe, work, seconds, idle_w)
    return reading if isinstance(reading, NotAvailable) else reading.above(idle_w)


def start_whole(probe: EnergyProbe) -> None:
    """Start for a stretch of work that ends before `stop`, on the meter's ticks where it has any."""
    if isinstance(probe, SampledProbe):
        probe.start(whole=True)
    else:
        probe.start()


def of_work(reading: EnergyReading, worked_s: float, idle_w: float, count: int = 1) -> EnergyReading:
    """One of `count` calls that worked so long in a stretch that else was idle; not checked where that is short."""
    idle_j = idle_w * (reading.seconds - worked_s)
    cross, flags = reading.cross_check_joules, reading.flags
    if cross is not None and worked_s < CHECKED_S:
        cross, flags = None, (*flags, f"energy counter not checked by power: under {CHECKED_S:g} s of work")
    return replace(
        reading,
        joules=(reading.joules - idle_j) / count,
        seconds=worked_s / count,
        cross_check_joules=None if cross is None else (cross - idle_j) / count,
        flags=flags,
    )


def joules_by_counter(readings: Readings, seconds: float) -> float | None:
    """Joules from a counter that moves in ticks: the rate between its first and its last tick, over the whole time."""
    ticks = [b for a, b in pairwise(readings) if b[1] != a[1]]
    if len(ticks) >= 3:
        (t0, j0), (t1, j1) = ticks[0], ticks[-1]
        return (j1 - j0) / (t1 - t0) * seconds
    return readings[-1][1] - readings[0][1] if ticks else None


def joules_between(readings: Readings) -> float | None:
    """Joules of a stretch from tick to tick: what the counter moved by; None where it did not."""
    return (readings[-1][1] - readings[0][1] if readings else 0.0) or None


def joules_by_power(readings: Readings, seconds: float) -> float | None:
    """Trapezoids between the readings, stretched to the whole time."""
    if len(readings) < 2 or readings[-1][0] <= readings[0][0]:
        return None
    area = sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(readings))
    return area / (readings[-1][0] - readings[0][0]) * seconds


def rapl_joules(root: Path = Path("/sys/class/powercap")) -> Read | None:
    """A reader of the CPU packages' energy, wrap-around undone; None where the kernel shows none to us."""
    packages = [p for p in sorted(root.glob("intel-rapl:*")) if p.name.count(":") == 1]

    def values(name: str) -> list[int] | None:
        try:
            return [int((p / name).read_text()) for p in packages]
        except (OSError, ValueError):
            return None

    spans, last, total = values("max_energy_range_uj"), values("energy_uj"), 0
    if not spans or not last:
        return None

    def read() -> float | None:
        nonlocal last, total
        if (now := values("energy_uj")) is None or last is None or spans is None:
            return None
        total += sum((new - old) % span if new < old else new - old for new, old, span in zip(now, last, spans))
        last = now
        return total / 1e6

    return read


def probe_for(device: Device) -> EnergyProbe:
    """The user's own meter if one is named, else the best there is for a device."""
    if (named := named_probe()) is not None:
        return named
    if device.gpu is not None:
        return SampledProbe("NVML", device.gpu.joules, device.gpu.watts)
    if device.kind == "cuda":
        if device.watts() is not None:
            return SampledProbe("amdsmi", None, device.watts)
        return NoProbe("; ".join(device.notes) or "this GPU's driver tells no power")
    if (joules := rapl_joules()) is not None:
        return SampledProbe("RAPL", joules, None)
    return NoProbe("no RAPL energy counter readable under /sys/class/powercap")


# -- a meter of the user's --------------------------------------------------------------------------------------------
def named_probe() -> EnergyProbe | None:
    """A new meter of the class that the user named; None where none is."""
    where = os.environ.get(VARIABLE, "")
    if not where:
        return None
    maker = _maker(where)
    try:
        probe = maker()
    except Exception as e:
        raise ChipError(f"energy probe {where}: cannot be made ({type(e).__name__}: {e})") from None
    missing = [name for name in ("start", "stop") if not callable(getattr(probe, name, None))]
    if missing:
        raise ChipError(f"energy probe {where}: has no {' and no '.join(missing)}; see docs/calibrate.md")
    return cast(EnergyProbe, probe)


@lru_cache(maxsize=4)
def _maker(where: str) -> Any:
    place, _, name = where.rpartition(":")
    if not place or not name:
        raise ChipError(f"energy probe {where!r}: write FILE.py:NAME or MODULE:NAME")
    try:
        module = _import_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except Exception as e:
        raise ChipError(f"energy probe {where}: cannot be imported ({type(e).__name__}: {e})") from None
    if not callable(maker := getattr(module, name, None)):
        raise ChipError(f"energy probe {where}: no class or function {name} there")
    return maker


def _import_file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path.absolute())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
