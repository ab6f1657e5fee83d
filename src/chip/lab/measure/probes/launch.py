"""Launch floors as the device sees them: the period of tiny kernels in a stream, in a graph, and of graphs themselves.

A spin kernel holds the device until all is enqueued. A node of a graph is then the GPU's own; streams and replays are
still fetched from the host's memory and differ between hosts, so they go into the host's profile.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from chip.lab.measure.bench import Bench, ProbeCase, Skip
from chip.lab.measure.journal import Outcome
from chip.lab.measure.timing import Call, capture, events, graph

IN_STREAM = 400  # under the depth of the launch queue, else the host waits
IN_GRAPH = 2000
GRAPHS = 50


def cases(bench: Bench) -> list[ProbeCase]:
    seconds = 0.1 + bench.budget.rule.max_seconds / 4
    in_graphs = seconds * (bench.device.kind == "cuda")
    return [
        ProbeCase("launch_stream", ("launch_stream",), seconds, _stream),
        ProbeCase("launch_graph", ("launch_graph",), in_graphs, _on_gpu(_graph)),
        ProbeCase("launch_replay", ("launch_replay",), in_graphs, _on_gpu(_replay)),
    ]


def tiny(bench: Bench) -> Call:
    x = torch.zeros(1, device=bench.device.torch_device)
    return lambda: x.add_(1)


def _on_gpu(measure: Callable[[Bench], Outcome]) -> Callable[[Bench], Outcome]:
    def case(bench: Bench) -> Outcome:
        if bench.device.kind == "cpu":
            raise Skip("a CPU has no graphs of kernels")
        return measure(bench)

    return case


def _stream(bench: Bench) -> Outcome:
    cpu = bench.device.kind == "cpu"
    samples = bench.collect(events(bench.device, [tiny(bench)], IN_STREAM))
    method = f"{IN_STREAM} one-element add_ back to back" + (", host clock" if cpu else " behind a spin kernel, events")
    # on a GPU the commands are fetched from the host's memory: 1.68 to 1.85 us on four hosts with the same H200
    floor = {"launch_stream": bench.seconds(samples, method)}
    return Outcome(ceilings=floor) if cpu else Outcome(terms=floor)


def _graph(bench: Bench) -> Outcome:
    samples = bench.collect(graph(bench.device, [tiny(bench)], IN_GRAPH))
    method = f"one node in a graph of {IN_GRAPH} one-element add_, events"
    return Outcome(ceilings={"launch_graph": bench.seconds(samples, method)})


def _replay(bench: Bench) -> Outcome:
    single = capture(bench.device, [tiny(bench)], 1)
    samples = bench.collect(events(bench.device, [single.replay], GRAPHS))
    method = f"{GRAPHS} graphs of one node back to back, events"
    return Outcome(terms={"launch_replay": bench.seconds(samples, method)})
