"""A step as it is run again without its model: every call in the model's order, on memories that flow as they did.

What a call makes, later calls read, so that caches are in the state the model leaves them in. What no call makes, the
weights among it, is random. Calls whose kernels could not be run alone, and those that no graph can hold, are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from chip.files.traces import Operator, Place, Trace
from chip.lab.replay import gemm, signatures
from chip.lab.replay.results import NO_GRAPH, Replayed
from chip.lab.replay.signatures import Signature


class RecordedCall(NamedTuple):
    operator: int  # index into the sequence's
    direct: bool  # asked of cuBLAS instead of the framework
    kernels: tuple[int, ...]  # it launches, in order: indices into the sequence's
    inputs: tuple[Place, ...]
    outputs: tuple[int, ...]


class Named(NamedTuple):
    key: str  # of its signature
    name: str  # of the kernel that ran when it was alone


@dataclass(frozen=True, slots=True)
class Sequence:
    operators: tuple[Operator, ...]
    kernels: tuple[Named, ...]
    calls: tuple[RecordedCall, ...]


def sequence_of(trace: Trace, replayed: Iterable[Replayed]) -> Sequence | str:
    """The calls that can be run again, or why there is no sequence."""
    if not trace.flow:
        return "the trace does not tell which memory each call used; capture the step again"
    known = {s.key: s for s in signatures.workload_of(trace).signatures}
    ran = {r.key: r.name for r in replayed if r.status == "ok" and NO_GRAPH not in r.flags and not _waits(r.name)}
    keys = [signatures.key_of(k, None if k.operator is None else trace.operators[k.operator]) for k in trace.kernels]
    named = [Named(key, ran.get(key, "")) for key in keys]
    launched: dict[int, list[int]] = {}  # by each call, the first launched first
    for event in trace.events:
        launched.setdefault(event.call, []).append(event.kernel)
    flow = {f.call: f for f in trace.flow}
    calls = []
    for number, kernels in launched.items():
        operator = trace.kernels[kernels[0]].operator
        met = tuple(k for k in kernels if keys[k] in ran)
        if met and operator is not None and number in flow:
            direct = _direct([known[keys[k]] for k in kernels])
            calls.append(RecordedCall(operator, direct, met, flow[number].inputs, flow[number].outputs))
    return Sequence(trace.operators, tuple(named), tuple(calls)) if calls else "no call of it could be run alone"


def _waits(name: str) -> bool:
    """A copy from or to the host: its operator waits for it, which no graph can hold."""
    return "HtoD" in name or "DtoH" in name


def _direct(launched: list[Signature]) -> bool:
    """Whether cuBLAS is all that ran: no kernel of the framework's, and nothing copied into the result first."""
    products: list[gemm.Gemm] = [s.gemm for s in launched if s.gemm is not None]
    return all(s.tier in (1, 2) for s in launched) and bool(products) and products[0].beta == 0
