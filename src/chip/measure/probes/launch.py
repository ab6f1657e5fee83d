"""Launch floors as the device sees them: the period of tiny kernels in a stream, in a graph, and of graphs themselves.

A spin kernel holds the device until all is enqueued. A node of a graph is then the GPU's own; streams and replays are
still fetched from the host's memory and differ between hosts, so they go into the host's profile.
"""

from __future__ import annotations

import torch

from chip.measure.bench import Bench, ProbeCase, Skip
from chip.measure.journal import Outcome
from chip.measure.timing import Call, capture, events, graph
from chip.types import Ceiling

IN_STREAM = 400  # under the depth of the launch queue, else the host waits
IN_GRAPH = 2000
GRAPHS = 50


def cases(bench: Bench) -> list[ProbeCase]:
    seconds = 0.1 + bench.budget.rule.max_seconds / 4
    in_graphs = seconds * (bench.device.kind == "cuda")
    return [
        ProbeCase("launch_stream", ("launch_stream",), seconds, _stream),
        ProbeCase("launch_graph", ("launch_graph",), in_graphs, _graph),
        ProbeCase("launch_replay", ("launch_replay",), in_graphs, _replay),
    ]


def tiny(bench: Bench) -> Call:
    x = torch.zeros(1, device=bench.device.torch_device)
    return lambda: x.add_(1)


def _stream(bench: Bench) -> Outcome:
    cpu = bench.device.kind == "cpu"
    samples = bench.collect(events(bench.device, [tiny(bench)], IN_STREAM))
    method = f"{IN_STREAM} one-element add_ back to back" + (", host clock" if cpu else " behind a spin kernel, events")
    # on a GPU the commands are fetched from the host's memory: 1.68 to 1.85 us on four hosts with the same H200
    return _of_host("launch_stream", bench.seconds(samples, method), cpu)


def _graph(bench: Bench) -> Outcome:
    _require_graphs(bench)
    samples = bench.collect(graph(bench.device, [tiny(bench)], IN_GRAPH))
    return Outcome(
        ceilings={"launch_graph": bench.seconds(samples, f"one node in a graph of {IN_GRAPH} one-element add_, events")}
    )


def _replay(bench: Bench) -> Outcome:
    _require_graphs(bench)
    single = capture(bench.device, [tiny(bench)], 1)
    samples = bench.collect(events(bench.device, [single.replay], GRAPHS))
    return _of_host("launch_replay", bench.seconds(samples, f"{GRAPHS} graphs of one node back to back, events"))


def _of_host(name: str, found: Ceiling, cpu: bool = False) -> Outcome:
    return Outcome(ceilings={name: found}) if cpu else Outcome(terms={name: found})


def _require_graphs(bench: Bench) -> None:
    if bench.device.kind == "cpu":
        raise Skip("a CPU has no graphs of kernels")
