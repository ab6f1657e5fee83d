"""Requests that decode together: one token each in every step of theirs.

They are not walked one by one: a counter of steps, the sum of their contexts and the steps at which they end say all.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from chip.simulator.kv_blocks import Blocks
from chip.simulator.request import Request


class Decodes:
    __slots__ = ("_ending", "_ends", "block_tokens", "count", "n", "offsets", "residues", "seen_s")

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.count = 0  # steps so far
        self.n = 0  # requests
        self.offsets = 0  # sum of theirs
        self.residues = [0] * block_tokens  # requests that need a block when the count has this residue
        self.seen_s = 0.0  # when the readers of their requests got the last token
        self._ends: list[int] = []  # heap of counts at which requests end
        self._ending: dict[int, list[Request]] = {}

    @property
    def mean(self) -> float:
        """Of their contexts."""
        return self.offsets / self.n + self.count if self.n else 0.0

    @property
    def next_end(self) -> int:
        """The count at which the first of them ends."""
        return self._ends[0]

    def blocks_now(self) -> int:
        """That the next step needs."""
        return self.residues[self.count % self.block_tokens]

    def blocks_in(self, steps: int) -> int:
        size = self.block_tokens
        return steps // size * self.n + sum(self.residues[(self.count + i) % size] for i in range(steps % size))

    def needs_block(self, request: Request) -> bool:
        """Whether the next step of this request begins a block."""
        return -request.offset % self.block_tokens == self.count % self.block_tokens

    def begin(self, request: Request) -> None:
        """From the next step on; its `offset` is its context, and becomes what it lacks to the count."""
        request.begin = self.count
        request.offset -= self.count
        self.n += 1
        self.offsets += request.offset
        self.residues[-request.offset % self.block_tokens] += 1
        end = self.count + request.output - request.done
        if end not in self._ending:
            heappush(self._ends, end)
            self._ending[end] = []
        self._ending[end].append(request)

    def end(self, pool: Blocks) -> list[Request]:
        """Those whose last token the step that was just counted gives."""
        if not self._ends or self._ends[0] > self.count:
            return []
        ended = self._ending.pop(heappop(self._ends))
        for request in ended:
            self._leave(request, pool)
        return ended

    def give_up(self, request: Request, pool: Blocks) -> None:
        """One that is preempted."""
        end = request.begin + request.output - request.done
        self._ending[end].remove(request)
        if not self._ending[end]:
            del self._ending[end]
            self._ends.remove(end)
            heapify(self._ends)
        self._leave(request, pool)

    def has(self, request: Request) -> bool:
        return request in self._ending.get(request.begin + request.output - request.done, ())

    def _leave(self, request: Request, pool: Blocks) -> None:
        self.n -= 1
        self.offsets -= request.offset
        self.residues[-request.offset % self.block_tokens] -= 1
        held = request.holding
        held.private = pool.needed(request.offset + self.count) - held.shared
        request.done += self.count - request.begin
