"""Which tokens of which requests the next step computes: continuous batching with chunked prefill.

Running requests go first, oldest first, then waiting ones while tokens, rows and pages last. A prompt longer than what
is left of the step's tokens is computed in chunks. When pages run out, the youngest running request gives its own back
and waits; it is computed again from its prompt and the tokens it has, which it keeps. The oldest always goes on, and
each request alone fits (`Scheduler.add` refuses it otherwise), so all finish.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from chip.lab.run.native.pages import Allocator
from chip.lab.run.native.requests import NativeRequest, State
from chip.types import ChipError


@dataclass(frozen=True, slots=True)
class StepShare:
    """`new` tokens of a request, after those already computed."""

    request: NativeRequest
    new: int

    @property
    def samples(self) -> bool:
        """Whether the step ends at the request's last token, so that a next one is drawn."""
        return self.new == self.request.remaining


class Scheduler:
    def __init__(self, allocator: Allocator, max_context: int, max_rows: int, max_step_tokens: int) -> None:
        self.allocator, self.max_context = allocator, max_context
        self.max_rows, self.max_step_tokens = max_rows, max_step_tokens
        self.waiting: deque[NativeRequest] = deque()
        self.running: list[NativeRequest] = []

    def add(self, request: NativeRequest) -> None:
        request.sampling.check(request.name)
        prompt, wanted = len(request.prompt), len(request.prompt) + request.sampling.max_tokens
        if not prompt:
            raise ChipError(f"{request.name}: the prompt is empty")
        if wanted > self.max_context:
            raise ChipError(
                f"{request.name}: prompt {prompt} + output {request.sampling.max_tokens} tokens exceed the context of "
                f"{self.max_context}; shorten one of them"
            )
        if self.allocator.pages_for(wanted) > self.allocator.total:
            room = self.allocator.total * self.allocator.page_tokens
            raise ChipError(f"{request.name}: {wanted} tokens exceed the KV cache of {room}; shorten the request")
        self.waiting.append(request)

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    def next_step(self) -> list[StepShare]:
        """Shares of the next step: those of one token first, as the kernels want them."""
        budget, shares = self.max_step_tokens, []
        preempted = False
        for request in [*self.running]:
            if request.state is not State.RUNNING:
                continue  # preempted a moment ago
            new = min(request.remaining, budget)
            if not new:
                break
            while not self.allocator.grow(request.table, request.computed + new):
                preempted = True
                if self._preempt_youngest() is request:
                    break
            else:
                shares.append(StepShare(request, new))
                budget -= new
        while self.waiting and budget and not preempted and len(self.running) < self.max_rows:
            request = self.waiting[0]
            new = min(request.remaining, budget)
            if not self.allocator.grow(request.table, new):
                break
            self.waiting.popleft()
            request.state = State.RUNNING
            self.running.append(request)
            shares.append(StepShare(request, new))
            budget -= new
        return sorted(shares, key=lambda s: s.new > 1)

    def finish(self, request: NativeRequest) -> None:
        """Also for one that is given up, wherever it stands."""
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        request.state = State.FINISHED
        self.allocator.release(request.table)

    def _preempt_youngest(self) -> NativeRequest:
        victim = self.running.pop()
        self.allocator.release(victim.table)
        victim.state, victim.computed = State.WAITING, 0
        victim.preempted += 1
        self.waiting.appendleft(victim)
        return victim
