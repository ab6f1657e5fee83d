"""Decoder-only models: families of architectures, one file each in `families/`, which are found by listing it. Each has
`ARCHITECTURES` that it serves and `decoder(config, name, architecture)`, which says what an HF config stands for."""

from __future__ import annotations

import pkgutil
from dataclasses import replace
from functools import cache, lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any

from chip.decoders import config, encoder, multimodal, unknown
from chip.decoders.config import Config
from chip.decoders.decoder import Decoder
from chip.types import ChipError

LONGEST_NAME = 200  # of an architecture or model type; more is not kept
# Names that published configs have for the classes of others
ALIASES = {
    "RWForCausalLM": "FalconForCausalLM",
    "StableLMEpochForCausalLM": "StableLmForCausalLM",
    "MPTForCausalLM": "MptForCausalLM",
    "MiniMaxM3ForCausalLM": "MiniMaxM3SparseForCausalLM",
    "Step3p7FlashForCausalLM": "Step3p5ForCausalLM",
    "LLaMAForCausalLM": "LlamaForCausalLM",
}


@cache
def family_names() -> tuple[str, ...]:
    return tuple(sorted(module.name for module in pkgutil.iter_modules(f"{folder}/families" for folder in __path__)))


def architectures() -> dict[str, str]:
    """Architecture -> family, of all families."""
    return {a: f for f in family_names() for a in import_module(f"chip.decoders.families.{f}").ARCHITECTURES}


@lru_cache(maxsize=256)  # of names that anybody may make up
def _family(architecture: str, model_type: str) -> ModuleType | None:
    likely = sorted((f for f in family_names() if model_type.startswith(f)), key=len, reverse=True)
    for name in [*likely, *family_names()]:
        module = import_module(f"chip.decoders.families.{name}")
        if architecture in module.ARCHITECTURES:
            return module
    return None


def describe(raw: Any, name: str, where: str, answer_as: str = "") -> Decoder:
    """The model that an HF config stands for; `where` names the file in errors. `answer_as`: the model type of a known
    family whose layers it has, for an architecture that is not known."""
    c = Config(raw, where)
    listed = c.names("architectures")
    if answer_as:
        listed = [unknown.architecture_of(answer_as, architectures())]
    if not listed:
        raise ChipError(f"{where}: field 'architectures' is missing or empty; it names the model class")
    architecture = listed[0][:LONGEST_NAME]
    if not answer_as and architecture in multimodal.LANGUAGE:
        c, architecture = multimodal.language_part(c, architecture)
    architecture = ALIASES.get(architecture, architecture)
    module = _family(architecture, c.text("model_type", "")[:LONGEST_NAME])
    if module is None:
        raise ChipError(unknown.explain(c, architecture, tuple(architectures())))
    checked = c if answer_as else config.check(c, architecture)
    result: Decoder = module.decoder(checked, name, architecture)
    seen = encoder.read(Config(raw, where), result.hidden) if "vision_config" in raw else None
    return replace(result, encoder=seen) if seen else result
