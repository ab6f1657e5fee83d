"""What passes between an engine and the predictor: weighted steps, a step to be played on the timeline, and the terms:
the seconds that an engine and its host add to the operators of a step, measured on calibration models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from chip.engines.timeline import LaunchBlock, Timeline
from chip.types import Step

Weighted = tuple[tuple[Step, float], ...]  # steps, and how many steps of the schedule each stands for
MEANING = {
    "gap_s": "device, between two operators",
    "step_s": "device, each step: small kernels around the model",
    "first_s": "host, once before the first step",
    "request_s": "host, each request before the first step",
    "host_step_s": "host, each step",
    "host_seq_s": "host, each sequence of a step",
    "host_call_s": "host, each operator that it launches by itself",
    "host_kernel_s": "host, each kernel that it launches by itself",
    "host_experts_s": "host, each layer's experts that it launches by themselves",
    "host_piece_s": "host, each layer that it launches as a piece of a graph",
}
ON_DEVICE = ("gap_s", "step_s")
ON_HOST = tuple(name for name in MEANING if name not in ON_DEVICE)


class Terms(NamedTuple):
    gap_s: float = 0.0
    step_s: float = 0.0
    first_s: float = 0.0
    request_s: float = 0.0
    host_step_s: float = 0.0
    host_seq_s: float = 0.0
    host_call_s: float = 0.0
    host_kernel_s: float = 0.0
    host_experts_s: float = 0.0
    host_piece_s: float = 0.0

    def prepare_s(self, sequences: int) -> float:
        """How long the host prepares a step before it launches it."""
        return self.host_step_s + self.host_seq_s * sequences

    def on_host(self, slower: float) -> Terms:
        """The same engine on a host that takes so many times as long for everything; the device stays as it is."""
        return self._replace(**{name: getattr(self, name) * slower for name in ON_HOST})


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
class LiveScheduler:
    """How live traffic is scheduled: continuous batching with chunked prefill over a paged cache. Names are vLLM's."""

    max_num_seqs: int  # requests that run at once; the others wait
    max_num_batched_tokens: int  # in a step
    block_size: int = 16  # tokens of a block of the cache
    reserved_blocks: int = 0  # that hold no request's tokens
    max_model_len: int = 0  # 0 for what memory and model allow
    enable_prefix_caching: bool = True
    async_scheduling: bool = True  # the next step is scheduled while the last one runs
    scheduler_reserve_full_isl: bool = True  # admit a request only when its whole prompt fits into free blocks
    mixes_prompts: bool = True  # prompts run beside decodes; else in steps of their own, which come first
    watermark: float = 0.0  # share of the blocks that admission keeps free
