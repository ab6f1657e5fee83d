"""Prompts and decodes on GPUs of their own: a prompt's keys and values go over a link to the worker that decodes.

The worker that computes the prompt gives the first token. Workers whose attention has replicas over one set of experts
count as so many engines: their steps are as long as those of the others, since all of them do the same kind of work.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from math import inf

from chip.predictor import request
from chip.question import Question
from chip.simulator.engine import SimulatedEngine
from chip.simulator.fleet import ServedRequests
from chip.simulator.request import Request
from chip.simulator.setup import Fleet, Setup, setup
from chip.simulator.workload import Workload
from chip.types import ChipError

# One direction, each GPU, by how its node reaches others. HGX servers have a 400 Gb/s adapter for each GPU; in a rack
# of NVL72 all reach each other over NVLink.
LINKS = {"ib": 50e9, "nvlink": 900e9, "pcie": 64e9}
LATENCY_S = 20e-6
SPLIT = re.compile(r"(\d{1,3})p(\d{1,3})d")
MOST_WORKERS = 256
# What a plan tries where it is to find the split
SPLITS = ("", "1p1d", "1p2d", "2p1d", "1p3d", "3p1d", "1p4d", "4p1d")


class Decoding(SimulatedEngine):
    """An engine whose requests come with the keys and values of their prompts."""

    def known(self, request: Request, past: Sequence[int], wanted: int) -> tuple[int, int]:
        return wanted - 1, 0


def with_split(fleet: Fleet, split: str, link: str) -> Fleet:
    """The fleet as `2p1d`: of its engines two compute prompts for each one that decodes. "" leaves it as it is."""
    if link not in LINKS:
        raise ChipError(f"--kv-link {link[:20]!r}: must be one of {', '.join(LINKS)}")
    if not split:
        return fleet
    match = SPLIT.fullmatch(split)
    if match is None or not all(0 < int(n) <= MOST_WORKERS for n in match.groups()):
        raise ChipError(
            f"--split {split[:20]!r}: must be like 2p1d, workers for prompts and for decodes, 1 to 256 each"
        )
    if fleet.question.pp > 1:
        raise ChipError(f"--split {split} with --pp {fleet.question.pp} is not simulated")
    prompts, decodes = (fleet.replicas * int(n) for n in match.groups())
    return replace(fleet, replicas=decodes, before=replace(fleet, replicas=prompts), link=link)


def transfer_s(q: Question, link: str, prompt: int) -> float:
    """Of a prompt's keys and values: each GPU of the worker that decodes takes its part."""
    token_bytes = float(request.room(q, q.scenario(1, 1, 1))["kv_bytes_per_token"])
    return LATENCY_S + prompt * token_bytes / LINKS[link]


def serve_disaggregated(made: Setup, fleet: Fleet, w: Workload, parts: int = 1) -> ServedRequests:
    """Run a workload to its end. `parts`: of how many equal parts of the fleet one is simulated; the traffic is that
    part's."""
    assert fleet.before
    of_prompts = setup(fleet.before, made.surface.factors)
    prompts, decodes = (f.replicas * f.lockstep // parts for f in (fleet.before, fleet))
    first = [_engine(SimulatedEngine, of_prompts) for _ in range(prompts)]
    second = [_engine(Decoding, made) for _ in range(decodes)]
    each_s = transfer_s(fleet.question, fleet.link, 1)
    return _Loop(w, first, second, made.longest, lambda prompt: LATENCY_S + (each_s - LATENCY_S) * prompt).run()


def _engine(kind: Callable[..., SimulatedEngine], made: Setup) -> SimulatedEngine:
    return kind(made.surface, made.settings, made.blocks, None, True, made.server)


class _Loop:
    def __init__(
        self, w: Workload, first: list[SimulatedEngine], second: list[SimulatedEngine], longest: int,
        moved_s: Callable[[int], float],
    ) -> None:  # fmt: skip
        n = len(w)
        times, counts = [array("d", [-1.0]) * n for _ in range(4)], [array("q", [-1]) * n for _ in range(4)]
        self.done = ServedRequests(times[0], times[1], times[2], times[3], counts[0], counts[1], counts[2], counts[3])
        self.done.engines = second
        self.w, self.first, self.second, self.longest, self.moved_s = w, first, second, longest, moved_s
        self.ready = [0.0] * min(w.users, n)  # when each user sends the next request
        self.moving: list[tuple[float, int]] = []  # when a prompt's cache has arrived, and of which request
        self.sent = 0
        heapify(self.ready)

    def run(self) -> ServedRequests:
        engines = (*self.first, *self.second)
        while self.sent < len(self.w) or self.moving or any(e.load for e in engines):
            at = self._next()
            for engine in engines:
                engine.advance(at, stop_at_finish=True)
            self._collect()
            if at < inf and self._next() >= at and all(e.now_s >= at or not e.load for e in engines):
                self._submit(at)
        return self.done

    def _next(self) -> float:
        begins_s = inf
        if self.sent < len(self.w):
            begins_s = self.w.arrival_s[self.sent] if not self.w.users else self.ready[0] if self.ready else inf
        return min(begins_s, self.moving[0][0] if self.moving else inf)

    def _collect(self) -> None:
        for engine in self.first:
            for r in engine.finished:
                self.done.queue_s[r.index], self.done.first_s[r.index] = r.queue_s, r.first_s
                if self.done.output[r.index] > 1:
                    heappush(self.moving, (r.last_s + self.moved_s(r.prompt), r.index))
                else:
                    self._answered(r.index, r.last_s)
            engine.finished.clear()
        for engine in self.second:
            for r in engine.finished:
                self._answered(r.index, r.last_s)
            engine.finished.clear()

    def _answered(self, i: int, at_s: float) -> None:
        self.done.last_s[i] = at_s
        if self.w.users:
            heappush(self.ready, at_s)

    def _submit(self, at: float) -> None:
        if self.moving and self.moving[0][0] <= at:
            _, i = heappop(self.moving)
            decodes = min(self.second, key=lambda e: e.load)
            decodes.submit(Request(i, at, self.w.prompt[i] + 1, self.done.output[i] - 1))
            return
        if self.w.users:
            heappop(self.ready)
        i, self.sent = self.sent, self.sent + 1
        prompt, output = self.w.prompt[i], self.w.output[i]
        self.done.arrival_s[i], self.done.replica[i] = at, 0
        if prompt >= self.longest:
            self.done.rejected.append(i)
            if self.w.users:
                heappush(self.ready, at)
            return
        self.done.shortened += prompt + output > self.longest
        self.done.output[i], self.done.cached[i], self.done.preempted[i] = min(output, self.longest - prompt), 0, 0
        min(self.first, key=lambda e: e.load).submit(Request(i, at, prompt, 1))
