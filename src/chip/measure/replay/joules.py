"""The energy of a unit, from repeating its round for seconds."""

from __future__ import annotations

from collections.abc import Callable

from chip.measure.device import Device
from chip.measure.energy import EnergyProbe, NotAvailable, each, idle_watts, probe_for
from chip.records import replace
from chip.replay.results import Replayed

BATCH_S = 0.02  # of work between synchronisations
_idle_w: dict[str, float | NotAvailable] = {}


def with_joules(
    found: list[Replayed], device: Device, run: Callable[[], object], round_s: float, calls: int, seconds: float
) -> list[Replayed]:
    """With the joules of one call of a round of `calls`, idle power subtracted, shared out by length."""
    probe = probe_for(device)
    idle_w = _idle(device, probe)
    repeat = max(1, round(BATCH_S / max(round_s, 1e-6)))

    def work() -> None:
        for _ in range(repeat):
            run()
        device.synchronize()

    measured = idle_w if isinstance(idle_w, NotAvailable) else each(probe, work, seconds, idle_w)
    if isinstance(measured, NotAvailable) or isinstance(idle_w, NotAvailable):
        return found
    joules = (measured.joules - idle_w * measured.seconds) / (repeat * calls)
    total_ns = sum(r.median_ns for r in found if r.status == "ok") or 1
    return [replace(r, joules=joules * r.median_ns / total_ns) if r.status == "ok" else r for r in found]


def _idle(device: Device, probe: EnergyProbe) -> float | NotAvailable:
    """Watts at rest, once for all units of a worker."""
    if device.name not in _idle_w:
        _idle_w[device.name] = idle_watts(probe)
    return _idle_w[device.name]
