"""HF transformers as it comes: one kernel an operator, a growing cache (DynamicCache), sdpa attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from chip.decoders.decoder import Decoder
from chip.dtypes import Precision
from chip.engines import Engine, hf, hf_memory
from chip.engines.calibration import CUT, HF_POINTS, TWO_DEPTHS, cut
from chip.engines.fuse import apply, as_kind
from chip.engines.memory import Room
from chip.engines.timeline import HostCost, Played, Terms, Timeline, Weighted
from chip.ops.masked_attention import WindowedAttention
from chip.types import Program, Scenario, Seq, Step

SDPA = ("cudnn", "flash")  # attention kernels that a prefill can run; torch chooses the first


@dataclass(frozen=True, slots=True)
class HfOptions:
    sdpa: str = SDPA[0]


class HfEager(Engine):
    NAME = "hf-eager"
    TITLE = "HF transformers, eager, DynamicCache, sdpa"
    TERMS = ("gap_s", "first_s", "host_step_s", "host_call_s", "host_kernel_s", "host_experts_s")
    CAVEAT = (
        "hf-eager: decode with the flash backend; torch's default (cuDNN) also builds a plan for every new context "
        "length, tens of milliseconds each"
    )
    KERNELS = hf.KERNELS
    LIMITS = {"sdpa": SDPA}
    CALIBRATION = cut(tuple(CUT), TWO_DEPTHS, HF_POINTS)
    CALIBRATION_SDPA = "flash"  # cuDNN would build a plan for each new KV length, which is no steady step
    LAB = ("cuda", "cpu")

    def runs_as(
        self, capability: float, d: Decoder | None = None, options: HfOptions | None = None, version: str = ""
    ) -> Mapping[str, str]:
        return {**hf.RUNS_AS, "attention": (options or HfOptions()).sdpa}

    def defaults(self, memory_bytes: float) -> HfOptions:
        return HfOptions()

    def play(self, t: Timeline, step: Played, terms: Terms) -> None:
        """Every kernel is launched by the host."""
        t.prepare("prepare", terms.host_step_s)
        t.launch(step, HostCost(terms.host_call_s, terms.host_kernel_s, terms.host_experts_s))

    def room(self, scenario: Scenario, options: HfOptions) -> Room:
        return hf_memory.room(scenario, scenario.prompt + scenario.output)

    def copies(self, d: Decoder) -> float:
        return d.copied_heads if d.architecture in hf.BROADCAST else 1.0

    def peak_bytes(self, d: Decoder, p: Precision, s: Scenario, room: Room) -> float:
        """Of the prompts, when the cache has no more than them, or of the last decode step. Until that, a layer with a
        window keeps all keys of the prompt: what it caches is a view of them."""
        copies = s.batch * self.copies(d)
        cached, of_prompt = d.kv_bytes(room.cache_tokens, p, tp=s.tp), s.prompt * d.kv_bytes(1, p, tp=s.tp)
        prompt = hf_memory.peak_bytes(d, p, s, s.prompt) + (of_prompt - cached) * copies
        return max(prompt, cached / d.layer_count / 2 * copies)  # a step joins a token to a layer's keys: a new tensor

    def prefill(self, scenario: Scenario, options: HfOptions) -> Weighted:
        """The cache is empty, so nothing is joined to it, not even a prompt of one token."""
        return ((Step((Seq(scenario.prompt, 0, scenario.batch),), prompts=True), 1.0),)

    def decode(self, scenario: Scenario, options: HfOptions) -> Step:
        return Step((Seq(1, scenario.prompt, scenario.batch),), steps=scenario.decode_steps)

    def rewrite(self, program: Program, decode: bool, architecture: str = "") -> Program:
        """A decode step joins the new token to the cache, then attends. A prompt attends to itself, under a mask where
        a window is shorter."""
        if decode:
            grown = hf.decompose(program, partial(as_kind, "growing_attention"), architecture)
            return apply(grown, hf.join_cache)
        return hf.decompose(program, lambda op: as_kind(WindowedAttention, op) if op.window else op, architecture)


ENGINE = HfEager()
