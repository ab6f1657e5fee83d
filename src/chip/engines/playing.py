"""What engines hand over: weighted steps, a step to be played on the timeline, and memory rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from chip.records import dataclass
from chip.timeline import LaunchBlock, Timeline
from chip.types import Step

Weighted = tuple[tuple[Step, float], ...]  # steps, and how many steps of the schedule each stands for


class Played(NamedTuple):
    """A step as an engine plays it: its operators are known."""

    blocks: Sequence[LaunchBlock]  # its operators in order
    seconds: float  # of all of them, ...
    kernels: float  # ... that many kernels
    graph: bool
    decode: bool  # all sequences have one new token
    sequences: int

    def device_s(self, t: Timeline) -> float:
        """All of it on the device, gaps between kernels included."""
        return self.seconds * t.scale + t.gap_s * self.kernels


@dataclass(frozen=True, slots=True)
class Room:
    """Memory rules of an engine on one GPU."""

    share: float  # of the card that it may use
    context_bytes: float  # driver, framework and kernels beside the tensors
    cache_tokens: int  # of one sequence
    step_tokens: int  # that the largest step has
    sequences: int  # that run at once
    workspace_bytes: float = 0.0
    streams: int = 1  # of the residual stream's width, alive in a layer
    pool: bool = True  # whether all the memory left becomes a pool for the KV cache
