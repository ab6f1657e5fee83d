"""What engines hand over: weighted steps, a step to be played on the timeline, and memory rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from chip.records import dataclass
from chip.timeline import LaunchBlock, Timeline
from chip.types import Step

Weighted = tuple[tuple[Step, float], ...]  # steps, and how many steps of the schedule each stands for


class Played(NamedTuple):
    """A step whose operators are known, ready for an engine to play it on the timeline."""

    blocks: Sequence[LaunchBlock]  # its operators in order
    seconds: float  # of all operators
    operators: float
    graph: bool
    decode: bool  # all sequences have one new token
    sequences: int

    def device_s(self, t: Timeline) -> float:
        """What the device takes for all of it, gaps between operators included."""
        return self.seconds * t.scale + t.gap_s * self.operators


@dataclass(frozen=True, slots=True)
class Room:
    """Memory rules of an engine on one GPU."""

    share: float  # of the card that it may use
    context_bytes: float  # driver, framework and kernels beside the tensors
    cache_tokens: int  # in the cache of one sequence
    step_tokens: int  # in the largest step
    sequences: int  # that run at once
    workspace_bytes: float = 0.0  # of cuBLAS
    pool: bool = True  # whether all the memory that is left becomes a pool for the KV cache
    longest: int = 0  # context that it was told to allow; 0 for the model's
    at_once: int = 0  # requests that the engine runs at most; 0 for as many as there are
