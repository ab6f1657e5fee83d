"""A short kernel after those that ran before it in the model, instead of after itself.

Launched again and again, a kernel finds its instructions in the caches of the SMs. In the model other kernels came in
between. Here they run again before each call, with inputs of their own. Where the model went through more bytes than
the cache holds since the kernel's last launch, the cache is flushed ahead of them. What one call adds to a graph of its
neighbours, by events and without the profiler, is what one more launch costs the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chip import stats
from chip.measure import timing
from chip.measure.device import Device
from chip.measure.replay import direct
from chip.measure.replay.arguments import Buffers
from chip.measure.timer import StopRule, collect_interleaved
from chip.replay.rotation import Rotation
from chip.replay.signatures import Unit
from chip.types import ChipError

CALLS = 16  # in a graph
RULE = StopRule(0.001, 12, 30, 0.15)
FAR = 2  # times the cache: what lay so far back is in it no more
Call = Callable[[], object]


@dataclass(frozen=True)
class Among:
    """Graphs of the neighbours with and without the kernels of interest, which end each call of `run`."""

    run: Call
    without: Call
    before: Call  # ahead of each run, no part of it

    def added_ns(self, device: Device) -> float:
        """What one call adds to its neighbours: both graphs in turn, so that what they share cancels."""
        graphs = {"with": self.run, "without": self.without}
        takes = {
            n: timing.rested(device, timing.replayed(device, g, CALLS, self.before), CALLS) for n, g in graphs.items()
        }
        found = collect_interleaved(takes, RULE)
        return stats.median(found["with"].samples_ns) - stats.median(found["without"].samples_ns)


def among(
    unit: Unit, device: Device, calls: Sequence[Call], touches: Sequence[Call], flush: Call, before_run: Call
) -> Among | str:
    """The unit's calls, each behind its neighbours and behind what writes its warm inputs; or why that cannot be."""
    try:
        once = {neighbour.key: _call(neighbour, device) for neighbour in unit.before}
        before = [once[neighbour.key] for neighbour in unit.before]
        if unit.apart_bytes > FAR * device.l2_bytes:
            before = [flush, *before]
        ahead = [[*before, touch] for touch in touches]
        made = [
            timing.capture(device, [in_turn(x) for x in parts], CALLS)
            for parts in ([[*a, call] for a, call in zip(ahead, calls)], ahead)
        ]
    except (RuntimeError, ChipError) as e:  # a neighbour that refuses, or that no graph can hold
        device.synchronize()
        return f"not among its neighbours: {str(e).splitlines()[0][:80] if str(e) else type(e).__name__}"
    full, rest = made
    return Among(lambda: full.replay(), lambda: rest.replay(), before_run)


def _call(unit: Unit, device: Device) -> Call:
    """One call of a neighbour, its buffers the same each time."""
    operator = unit.operator or direct.stand_in(unit)
    once = Rotation({t.memory: 1 for t in operator.tensors})
    buffers = Buffers(operator, device.torch_device, once)
    made = direct.calls(unit, buffers, 1)
    return made[0] if made else buffers.call(0)


def in_turn(calls: Sequence[Call]) -> Call:
    def call() -> None:
        for one in calls:
            one()

    return call
