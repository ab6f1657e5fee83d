"""What a server in front of the engine adds, in figures that the asker measured: nobody did for CHIP.

A request reaches the engine so much later. Tokens leave one after another through one process: those of a step wait
until those of the step before are passed on, so that a large batch can outrun the server. The engine waits for neither.
"""

from __future__ import annotations

from typing import NamedTuple

from chip.types import ChipError

MOST_REQUEST_MS, MOST_TOKEN_US = 1e5, 1e6


class ServerCost(NamedTuple):
    request_s: float = 0.0
    token_s: float = 0.0


NONE = ServerCost()


def given(request_ms: float, token_us: float) -> ServerCost:
    for name, value, most in (
        ("--server-request-ms", request_ms, MOST_REQUEST_MS), ("--server-token-us", token_us, MOST_TOKEN_US),
    ):  # fmt: skip
        if not 0 <= value <= most:
            raise ChipError(f"{name} must be between 0 and {most:g}, got {value:g}")
    return ServerCost(request_ms * 1e-3, token_us * 1e-6)


class Delivery:
    """The process that passes tokens on."""

    __slots__ = ("_free_s", "_token_s")

    def __init__(self, token_s: float) -> None:
        self._token_s = token_s
        self._free_s = 0.0

    def pass_on(self, steps: int, tokens: int, end_s: float) -> float:
        """When the last of `steps` steps with so many tokens each has reached its readers, if that one ended at
        `end_s`."""
        each_s = tokens * self._token_s
        self._free_s = max(self._free_s + steps * each_s, end_s + each_s)
        return self._free_s
