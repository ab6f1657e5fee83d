"""From an engine's measured terms to rows of the breakdown: gaps between kernels, the host where it is the longer, and
what comes before the first step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from chip.engine_profile import TERMS
from chip.predict.roof import Range
from chip.types import Ceiling

SOURCE = "engine"
WAITING = "waiting_for_host"
MOST_SLOWED = 0.1  # of a step: what a lowered clock can add to few steps
# Two queues of kernels that are launched one by one take longer together than the longer of them, and the more the
# nearer they are, since neither goes on evenly: by this norm. Of those tried it errs least over the watched dummies of
# hf-eager, though not by much (tests/device/test_engine_fit.py).
TOGETHER = 5.0


class Work(NamedTuple):
    """What the steps of a phase ask of the engine, in all and weighted: `steps` of them."""

    steps: float
    kernels: float
    seqs: float
    eager_kernels: float  # launched by the host one by one
    graph_layers: float  # pieces of graphs in a prefill
    requests: float = 0.0  # that wait for their first token
    tokens: float = 0.0
    attention_s: float = 0.0  # of decode steps
    lowered: float = 0.0  # how far the prompt before these steps lowered the clock, over how many steps there are


class Extra(NamedTuple):
    """A row that no operator has."""

    role: str
    calls: float
    seconds: Range
    bound: str


class Overheads:
    """The terms of one engine on one host; `reference` names a host that stands in for the asker's own, `paced`: they
    are at the pace of that."""

    def __init__(self, terms: Mapping[str, Ceiling], reference: str = "", paced: bool = False) -> None:
        self.reference, self.paced = reference, paced
        # value, low and high apart: a sweep does this arithmetic twice a scenario
        self._parts = [
            tuple(getattr(terms[name], part) if name in terms else 0.0 for name in TERMS)
            for part in ("value", "low", "high")
        ]
        self._any = bool(terms)

    def __bool__(self) -> bool:
        return self._any

    def extras(self, work: Work, device: Range) -> list[Extra]:
        """Rows to add to a phase whose operators take `device` alone."""
        steps, kernels, seqs, eager_kernels, graph_layers, requests, tokens, attention_s, lowered = work
        first = 1.0 if requests else 0.0
        gaps, inside, around, back, longer, before = [], [], [], [], [], []
        for part, device_s in zip(self._parts, device):
            gap, share, step, recovery, once, request, token, host, seq, graph_layer, kernel = part
            gaps.append(gap * kernels)
            inside.append(share * attention_s)
            around.append(step * steps)
            back.append(min(recovery * lowered, MOST_SLOWED * device_s))
            host_s = host * steps + seq * seqs + graph_layer * graph_layers + kernel * eager_kernels
            device_s += gaps[-1] + inside[-1] + around[-1] + back[-1]
            # the device is idle until the host has prepared a step that waits for nothing before it
            led = (host + seq * seqs / steps) * (first or (steps if eager_kernels else 0.0))
            longer.append(led + _waiting(max(0.0, host_s - led), device_s, eager_kernels > 0))
            before.append(once * first + request * requests + token * tokens)
        rows = [
            Extra("gaps", kernels, Range(*gaps), "launch"),
            Extra("attention_in_engine", steps, Range(*inside), "memory"),
            Extra("around_the_model", steps, Range(*around), "launch"),
            Extra("clock_coming_back", steps, Range(*back), "launch"),
            Extra(WAITING, steps, Range(*longer), "host"),
            Extra("before_first_step", requests, Range(*before), "host"),
        ]
        # each of the three sums is of a whole phase: waiting may be nothing where the device takes its most, and yet be
        return [row for row in rows if any(row.seconds)]


def _waiting(host_s: float, device_s: float, one_by_one: bool) -> float:
    """What a device waits beyond its own work for a host that works at the same time."""
    return (together(host_s, device_s) if one_by_one else max(host_s, device_s)) - device_s


def together(host_s: float, device_s: float) -> float:
    """What two queues take that kernels go through one by one."""
    longer, shorter = max(host_s, device_s), min(host_s, device_s)
    return longer * (1 + (shorter / longer) ** TOGETHER) ** (1 / TOGETHER) if longer else 0.0
