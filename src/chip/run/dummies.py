"""The small models that an engine and its host are measured on, and the points they are run at.

Two depths of one model tell what grows with the layers from what does not. They are narrow, so that in most steps the
host sets the pace, nearly as deep as models are, so that little is extrapolated, and no model that predictions are
judged by. Families differ in how much Python lies around a kernel, so there is one of each common family. Of vLLM,
whose host is slow and whose steps are graphs, two more are wide and deep enough that the device sets the pace: they
tell what its kernels take in the engine beyond what they take alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from chip import artifact
from chip.measure.device import Device
from chip.models import library
from chip.run import Job
from chip.run.grid import Ledger, Plan, Tell, measure
from chip.runs import Run
from chip.types import ChipError, Scenario

CONTEXT = 8192  # tokens: room for prompts longer than a base model takes
OUTPUT = 17
REPEATS = 5


Points = tuple[tuple[int, int], ...]  # (batch, prompt)


@dataclass(frozen=True)
class Dummy:
    base: str
    depths: tuple[int, ...]
    points: Points
    changes: Mapping[str, int] = field(default_factory=dict)  # of the base's config
    name: str = ""

    def config(self) -> dict[str, Any]:
        config, _ = library.locate(self.base)
        return {**artifact.read_json(config), **self.changes, "max_position_embeddings": CONTEXT}

    def title(self, layers: int) -> str:
        return f"{self.name or self.base.split('-')[0]}-{layers}-layers"


NARROW = {"hidden_size": 1024, "intermediate_size": 2048, "vocab_size": 32064}
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2}  # of 128
WIDE_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}  # of 256
EXPERTS = {"num_experts": 32, "num_experts_per_tok": 8, "moe_intermediate_size": 256}
# Cut from a model that nothing is judged by; the one with experts from one that is, but they are fewer and smaller.
LLAMA = Dummy("llama-2-7b", (), (), {**NARROW, **HEADS}, "llama")
FAMILIES = (
    Dummy("qwen2.5-1.5b", (), (), {**NARROW, **HEADS}, "qwen2"),
    Dummy("qwen3-0.6b", (), (), {**NARROW, **HEADS}, "qwen3"),
    Dummy("qwen3-30b-a3b", (), (), {**NARROW, **HEADS, **EXPERTS}, "qwen3-moe"),
    Dummy("gemma-3-4b", (), (), {**NARROW, **WIDE_HEADS}, "gemma3"),
    Dummy("phi-4", (), (), {**NARROW, **HEADS}, "phi3"),
    Dummy("opt-125m", (), ()),
)
HF_ALONE = (
    Dummy("mistral-7b", (), (), {**NARROW, **HEADS}),
    Dummy("pythia-1.4b", (), (), {**NARROW, "num_attention_heads": 8}),
)


def all_at(dummies: Sequence[Dummy], depths: tuple[int, ...], points: Points) -> tuple[Dummy, ...]:
    return tuple(replace(dummy, depths=depths, points=points) for dummy in dummies)


TWO_DEPTHS = (4, 20)
HF_POINTS = ((1, 128), (8, 512))
TOKENS = (
    *((1, prompt) for prompt in (16, 128, 512, 1024, 2048)),
    *((8, 16), (32, 16), (32, 128), (32, 512), (128, 16)),
)
ONE_DEPTH = ((1, 16), (1, 128), (1, 600), (1, 4096), (8, 16), (8, 512), (32, 16), (32, 128))
DUMMIES: dict[str, tuple[Dummy, ...]] = {
    "vllm": (
        replace(LLAMA, depths=TWO_DEPTHS, points=TOKENS),
        Dummy("mistral-7b", (16, 28), ((1, 128), (1, 1024), (8, 512), (32, 512))),
        *all_at(FAMILIES, TWO_DEPTHS[1:], ONE_DEPTH),
    ),
    "hf-graph": (Dummy("tinyllama-1.1b", (2, 6), HF_POINTS),),
    "hf-eager": all_at((LLAMA, *FAMILIES, *HF_ALONE), TWO_DEPTHS, HF_POINTS),
}
SDPA = {"hf-eager": "flash"}  # cuDNN would build a plan for each new KV length, and that is not the host's steady pace


def check(engine: str) -> None:
    if engine not in DUMMIES:
        raise ChipError(f"--engine {engine[:80]}: terms are measured for {', '.join(DUMMIES)}")


def plans(
    engine: str,
    device: Device,
    dtype: str,
    python: str = "",
    settings: Mapping[str, str] | None = None,
    instead: Sequence[Dummy] = (),
) -> list[Plan]:
    """One for each model and depth. `instead`: other models than the usual ones."""
    check(engine)
    made = []
    for dummy in instead or DUMMIES[engine]:
        scenarios = tuple(Scenario(batch, prompt, OUTPUT, dtype) for batch, prompt in dummy.points)
        for layers in dummy.depths:
            job = Job(
                model=dummy.title(layers),
                config={**dummy.config(), "num_hidden_layers": layers},
                dtype=dtype,
                device=device.name,
                max_context=max(prompt for _, prompt in dummy.points) + OUTPUT,
                sdpa=SDPA.get(engine, ""),
                python=python,
                settings=settings or {},
                energy_s=0.0,
            )
            made.append(Plan(engine, job, scenarios))
    return made


def run(asked: Sequence[Plan], device: Device, path: Path, tell: Tell) -> list[Run]:
    """Every point into a file of runs, those alone that it does not hold yet."""
    return measure(asked, Ledger(path, device), REPEATS, tell)
