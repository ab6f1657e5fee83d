"""Idle power: what the device draws while it holds a context and does nothing."""

from __future__ import annotations

import time

from chip.lab.measure.bench import Bench, ProbeCase, Skip
from chip.lab.measure.energy import NotAvailable
from chip.lab.measure.journal import Outcome
from chip.types import Ceiling


def cases(bench: Bench) -> list[ProbeCase]:
    return [ProbeCase("idle_power", ("idle_power",), bench.budget.idle_s, _idle)]


def _idle(bench: Bench) -> Outcome:
    bench.device.synchronize()
    bench.energy.start()
    time.sleep(bench.budget.idle_s)
    used = bench.energy.stop()
    if isinstance(used, NotAvailable):
        raise Skip(used.reason)
    watts = used.joules / used.seconds
    other = watts if used.cross_check_joules is None else used.cross_check_joules / used.seconds
    now = bench.device.sensors()
    method = f"{used.method} over {used.seconds:.1f} s without work, context held"
    low, high = min(watts, other), max(watts, other)
    return Outcome(power={"idle_power": Ceiling(watts, low, high, "W", method, (), now.clock_hz, watts, now.celsius)})
