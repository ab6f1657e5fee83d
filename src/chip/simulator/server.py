"""The server before an engine: one event loop, which does one thing after another.

Tokens of a step wait until those of the steps before are passed on, so that a large batch can outrun the server. Steps
that ended while it was busy are passed on together, a chunk for each request. A request that comes meanwhile gets its
turns between them. The engine waits for neither.
"""

from __future__ import annotations

from chip.engines.server import ServerCost
from chip.types import ChipError

MOST_REQUEST_MS, MOST_TOKEN_US = 1e5, 1e6


def given(request_ms: float, token_us: float) -> ServerCost:
    """In figures that the asker measured."""
    for name, value, most in (
        ("--server-request-ms", request_ms, MOST_REQUEST_MS), ("--server-token-us", token_us, MOST_TOKEN_US),
    ):  # fmt: skip
        if not 0 <= value <= most:
            raise ChipError(f"{name} must be between 0 and {most:g}, got {value:g}")
    return ServerCost(request_ms * 1e-3, token_s=token_us * 1e-6)


class EventLoop:
    __slots__ = ("_begin_s", "_cost", "_free_s", "_one_way_s", "_turn_s", "merged")

    def __init__(self, cost: ServerCost) -> None:
        self._cost, self._one_way_s = cost, cost.latency_s / 2
        self._begin_s = self._free_s = self._turn_s = 0.0
        self.merged = False  # what was passed on last, into chunks with tokens of steps before

    def take_in(self, at_s: float, prompt: int) -> float:
        """When a request that comes at `at_s` has reached the engine."""
        cost = self._cost
        own_s = cost.request_s + prompt * cost.prompt_token_s
        waits_s = max(0.0, self._free_s - at_s)
        if waits_s and cost.turns:
            waits_s = cost.turns * self._turn_s
        self._free_s = max(self._free_s, at_s) + own_s
        return at_s + waits_s + own_s + self._one_way_s

    def pass_on(self, steps: int, tokens: int, end_s: float) -> float:
        """When the last of `steps` steps with so many tokens each has reached its readers, if that one ended at
        `end_s`."""
        cost = self._cost
        self.merged = end_s <= self._begin_s and tokens <= cost.merges_up_to
        each_s = cost.step_s + (0.0 if self.merged else tokens * cost.token_s)
        if self.merged:
            self._free_s += each_s
        else:
            self._begin_s = max(self._free_s + (steps - 1) * each_s, end_s)
            self._free_s = self._begin_s + each_s
            self._turn_s = each_s
        return self._free_s + self._one_way_s
