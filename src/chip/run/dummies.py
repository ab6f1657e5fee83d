"""The small models that an engine and its host are measured on, and the points they are run at.

Two depths of one model tell what grows with the layers from what does not. They are small, so that in most steps the
host sets the pace, and no model that predictions are judged by. Of vLLM, whose host is slow and whose steps are graphs,
two more are wide and deep enough that the device sets it: they tell what its kernels take in the engine beyond what
they take alone; and two have experts, whose layers are more kernels to launch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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


@dataclass(frozen=True)
class Dummy:
    base: str
    depths: tuple[int, int]
    points: tuple[tuple[int, int], ...]  # (batch, prompt)

    def config(self) -> dict[str, Any]:
        config, _ = library.locate(self.base)
        return {**artifact.read_json(config), "max_position_embeddings": CONTEXT}


HF = Dummy("tinyllama-1.1b", (2, 6), ((1, 128), (8, 512)))
NARROW = (
    *((1, prompt) for prompt in (16, 128, 512, 1024, 2048)),
    *((8, 16), (32, 16), (32, 128), (32, 512), (128, 16)),
)
DUMMIES: dict[str, tuple[Dummy, ...]] = {
    "vllm": (
        Dummy("tinyllama-1.1b", (2, 6), NARROW),
        Dummy("mistral-7b", (16, 28), ((1, 128), (1, 1024), (8, 512), (32, 512))),
        Dummy("mixtral-8x7b", (2, 6), ((1, 600), (1, 1024), (4, 256))),  # longer than graphs, short for the device
    ),
    "hf-graph": (HF,),
    "hf-eager": (HF, replace(HF, base="pythia-1.4b"), replace(HF, base="opt-125m")),
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
                model=f"{dummy.base.split('-')[0]}-{layers}-layers",
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
