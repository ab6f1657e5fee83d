"""The small models that an engine and its host are measured on, and the points they are run at.

Two depths of one model tell what grows with the layers from what does not. They are small, so that in most steps the
host sets the pace, and no model that predictions are judged by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chip import artifact
from chip.measure.device import Device
from chip.models import library
from chip.run import Job
from chip.run.grid import Ledger, Plan, Tell, measure
from chip.runs import Run
from chip.types import ChipError, Scenario

BASE = "tinyllama-1.1b"
CONTEXT = 8192  # tokens: room for prompts longer than the base model takes
DEPTHS = (2, 6)
OUTPUT = 17
REPEATS = 5
HF = ((1, 128), (8, 512))
POINTS: dict[str, tuple[tuple[int, int], ...]] = {  # engine -> (batch, prompt)
    "vllm": ((1, 16), (1, 128), (1, 512), (1, 1024), (1, 2048), (8, 16), (32, 16), (32, 128), (128, 16)),
    "hf-graph": HF,
    "hf-eager": HF,
}
SDPA = {"hf-eager": "flash"}  # cuDNN would build a plan for each new KV length, and that is not the host's steady pace


def check(engine: str) -> None:
    if engine not in POINTS:
        raise ChipError(f"--engine {engine[:80]}: terms are measured for {', '.join(POINTS)}")


def base() -> dict[str, Any]:
    config, _ = library.locate(BASE)
    return {**artifact.read_json(config), "max_position_embeddings": CONTEXT}


def plans(
    engine: str,
    device: Device,
    dtype: str,
    python: str = "",
    settings: Mapping[str, str] | None = None,
    config: Mapping[str, Any] | None = None,
    points: Sequence[tuple[int, int]] = (),
) -> list[Plan]:
    """One for each depth. `config` and `points` stand in for the usual ones."""
    check(engine)
    made, asked = config or base(), points or POINTS[engine]
    jobs = [
        Job(
            model=f"{BASE.split('-')[0]}-{layers}-layers" if config is None else f"dummy-{layers}-layers",
            config={**made, "num_hidden_layers": layers},
            dtype=dtype,
            device=device.name,
            max_context=max(prompt for _, prompt in asked) + OUTPUT,
            sdpa=SDPA.get(engine, ""),
            python=python,
            settings=settings or {},
            energy_s=0.0,
        )
        for layers in DEPTHS
    ]
    scenarios = tuple(Scenario(batch, prompt, OUTPUT, dtype) for batch, prompt in asked)
    return [Plan(engine, job, scenarios) for job in jobs]


def run(asked: Sequence[Plan], device: Device, path: Path, tell: Tell) -> list[Run]:
    """Every point into a file of runs, those alone that it does not hold yet."""
    return measure(asked, Ledger(path, device), REPEATS, tell)
