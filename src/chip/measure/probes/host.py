"""What the host pays: handing over an operator, a kernel, a graph; waiting; allocating. It has its own profile."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from chip.measure.bench import Bench, ProbeCase, Skip
from chip.measure.journal import Outcome
from chip.measure.probes.launch import tiny
from chip.measure.stopping import Take
from chip.measure.timing import capture, enqueue, host

INNER = 200  # operators handed over before the host looks at its clock again
ALLOCATION_BYTES = 64 * 2**20


def cases(bench: Bench) -> list[ProbeCase]:
    makers = {
        "dispatch": _dispatch,
        "dispatch_linear": _dispatch_linear,
        "launch": _launch,
        "launch_latency": _launch_latency,
        "graph_replay": _graph_replay,
        "sync": _sync,
        "alloc": _alloc,
        "alloc_miss": _alloc_miss,
    }
    seconds = 0.05 + bench.budget.rule.max_seconds / 8
    return [
        ProbeCase(name, (f"host.{name}",), seconds, partial(_term, name=name, make=make))
        for name, make in makers.items()
    ]


def _term(bench: Bench, name: str, make: Callable[[Bench], tuple[str, Take]]) -> Outcome:
    method, take = make(bench)
    take()
    return Outcome(terms={name: bench.seconds(bench.collect(take), method)})


def _dispatch(bench: Bench) -> tuple[str, Take]:
    return f"one-element add_, {INNER} into an empty queue, host clock", enqueue(bench.device, tiny(bench), INNER)


def _dispatch_linear(bench: Bench) -> tuple[str, Take]:
    x, w = (bench.normal(s, torch.float32) for s in ((1, 64), (64, 64)))
    take = enqueue(bench.device, lambda: F.linear(x, w), INNER)
    return f"F.linear of 1x64 by 64x64, {INNER} into an empty queue, host clock", take


def _launch(bench: Bench) -> tuple[str, Take]:
    _require_gpu(bench, "a CPU launches no kernels")
    return f"one bare kernel through torch's thinnest binding, {INNER} into an empty queue", enqueue(
        bench.device, lambda: torch.cuda._sleep(1), INNER
    )


def _launch_latency(bench: Bench) -> tuple[str, Take]:
    """As `chip.run.launch_latency` measures it beside runs: what the terms of engines are scaled by."""
    _require_gpu(bench, "a CPU launches no kernels")
    x = torch.ones(64, device=bench.device.torch_device)
    return f"x * 1.0 of 64 values, {INNER} into an empty queue, host clock", enqueue(
        bench.device, lambda: x * 1.0, INNER
    )


def _graph_replay(bench: Bench) -> tuple[str, Take]:
    _require_gpu(bench, "a CPU has no graphs of kernels")
    single = capture(bench.device, [tiny(bench)], 1)
    return "handing over a graph of one node, 20 into an empty queue", enqueue(bench.device, single.replay, 20)


def _sync(bench: Bench) -> tuple[str, Take]:
    _require_gpu(bench, "a CPU has nothing to wait for")
    return "synchronise with an idle device, host clock", host(bench.device, lambda: None)


def _alloc(bench: Bench) -> tuple[str, Take]:
    device = bench.device.torch_device
    return "torch.empty of 4 KiB that the allocator has at hand", enqueue(
        bench.device, lambda: torch.empty(1024, device=device), INNER
    )


def _alloc_miss(bench: Bench) -> tuple[str, Take]:
    device = bench.device.torch_device
    take = enqueue(bench.device, lambda: torch.empty(ALLOCATION_BYTES // 4, device=device), 1)

    def fresh() -> int:
        bench.device.empty_cache()
        return take()

    return f"torch.empty of {ALLOCATION_BYTES >> 20} MiB that the allocator must ask the driver for", fresh


def _require_gpu(bench: Bench, why: str) -> None:
    if bench.device.kind == "cpu":
        raise Skip(why)
