"""A short kernel after those that ran before it in the model, instead of after itself.

Launched again and again, a kernel finds its instructions in the caches of the SMs. In the model other kernels came in
between. Here they run again before each call, with inputs of their own. Where the model went through more bytes than
the cache holds since the kernel's last launch, the cache is flushed ahead of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chip.measure import timing
from chip.measure.device import Device
from chip.measure.replay import direct
from chip.measure.replay.arguments import Buffers
from chip.replay.rotation import Rotation
from chip.replay.signatures import Unit
from chip.types import ChipError

CALLS = 16  # in a graph
FAR = 2  # times the cache: what lay so far back is in it no more
Call = Callable[[], object]


@dataclass(frozen=True)
class Among:
    """A graph of calls, each behind the neighbours; the kernels of interest end each call."""

    run: Call
    before: Call  # ahead of each run, no part of it
    held: object  # a graph does not keep the memory it works on


def among(
    unit: Unit, device: Device, calls: Sequence[Call], touches: Sequence[Call], flush: Call, before_run: Call
) -> Among | str:
    """The unit's calls, each behind its neighbours and behind what writes its warm inputs; or why that cannot be."""
    try:
        once = {neighbour.key: _call(neighbour, device) for neighbour in unit.before}
        before = [once[neighbour.key] for neighbour in unit.before]
        if unit.apart_bytes > FAR * device.l2_bytes:
            before = [flush, *before]
        rounds = [in_turn([*before, touch, call]) for touch, call in zip(touches, calls)]
        graph = timing.capture(device, rounds, CALLS)
    except (RuntimeError, ChipError) as e:  # a neighbour that refuses, or that no graph can hold
        device.synchronize()
        return f"not among its neighbours: {str(e).splitlines()[0][:80] if str(e) else type(e).__name__}"
    return Among(lambda: graph.replay(), before_run, rounds)


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
