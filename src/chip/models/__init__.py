"""Model families: one file each, found by listing this folder. Each names the `ARCHITECTURES` it serves and has
`decoder(config, name, architecture)`, which describes the model that an HF config stands for."""

from __future__ import annotations

from functools import cache, lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any

from chip import listing
from chip.callable_module import make_callable
from chip.models import fields
from chip.models.config import Config
from chip.models.decoder import Decoder
from chip.types import ChipError

LONGEST_NAME = 200  # of an architecture or model type; more is not kept
NOT_FAMILIES = (
    *("config", "decoder", "fields", "hub", "library", "lower", "modules", "quantization", "quantization_methods"),
    "spelling",
)


@cache
def families() -> tuple[str, ...]:
    return tuple(name for name in listing.modules(__path__) if name not in NOT_FAMILIES)


def architectures() -> dict[str, str]:
    """Architecture -> family, of all families."""
    return {a: f for f in families() for a in import_module(f"chip.models.{f}").ARCHITECTURES}


@lru_cache(maxsize=256)  # of names that anybody may make up
def _family(architecture: str, model_type: str) -> ModuleType | None:
    likely = sorted((f for f in families() if model_type.startswith(f)), key=len, reverse=True)
    for name in [*likely, *families()]:
        module = import_module(f"chip.models.{name}")
        if architecture in module.ARCHITECTURES:
            return module
    return None


def describe(raw: Any, name: str, where: str) -> Decoder:
    """The model that an HF config stands for; `where` names the file in errors."""
    c = Config(raw, where)
    listed = c.names("architectures")
    if not listed:
        raise ChipError(f"{where}: field 'architectures' is missing or empty; it names the model class")
    architecture = listed[0][:LONGEST_NAME]
    module = _family(architecture, c.text("model_type", "")[:LONGEST_NAME])
    if module is None:
        known = ", ".join(sorted(a.removesuffix("ForCausalLM") for a in architectures()))
        raise ChipError(
            f"{where}: architecture {architecture[:80]!r} is not known (known: {known}); "
            "with torch and transformers installed, --trace takes its operators from what really runs"
        )
    result: Decoder = module.decoder(fields.check(c, architecture), name, architecture)
    return result


make_callable(__name__, "models")  # chip.models()
