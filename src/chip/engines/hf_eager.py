"""HF transformers as it comes: one kernel an operator, a growing cache (DynamicCache), sdpa attention."""

from __future__ import annotations

from chip.engines import Weighted
from chip.engines.context import PANELS, decode_contexts
from chip.types import Program, Scenario, Seq, Step

NAME = "hf-eager"
TITLE = "HF transformers, eager, DynamicCache, sdpa"
LATENT_KV = True
CAVEAT = (
    "hf-eager: device time only; the host's time to launch each kernel is not modelled yet, and where it is the longer "
    "(decode, short prompts) a step takes many times this"
)
TORCH_OPS = frozenset(("linear", "layer_norm", "add", "gelu", "silu"))


def prefill(scenario: Scenario, memory_bytes: float) -> Weighted:
    return ((Step((Seq(scenario.prompt, 0, scenario.batch),)), 1.0),)


def decode(scenario: Scenario, memory_bytes: float, panels: int = PANELS) -> Weighted:
    points = decode_contexts(scenario.prompt, scenario.output - 1, panels)
    return tuple((Step((Seq(1, past, scenario.batch),)), weight) for past, weight in points)


def rewrite(program: Program, decode: bool) -> Program:
    return program
