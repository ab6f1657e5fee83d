"""Whether a model has room on a CPU. A GPU says so itself; where a machine's memory ends, its kernel kills somebody."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from chip.dtypes import Precision, precision
from chip.measure.device import open_device
from chip.models import describe
from chip.models.decoder import Decoder
from chip.predict import memory
from chip.run import Job
from chip.types import ChipError, Scenario
from chip.units import gib


def refuse_model(config: Mapping[str, Any], name: str, dtype: str, device: str, from_files: bool) -> None:
    """Before its weights are made or loaded."""
    known = _known(config, name, dtype, device, from_files)
    if known is None:
        return
    weight_bytes, free_bytes = known[0].weight_bytes(known[1]), open_device(device).free_bytes()
    if weight_bytes > free_bytes:
        raise ChipError(
            f"{name}: its weights take {gib(weight_bytes)} in {dtype}, and {gib(free_bytes)} of this machine's memory "
            "are free; choose a smaller model" + ("" if dtype == "bf16" or from_files else ", or --dtype bf16")
        )


def refuse_point(job: Job, engine: str, s: Scenario) -> None:
    """Before a point, with the weights in memory."""
    known = _known(job.config, job.model, job.dtype, job.device, job.folder is not None)
    if known is None:
        return
    try:
        needs = memory.needs(known[0], s, engine, known[1], 0.0)
    except ChipError:  # an engine that is not predicted
        return
    more_bytes, free_bytes = needs["kv_bytes"] + needs["activation_bytes"], open_device(job.device).free_bytes()
    if more_bytes > free_bytes:
        raise ChipError(
            f"{s.name} takes {gib(more_bytes)} beside the weights, and {gib(free_bytes)} of this machine's memory are "
            "free; choose a smaller batch or shorter prompts"
        )


def _known(
    config: Mapping[str, Any], name: str, dtype: str, device: str, from_files: bool
) -> tuple[Decoder, Precision] | None:
    """The model as torch runs it; None on a GPU, where the system does not tell what is free, and of a model that CHIP
    does not know. Random weights drop a config's quantisation."""
    if device != "cpu" or sys.platform != "linux":
        return None
    try:
        plain = {k: v for k, v in config.items() if from_files or k != "quantization_config"}
        model = describe(plain, name, name)
        return model, precision(model.dtype if from_files and model.quantization else dtype)
    except ChipError:
        return None
