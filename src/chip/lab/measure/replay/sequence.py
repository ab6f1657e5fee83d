"""All calls of a step in the model's order, as one CUDA graph, without the model.

Each call reads what earlier calls made, from the graph's own memory, as in the model. What no call made (weights, KV
cache, ids) is random and allocated ahead, in the order of its first use, which places weights as loading them does. So
caches, instruction caches and the gaps between kernels are those of the model. So are the timers: the profiler for
single kernels, events for the whole.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping

import torch

from chip.files.traces import Place, TensorArg
from chip.lab.measure import timing
from chip.lab.measure.capture import PASSES, graph_timing
from chip.lab.measure.device import Device
from chip.lab.measure.kineto import Looked, passes
from chip.lab.measure.recorder import allocation, tensors_in
from chip.lab.measure.replay import direct
from chip.lab.measure.replay.arguments import PITCH, ArgumentDraw, Buffers, memories, written
from chip.lab.replay import gemm, owners
from chip.lab.replay.chrome import DeviceEvent
from chip.lab.replay.results import Placed, Sequenced
from chip.lab.replay.sequence import RecordedCall, Sequence
from chip.stats import median

STD = 0.02  # of random numbers, as transformers initialises weights: sums stay in range from layer to layer


def replay_sequence(sequence: Sequence, device: Device) -> tuple[Sequenced, dict[str, Placed]]:
    """The whole, and by key of each kernel how long it takes in its places."""
    gc.collect()
    device.empty_cache()
    with torch.inference_mode():
        step = ReplayStep(sequence, device)
        graph = timing.capture(device, [step.run], 1, step.restore)
        whole = graph_timing(graph.replay, step.restore, device)  # first, as in a capture: the device is as warm
        looked = passes([Looked(graph.replay, PASSES, step.restore)], device)[0]
    sums = [sum(e.duration_ns for e in events) for events in looked]
    return Sequenced(whole, median(sums), max(map(len, looked))), places(sequence, looked)


def places(sequence: Sequence, looked: list[list[DeviceEvent]]) -> dict[str, Placed]:
    """Durations of the launches whose kernels ran in the expected order: each its median over all passes, as a capture
    takes it, then median and mean over all launches of a kernel."""
    launches = [k for call in sequence.calls for k in call.kernels]
    known = [(sequence.kernels[k].name, place) for place, k in enumerate(launches)]
    aligned = {names: owners.aligned(names, known) for names in {tuple(e.name for e in events) for events in looked}}
    durations_of: dict[int, list[int]] = {}
    for events in looked:
        for event, place in zip(events, aligned[tuple(e.name for e in events)]):
            if place >= 0:
                durations_of.setdefault(place, []).append(event.duration_ns)
    by_key: dict[str, list[float]] = {}
    for place, durations in durations_of.items():
        by_key.setdefault(sequence.kernels[launches[place]].key, []).append(median(durations))
    return {key: Placed(median(each), sum(each) / len(each)) for key, each in by_key.items()}


class ReplayStep:
    """The calls, and the memories that no call makes. A graph of `run` needs this object to live."""

    def __init__(self, sequence: Sequence, device: Device) -> None:
        self.sequence, self.device = sequence, device
        self.draw = ArgumentDraw(device.torch_device, std=STD)
        self.inputs: dict[int, torch.Tensor] = {}  # memories that are there before the step
        self.drops = _drops(sequence.calls)
        changed = {call.inputs[m].memory for call in sequence.calls for m in written(sequence.operators[call.operator])}
        needed = _given(sequence)
        for memory in sorted(needed, key=lambda m: m in changed):  # weights first, then caches
            self._give(memory, *needed[memory])
        self.saved = {memory: self.inputs[memory].clone() for memory in needed if memory in changed}

    def _give(self, memory: int, size: int, like: TensorArg) -> torch.Tensor:
        self.inputs[memory] = self.draw.random(-(-max(size, 1) // PITCH) * PITCH, like)
        return self.inputs[memory]

    def restore(self) -> None:
        """What the step changes in place is as it was: positions do not run away, sums do not grow."""
        for memory, was in self.saved.items():
            self.inputs[memory].copy_(was)

    def run(self) -> None:
        produced: dict[int, torch.Tensor] = {}  # by calls of this run, as bytes, as long as a later call needs them
        for call, drop in zip(self.sequence.calls, self.drops):
            produced.update(zip(call.outputs, self._call(call, produced)))
            for memory in drop:
                produced.pop(memory, None)

    def _call(self, call: RecordedCall, produced: Mapping[int, torch.Tensor]) -> list[torch.Tensor]:
        """What it makes."""
        operator = self.sequence.operators[call.operator]
        copies_of = {
            m: [self._bytes(call.inputs[m], size, like, produced)] for m, (size, like) in memories(operator).items()
        }
        buffers = Buffers(operator, self.device.torch_device, copies_of)
        product = gemm.gemm_of(operator) if call.direct else None
        out = direct.product(product, buffers) if isinstance(product, gemm.Gemm) else buffers.call(0)()
        read = {allocation(copy) for copies in copies_of.values() for copy in copies}
        fresh = {allocation(t): t for t in tensors_in(out) if allocation(t) not in read}
        return [_all_bytes(t) for t in fresh.values()]

    def _bytes(self, place: Place, size: int, like: TensorArg, produced: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """The memory at that place; where what a call made there is too small, it was another that was recorded."""
        end = place.offset_bytes + size
        for source in (produced, self.inputs):
            if place.memory in source and source[place.memory].numel() >= end:
                return source[place.memory][place.offset_bytes :]
        return self._give(place.memory, end, like)[place.offset_bytes :]


def _all_bytes(t: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=t.device).set_(t.untyped_storage())


def _given(sequence: Sequence) -> dict[int, tuple[int, TensorArg]]:
    """Memories that are read before any call made them, in the order of their first use: bytes, and a tensor in it."""
    produced: set[int] = set()
    needed: dict[int, tuple[int, TensorArg]] = {}
    for call in sequence.calls:
        for m, (size, like) in memories(sequence.operators[call.operator]).items():
            memory, offset = call.inputs[m]
            if memory not in produced:
                most, first = needed.get(memory, (0, like))
                needed[memory] = max(most, offset + size), first
        produced.update(call.outputs)
    return needed


def _drops(calls: tuple[RecordedCall, ...]) -> list[list[int]]:
    """After each call, the memories that no later one uses."""
    last = {m: i for i, call in enumerate(calls) for m in (*call.outputs, *(p.memory for p in call.inputs))}
    drops: list[list[int]] = [[] for _ in calls]
    for memory, i in last.items():
        drops[i].append(memory)
    return drops
