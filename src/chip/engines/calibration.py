"""The small models that an engine and its host are measured on, and the points they are run at.

Two depths of one model tell what grows with the layers from what does not. The models are narrow, so that in most steps
the device waits for the host, and nearly as deep as real models are, so that little is extrapolated. None of them is a
model that predictions are judged by. Families differ in how much Python lies around a kernel, so there is one of each
common family.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

CONTEXT = 8192  # tokens: room for prompts longer than a base model takes
Points = tuple[tuple[int, int], ...]  # (batch, prompt)


@dataclass(frozen=True, slots=True)
class CalibrationModel:
    """A bundled model with some numbers of its config changed, at several depths."""

    name: str
    base: str
    depths: tuple[int, ...]
    points: Points
    changes: Mapping[str, int] = field(default_factory=dict)

    def title(self, layers: int) -> str:
        return f"{self.name}-{layers}-layers"


TITLE = re.compile(r".+-\d+-layers")  # of a model that was cut to these many


def is_title(model: str) -> bool:
    """Whether runs of a model of this name calibrate an engine: they tell nothing of how fast it is."""
    return TITLE.fullmatch(model) is not None


NARROW = {"hidden_size": 1024, "intermediate_size": 2048, "vocab_size": 32064}
GROUPED = {**NARROW, "num_attention_heads": 8, "num_key_value_heads": 2}  # heads of 128
EXPERTS = {"num_experts": 32, "num_experts_per_tok": 8, "moe_intermediate_size": 256}
# By name: the bundled model, and the changes of its config. Nothing is judged by these models, but by Qwen3-30B-A3B,
# whose experts here are fewer and smaller.
CUT: Mapping[str, tuple[str, Mapping[str, int]]] = {
    "llama": ("llama-2-7b", GROUPED),
    "qwen2": ("qwen2.5-1.5b", GROUPED),
    "qwen3": ("qwen3-0.6b", GROUPED),
    "qwen3-moe": ("qwen3-30b-a3b", {**GROUPED, **EXPERTS}),
    "gemma3": ("gemma-3-4b", {**GROUPED, "num_attention_heads": 4}),  # heads of 256
    "phi3": ("phi-4", GROUPED),
    "opt": ("opt-125m", {}),
    "mistral": ("mistral-7b", GROUPED),
    "pythia": ("pythia-1.4b", {**NARROW, "num_attention_heads": 8}),
}
FAMILIES = ("qwen2", "qwen3", "qwen3-moe", "gemma3", "phi3", "opt")
TWO_DEPTHS = (4, 20)
HF_POINTS = ((1, 128), (8, 512))


def cut(names: Sequence[str], depths: tuple[int, ...], points: Points) -> tuple[CalibrationModel, ...]:
    return tuple(CalibrationModel(name, CUT[name][0], depths, points, CUT[name][1]) for name in names)
