"""Joules of a request: prefills alone, then whole requests, from tick to tick of a counter that moves every 100 ms.

Below a second the counter alone is to be had: power readings move no faster, and cannot check so little.
"""

from __future__ import annotations

from chip.files.runs import Energy as RunEnergy
from chip.lab.measure.device import Device
from chip.lab.measure.energy import EnergyProbe, EnergyReading, NotAvailable, each
from chip.lab.run.clock import request
from chip.lab.run.steps import Steps

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
    return above_idle(first, whole, idle_w, seconds)


def above_idle(first: EnergyReading, whole: EnergyReading, idle_w: float, seconds: float) -> RunEnergy:
    """From a prefill and a whole request (the same one where there is no decode). What is not above idle is no energy:
    the work was too short or the device was not idle when its idle power was read."""
    prefill_j, whole_j = first.above(idle_w), whole.above(idle_w)
    parts = {"prefill": prefill_j, **({"decode": whole_j - prefill_j} if whole is not first else {})}
    lost = tuple(
        f"no {part} energy: {joules:.2g} J left of it above {idle_w:.0f} W idle"
        for part, joules in parts.items()
        if joules <= 0
    )
    told = {part: joules if joules > 0 else None for part, joules in parts.items()}
    return RunEnergy(
        prefill_j=told["prefill"],
        decode_j=told.get("decode", 0.0),
        idle_w=idle_w,
        method=f"{whole.method}, loops of {seconds:g} s, idle subtracted, decode = request - prefill",
        counter_j=whole.joules if whole.cross_check_joules is not None else None,
        integrated_j=whole.cross_check_joules,
        flags=(*disagreement(whole), *lost),
    )


def disagreement(whole: EnergyReading) -> tuple[str, ...]:
    if whole.cross_check_joules is None or not whole.joules:
        return whole.flags
    apart = abs(whole.cross_check_joules / whole.joules - 1)
    differ = (f"energy counter and integrated power differ by {apart:.0%}",) if apart > DISAGREE else ()
    return (*whole.flags, *differ)
