"""From an engine's measured terms to rows of the breakdown: gaps between kernels, the host where it is the longer, and
what comes before the first step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from chip.predict.roof import Range
from chip.types import Ceiling

NONE = Range(0.0, 0.0, 0.0)
SOURCE = "engine"


class Work(NamedTuple):
    """What the steps of a phase ask of the engine, in all and weighted: `steps` of them."""

    steps: float
    kernels: float
    seqs: float
    eager_layers: float  # launched by the host
    eager_kernels: float
    graph_layers: float  # pieces of graphs in a prefill
    requests: float = 0.0  # that wait for their first token
    tokens: float = 0.0


class Extra(NamedTuple):
    """A row that no operator has."""

    role: str
    calls: float
    seconds: Range
    bound: str


class Overheads:
    """The terms of one engine on one host."""

    def __init__(self, terms: Mapping[str, Ceiling]) -> None:
        self._terms = {name: Range(c.value, c.low, c.high) for name, c in terms.items()}

    def __bool__(self) -> bool:
        return bool(self._terms)

    def _sum(self, **counts: float) -> Range:
        found = [(self._terms.get(name, NONE), n) for name, n in counts.items()]
        return Range(*(sum([term[i] * n for term, n in found]) for i in range(3)))

    def extras(self, work: Work, device: Range) -> list[Extra]:
        """Rows to add to a phase whose operators take `device` alone."""
        gaps = self._sum(kernel_s=work.kernels)
        around = self._sum(step_s=work.steps)
        busy = Range(*(a + b + c for a, b, c in zip(device, gaps, around)))
        host = self._sum(
            host_step_s=work.steps,
            host_seq_s=work.seqs,
            host_layer_s=work.eager_layers,
            host_kernel_s=work.eager_kernels,
            host_layer_graph_s=work.graph_layers,
        )
        longer = Range(*(max(0.0, h - b) for h, b in zip(host, busy)))
        before = self._sum(first_s=bool(work.requests), request_s=work.requests, token_s=work.tokens)
        rows = [
            Extra("gaps", work.kernels, gaps, "launch"),
            Extra("around_the_model", work.steps, around, "launch"),
            Extra("waiting_for_host", work.steps, longer, "host"),
            Extra("before_first_step", work.requests, before, "host"),
        ]
        return [row for row in rows if row.seconds.high > 0]
