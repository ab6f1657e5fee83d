"""HF transformers with a cache of fixed size (StaticCache) and each step replayed as one CUDA graph.

Attention runs over the whole cache under a mask: neither causality nor the unused tail saves work. The cache of a layer
with a sliding window has no more slots than the window. Once they are full, each step moves all of them by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from chip.decoders.decoder import Decoder
from chip.dtypes import Precision
from chip.engines import Engine, Serves, hf, hf_memory
from chip.engines.calibration import HF_POINTS, CalibrationModel
from chip.engines.fuse import apply, as_kind
from chip.engines.memory import Room
from chip.engines.timeline import Played, Terms, Timeline, Weighted
from chip.ops.attention import Attention
from chip.ops.masked_attention import SlidingAttention
from chip.ops.moves import KvAppend, SlidingAppend
from chip.types import Call, Program, Scenario, Seq, Step

CONTEXT_BYTES = 1.45e9  # driver, framework and kernels beside torch's pool: 1.38 to 1.46 GB in the recorded runs
WORKSPACES = 3  # of cuBLAS: for the stream itself, for the warm-up and for the capture
POSITIONS = 3  # small kernels of each layer that find the next slot: a range, what is added to it, the new length
SPARE_TOKENS = 64  # the cache has at least so many slots after the prompt


class HfGraph(Engine):
    NAME = "hf-graph"
    TITLE = "HF transformers, StaticCache of prompt + max(output, 64), one CUDA graph a step"
    TERMS = ("gap_s", "step_s")
    KERNELS = hf.KERNELS
    SERVES = Serves(
        without=("BloomForCausalLM", "FalconForCausalLM", "GPTJForCausalLM", "GptOssForCausalLM"),
        why="transformers 5.17 copies from the host while it runs it, or cannot run it over a StaticCache",
    )
    LAB = ("cuda",)
    CALIBRATION = (CalibrationModel("tinyllama", "tinyllama-1.1b", (2, 6), HF_POINTS),)

    def runs_as(
        self, capability: float, d: Decoder | None = None, options: Any = None, version: str = ""
    ) -> Mapping[str, str]:
        return {**hf.RUNS_AS, "kv_roll": "torch"}

    def play(self, t: Timeline, step: Played, terms: Terms) -> None:
        t.graph("step", terms.host_step_s, step.device_s(t) + terms.step_s)

    def room(self, scenario: Scenario, options: None) -> Room:
        return hf_memory.room(scenario, cache_tokens(scenario), CONTEXT_BYTES, WORKSPACES)

    def peak_bytes(self, d: Decoder, p: Precision, s: Scenario, room: Room) -> float:
        """Of the prompts, over a cache that has its whole size from the start."""
        return hf_memory.peak_bytes(d, p, s, room.cache_tokens)

    def prefill(self, scenario: Scenario, options: None) -> Weighted:
        return ((Step((Seq(scenario.prompt, 0, scenario.batch, cache_tokens(scenario)),), graph=True), 1.0),)

    def decode(self, scenario: Scenario, options: None) -> Step:
        seq = Seq(1, scenario.prompt, scenario.batch, cache_tokens(scenario))
        return Step((seq,), graph=True, steps=scenario.decode_steps)

    def rewrite(self, program: Program, decode: bool, architecture: str = "") -> Program:
        return hf.decompose(
            apply(program, _static),
            lambda op: as_kind(SlidingAttention if op.window else "masked_attention", op),
            architecture,
        )


def cache_tokens(scenario: Scenario) -> int:
    return scenario.prompt + max(scenario.output, SPARE_TOKENS)


def _static(calls: list[Call]) -> Iterator[Call]:
    """Each layer's cache counts its own tokens. That of a window rolls once it is full."""
    window = next((c.op.window for c in calls if isinstance(c.op, Attention)), 0)
    for c in calls:
        appends = isinstance(c.op, KvAppend)
        if appends:
            yield from [Call("kv_position", as_kind("scale", c.op, cols=1))] * POSITIONS
        yield Call(c.role, as_kind(SlidingAppend, c.op, window=window)) if appends and window else c


ENGINE = HfGraph()
