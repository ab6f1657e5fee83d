"""A server before an engine: one event loop that takes requests in and passes tokens on, and an engine core behind it.

Seconds are those of the host on which they were measured; `on_host` gives them for another one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class ServerCost:
    request_s: float = 0.0  # of the loop: HTTP, validation, hand-over to the engine core
    prompt_token_s: float = 0.0
    step_s: float = 0.0  # to take in what a step gave
    token_s: float = 0.0  # to pass a token on, in a chunk of its own
    turns: float = 0.0  # of the loop that a request waits for while tokens are passed on
    latency_s: float = 0.0  # between processes, there and back, beside the loop
    merges_up_to: int = 0  # tokens of a step; the loop takes a larger one in parts and nothing merges
    # The core's terms as multiples of those of an engine in its caller's process
    core_step: float = 1.0
    core_seq: float = 1.0
    core_request: float = 1.0
    host_step_s: float = 0.0  # of that engine on the host of these seconds; 0 where they are of no known host

    def on_host(self, host_step_s: float) -> ServerCost:
        """On a host where that engine's step takes `host_step_s`."""
        if not self.host_step_s or not host_step_s:
            return self
        slower = host_step_s / self.host_step_s
        seconds = ("request_s", "prompt_token_s", "step_s", "token_s", "latency_s")
        scaled = {name: getattr(self, name) * slower for name in seconds}
        return replace(self, **scaled, host_step_s=host_step_s)


NONE = ServerCost()
