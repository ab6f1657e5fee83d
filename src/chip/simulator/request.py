"""A request on its way through an engine, and a step that is under way."""

from __future__ import annotations

from collections.abc import Sequence

from chip.simulator.kv_blocks import CacheGroup, Holding


class Request:
    """A request on its way through the engine."""

    __slots__ = (
        "arrival_s", "begin", "cached", "done", "first_s", "holding", "index", "last_s", "offset", "output", "path",
        "preempted", "prompt", "queue_s",
    )  # fmt: skip

    def __init__(self, index: int, arrival_s: float, prompt: int, output: int, path: Sequence[CacheGroup] = ()) -> None:
        self.index, self.arrival_s, self.prompt, self.output = index, arrival_s, prompt, output
        self.path = path
        self.holding = Holding()
        self.done = 0  # output tokens that steps were scheduled for, before it last began to decode
        self.begin = 0  # the engine's count of steps when it began to decode
        self.offset = 0  # its context less that count
        self.cached = 0  # prompt tokens that were found, when it was first scheduled
        self.preempted = 0
        self.queue_s = self.first_s = self.last_s = -1.0


class InFlight:
    """A step that the device has not finished: what its end will bring."""

    __slots__ = ("end_s", "ended", "first", "rested", "tokens")

    def __init__(
        self, end_s: float, first: list[Request], ended: list[Request], tokens: int, rested: bool = False
    ) -> None:
        """`rested`: the first one after a pause."""
        self.end_s, self.first, self.ended, self.rested = end_s, first, ended, rested
        self.tokens = tokens  # that it gives to readers
