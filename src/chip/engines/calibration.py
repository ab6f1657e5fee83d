"""The small models that an engine and its host are measured on, and the points they are run at.

Two depths of one model tell what grows with the layers from what does not. They are narrow, so that in most steps the
device waits for the host, nearly as deep as models are, so that little is extrapolated, and no model that predictions
are judged by. Families differ in how much Python lies around a kernel, so there is one of each common family.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from chip.records import dataclass, field, replace

CONTEXT = 8192  # tokens: room for prompts longer than a base model takes
Points = tuple[tuple[int, int], ...]  # (batch, prompt)


@dataclass(frozen=True, slots=True)
class CalibrationModel:
    """A bundled model with some numbers of its config changed, at several depths."""

    base: str
    depths: tuple[int, ...]
    points: Points
    changes: Mapping[str, int] = field(default_factory=dict)
    name: str = ""

    def title(self, layers: int) -> str:
        return f"{self.name or self.base.split('-')[0]}-{layers}-layers"


NARROW = {"hidden_size": 1024, "intermediate_size": 2048, "vocab_size": 32064}
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2}  # of 128
WIDE_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}  # of 256
EXPERTS = {"num_experts": 32, "num_experts_per_tok": 8, "moe_intermediate_size": 256}
# Cut from models that nothing is judged by; the one with experts from one that is, but they are fewer and smaller.
LLAMA = CalibrationModel("llama-2-7b", (), (), {**NARROW, **HEADS}, "llama")
FAMILIES = (
    CalibrationModel("qwen2.5-1.5b", (), (), {**NARROW, **HEADS}, "qwen2"),
    CalibrationModel("qwen3-0.6b", (), (), {**NARROW, **HEADS}, "qwen3"),
    CalibrationModel("qwen3-30b-a3b", (), (), {**NARROW, **HEADS, **EXPERTS}, "qwen3-moe"),
    CalibrationModel("gemma-3-4b", (), (), {**NARROW, **WIDE_HEADS}, "gemma3"),
    CalibrationModel("phi-4", (), (), {**NARROW, **HEADS}, "phi3"),
    CalibrationModel("opt-125m", (), ()),
)
HF_ALONE = (
    CalibrationModel("mistral-7b", (), (), {**NARROW, **HEADS}),
    CalibrationModel("pythia-1.4b", (), (), {**NARROW, "num_attention_heads": 8}),
)
TWO_DEPTHS = (4, 20)
HF_POINTS = ((1, 128), (8, 512))


def all_at(models: Sequence[CalibrationModel], depths: tuple[int, ...], points: Points) -> tuple[CalibrationModel, ...]:
    return tuple(replace(m, depths=depths, points=points) for m in models)
