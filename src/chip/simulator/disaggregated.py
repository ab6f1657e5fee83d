"""Prompts and decodes on GPUs of their own: a prompt's keys and values go over a link to the worker that decodes.

The worker that computes the prompt gives the first token. Workers whose attention has replicas over one set of experts
count as so many engines: their steps are as long as those of the others, since all of them do the same kind of work.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import gcd, inf

from chip.question import Question
from chip.simulator.engine import SimulatedEngine
from chip.simulator.fleet import ServedRequests
from chip.simulator.request import Request
from chip.simulator.setup import Fleet, Setup, setup
from chip.simulator.surface import PLAIN, Factors
from chip.simulator.workload import Workload
from chip.types import ChipError

# One direction, each GPU, by how its node reaches others. HGX servers have a 400 Gb/s adapter for each GPU;
# in a rack of NVL72 all reach each other over NVLink.
LINKS = {"ib": 50e9, "nvlink": 900e9, "pcie": 64e9}
LATENCY_S = 20e-6


@dataclass(frozen=True, slots=True)
class Disaggregated:
    """Workers that compute prompts, workers that decode, and the link between them."""

    prefill: Fleet
    decode: Fleet
    link: str = "ib"

    @property
    def gpus(self) -> int:
        return self.prefill.gpus + self.decode.gpus

    @property
    def engines(self) -> tuple[int, int]:
        """Replicas of the attention that compute prompts, and that decode."""
        return self.prefill.replicas * self.prefill.lockstep, self.decode.replicas * self.decode.lockstep

    def transfer_s(self, prompt: int) -> float:
        """Of a prompt's keys and values: each GPU of the worker that decodes takes its part."""
        if self.link not in LINKS:
            raise ChipError(f"link {self.link[:20]!r}: must be one of {', '.join(LINKS)}")
        q = self.decode.question
        return LATENCY_S + prompt * cache_bytes(q) / LINKS[self.link]


def cache_bytes(q: Question) -> float:
    """Of a token, on one GPU."""
    from chip.predictor import request

    return float(request.room(q, q.scenario(1, 1, 1))["kv_bytes_per_token"])


class Decoding(SimulatedEngine):
    """An engine whose requests come with the keys and values of their prompts."""

    def known(self, request: Request, past: Sequence[int], wanted: int) -> tuple[int, int]:
        return wanted - 1, 0


def part_of(system: Disaggregated, users: int) -> tuple[int, int, int]:
    """The smallest part of a system that has the same load: engines for prompts and for decodes, and users."""
    prompts, decodes = system.engines
    parts = gcd(gcd(prompts, decodes), users)
    return prompts // parts, decodes // parts, users // parts


def serve_disaggregated(system: Disaggregated, w: Workload, factors: Factors = PLAIN) -> ServedRequests:
    """A closed loop through both kinds of workers. `w.users` are those of the part that is simulated."""
    if not w.users:
        raise ChipError("prompts and decodes on GPUs of their own are simulated for a closed loop of users alone")
    of_prompts, of_decodes = setup(system.prefill, factors), setup(system.decode, factors)
    prompts, decodes, _ = part_of(system, w.users * gcd(*system.engines))
    first = [_engine(SimulatedEngine, of_prompts) for _ in range(prompts)]
    second = [_engine(Decoding, of_decodes) for _ in range(decodes)]
    return _Loop(system, w, first, second, of_decodes.longest).run()


def _engine(kind: Callable[..., SimulatedEngine], made: Setup) -> SimulatedEngine:
    return kind(made.surface, made.settings, made.blocks, None, True, made.server)


class _Loop:
    def __init__(
        self, system: Disaggregated, w: Workload, first: list[SimulatedEngine], second: list[SimulatedEngine],
        longest: int,
    ) -> None:  # fmt: skip
        n = len(w)
        times, counts = [array("d", [-1.0]) * n for _ in range(4)], [array("q", [-1]) * n for _ in range(4)]
        self.done = ServedRequests(times[0], times[1], times[2], times[3], counts[0], counts[1], counts[2], counts[3])
        self.done.engines = second
        self.system, self.w, self.first, self.second, self.longest = system, w, first, second, longest
        self.ready = [0.0] * min(w.users, n)
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
        begins = self.ready[0] if self.ready and self.sent < len(self.w) else inf
        return min(begins, self.moving[0][0] if self.moving else inf)

    def _collect(self) -> None:
        for engine in self.first:
            for r in engine.finished:
                self.done.queue_s[r.index], self.done.first_s[r.index] = r.queue_s, r.first_s
                if self.w.output[r.index] > 1:
                    heappush(self.moving, (r.last_s + self.system.transfer_s(r.prompt), r.index))
                else:
                    self._answered(r.index, r.last_s)
            engine.finished.clear()
        for engine in self.second:
            for r in engine.finished:
                self._answered(r.index, r.last_s)
            engine.finished.clear()

    def _answered(self, i: int, at_s: float) -> None:
        self.done.last_s[i] = at_s
        heappush(self.ready, at_s)

    def _submit(self, at: float) -> None:
        if self.moving and self.moving[0][0] <= at:
            _, i = heappop(self.moving)
            idle = min(self.second, key=lambda e: e.load)
            idle.submit(Request(i, at, self.w.prompt[i] + 1, self.w.output[i] - 1))
            return
        heappop(self.ready)
        i, self.sent = self.sent, self.sent + 1
        self.done.arrival_s[i], self.done.output[i] = at, self.w.output[i]
        if self.w.prompt[i] + self.w.output[i] > self.longest:
            raise ChipError(f"request {i}: {self.w.prompt[i]} + {self.w.output[i]} tokens exceed {self.longest}")
        min(self.first, key=lambda e: e.load).submit(Request(i, at, self.w.prompt[i], 1))
