"""Runs the calibration models of an engine (`engines/<name>`): what an engine and its host are measured on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chip import engines
from chip.decoders import library
from chip.engines.calibration import CONTEXT, CalibrationModel
from chip.files import artifact
from chip.files.runs import Run
from chip.lab.measure.device import Device
from chip.lab.run import Job
from chip.lab.run.grid import RunsFile, SessionPlan, Tell, measure
from chip.types import ChipError, Scenario

OUTPUT = 17
REPEATS = 5


def config(model: CalibrationModel) -> dict[str, Any]:
    path, _ = library.locate(model.base)
    return {**artifact.read_json(path), **model.changes, "max_position_embeddings": CONTEXT}


def check(engine: str) -> None:
    known = [name for name in engines.names() if engines.get(name).CALIBRATION]
    if engine not in known:
        raise ChipError(f"--engine {engine[:80]}: terms are measured for {', '.join(known)}")


def plans(
    engine: str,
    device: Device,
    dtype: str,
    python: str = "",
    settings: Mapping[str, str] | None = None,
    instead: Sequence[CalibrationModel] = (),
) -> list[SessionPlan]:
    """One for each model and depth. `instead`: other models than the usual ones."""
    check(engine)
    sessions = []
    for model in instead or engines.get(engine).CALIBRATION:
        scenarios = tuple(Scenario(batch, prompt, OUTPUT, dtype) for batch, prompt in model.points)
        for layers in model.depths:
            job = Job(
                model=model.title(layers),
                config={**config(model), "num_hidden_layers": layers},
                dtype=dtype,
                device=device.name,
                max_context=max(prompt for _, prompt in model.points) + OUTPUT,
                sdpa=engines.get(engine).CALIBRATION_SDPA,
                python=python,
                settings=settings or {},
                energy_s=0.0,
            )
            sessions.append(SessionPlan(engine, job, scenarios))
    return sessions


def run(sessions: Sequence[SessionPlan], device: Device, path: Path, tell: Tell) -> list[Run]:
    """Every point into a file of runs, those alone that it does not hold yet."""
    return measure(sessions, RunsFile(path, device), REPEATS, tell)
