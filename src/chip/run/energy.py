"""Joules of a request: prefills alone, then whole requests, each long enough for a counter that moves every 100 ms."""

from __future__ import annotations

import time
from collections.abc import Callable

from chip.measure.device import Device
from chip.measure.energy import Energy, EnergyProbe, NoProbe, NotAvailable
from chip.run.clock import request
from chip.run.steps import Steps
from chip.runs import Energy as RunEnergy

DISAGREE = 0.05  # between the counter and integrated power
IDLE_S = 1.0


def idle_watts(probe: EnergyProbe, seconds: float = IDLE_S) -> float | NotAvailable:
    """What the device draws with the model loaded and nothing to do."""
    if isinstance(probe, NoProbe):
        return NotAvailable(probe.reason)
    probe.start()
    time.sleep(seconds)
    found = probe.stop()
    return found if isinstance(found, NotAvailable) else found.joules / found.seconds


def of_request(
    device: Device, probe: EnergyProbe, idle_w: float, steps: Steps, output: int, seconds: float
) -> RunEnergy | NotAvailable:
    """One request of the batch; decode is the whole less the prefill."""

    def prefill() -> None:
        steps.rewind()
        steps.prefill()
        device.synchronize()

    first = _each(probe, prefill, seconds)
    if isinstance(first, NotAvailable):
        return first
    whole = first if output == 1 else _each(probe, lambda: request(device, steps, output), seconds)
    if isinstance(whole, NotAvailable):
        return whole
    prefill_j = first.joules - idle_w * first.seconds
    return RunEnergy(
        prefill_j=prefill_j,
        decode_j=whole.joules - idle_w * whole.seconds - prefill_j if output > 1 else 0.0,
        idle_w=idle_w,
        method=f"{whole.method}, loops of {seconds:g} s, idle subtracted, decode = request - prefill",
        counter_j=whole.joules if whole.cross_check_joules is not None else None,
        integrated_j=whole.cross_check_joules,
        flags=_flags(whole),
    )


def _each(probe: EnergyProbe, work: Callable[[], object], seconds: float) -> Energy | NotAvailable:
    """Energy and time of one call, out of as many as fill `seconds`."""
    work()  # the clocks of this work, not of what ran before
    end, count = time.monotonic() + seconds, 0
    probe.start()
    while not count or time.monotonic() < end:
        work()
        count += 1
    found = probe.stop()
    if isinstance(found, NotAvailable):
        return found
    cross = found.cross_check_joules
    return Energy(found.joules / count, found.seconds / count, found.method, None if cross is None else cross / count)


def _flags(whole: Energy) -> tuple[str, ...]:
    if whole.cross_check_joules is None or not whole.joules:
        return ()
    apart = abs(whole.cross_check_joules / whole.joules - 1)
    return (f"energy counter and integrated power differ by {apart:.0%}",) if apart > DISAGREE else ()
