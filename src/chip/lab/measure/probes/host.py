"""What the host pays: handing over an operator, a kernel, a graph; waiting; allocating. It has its own profile."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F

from chip.lab.measure.bench import Bench, ProbeCase, Skip
from chip.lab.measure.journal import Outcome
from chip.lab.measure.probes.launch import tiny
from chip.lab.measure.stopping import Take
from chip.lab.measure.timing import capture, enqueue, host

INNER = 200  # operators handed over before the host looks at its clock again
QUEUED = f"{INNER} into an empty queue"
ALLOCATION_BYTES = 64 * 2**20
NO_KERNELS, NO_GRAPHS, NO_WAIT = (
    f"a CPU {what}" for what in ("launches no kernels", "has no graphs of kernels", "has nothing to wait for")
)


class HostTerm(NamedTuple):
    method: str
    take: Callable[[Bench], Take]
    no_gpu: str = ""  # why a CPU has none


def cases(bench: Bench) -> list[ProbeCase]:
    seconds = 0.05 + bench.budget.rule.max_seconds / 8
    return [ProbeCase(name, (f"host.{name}",), seconds, partial(_measure, name=name)) for name in TERMS]


def _measure(bench: Bench, name: str) -> Outcome:
    term = TERMS[name]
    if term.no_gpu and bench.device.kind == "cpu":
        raise Skip(term.no_gpu)
    take = term.take(bench)
    take()
    return Outcome(terms={name: bench.seconds(bench.collect(take), term.method)})


def _dispatch_linear(bench: Bench) -> Take:
    x, w = (bench.normal(s, torch.float32) for s in ((1, 64), (64, 64)))
    return enqueue(bench.device, lambda: F.linear(x, w), INNER)


def _launch_latency(bench: Bench) -> Take:
    """As `chip.lab.run.clock` measures it beside runs: what the terms of engines are scaled by."""
    x = torch.ones(64, device=bench.device.torch_device)
    return enqueue(bench.device, lambda: x * 1.0, INNER)


def _alloc_miss(bench: Bench) -> Take:
    device = bench.device.torch_device
    take = enqueue(bench.device, lambda: torch.empty(ALLOCATION_BYTES // 4, device=device), 1)

    def fresh() -> int:
        bench.device.empty_cache()
        return take()

    return fresh


TERMS = {
    "dispatch": HostTerm(
        f"one-element add_, {QUEUED}, host clock", lambda bench: enqueue(bench.device, tiny(bench), INNER)
    ),
    "dispatch_linear": HostTerm(f"F.linear of 1x64 by 64x64, {QUEUED}, host clock", _dispatch_linear),
    "launch": HostTerm(
        f"one bare kernel through torch's thinnest binding, {QUEUED}",
        lambda bench: enqueue(bench.device, lambda: torch.cuda._sleep(1), INNER),
        NO_KERNELS,
    ),
    "launch_latency": HostTerm(f"x * 1.0 of 64 values, {QUEUED}, host clock", _launch_latency, NO_KERNELS),
    "graph_replay": HostTerm(
        "handing over a graph of one node, 20 into an empty queue",
        lambda bench: enqueue(bench.device, capture(bench.device, [tiny(bench)], 1).replay, 20),
        NO_GRAPHS,
    ),
    "sync": HostTerm(
        "synchronise with an idle device, host clock", lambda bench: host(bench.device, lambda: None), NO_WAIT
    ),
    "alloc": HostTerm(
        "torch.empty of 4 KiB that the allocator has at hand",
        lambda bench: enqueue(bench.device, lambda: torch.empty(1024, device=bench.device.torch_device), INNER),
    ),
    "alloc_miss": HostTerm(
        f"torch.empty of {ALLOCATION_BYTES >> 20} MiB that the allocator must ask the driver for", _alloc_miss
    ),
}
