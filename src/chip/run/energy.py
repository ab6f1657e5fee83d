"""Joules of a request: prefills alone, then whole requests, from tick to tick of a counter that moves every 100 ms.

Below a second the counter alone is to be had: power readings move no faster, and cannot check so little.
"""

from __future__ import annotations

from chip.measure.device import Device
from chip.measure.energy import Energy, EnergyProbe, NotAvailable, each
from chip.run.clock import request
from chip.run.steps import Steps
from chip.runs import Energy as RunEnergy

DISAGREE = 0.05  # between the counter and integrated power


def of_request(
    device: Device, probe: EnergyProbe, idle_w: float, steps: Steps, output: int, seconds: float
) -> RunEnergy | NotAvailable:
    """One request of the batch; decode is the whole less the prefill."""

    def prefill() -> None:
        steps.rewind()
        steps.prefill()
        device.synchronize()

    first = each(probe, prefill, seconds, idle_w)
    if isinstance(first, NotAvailable):
        return first
    whole = first if output == 1 else each(probe, lambda: request(device, steps, output), seconds, idle_w)
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
        flags=disagreement(whole),
    )


def disagreement(whole: Energy) -> tuple[str, ...]:
    if whole.cross_check_joules is None or not whole.joules:
        return whole.flags
    apart = abs(whole.cross_check_joules / whole.joules - 1)
    differ = (f"energy counter and integrated power differ by {apart:.0%}",) if apart > DISAGREE else ()
    return (*whole.flags, *differ)
