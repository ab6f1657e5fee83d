"""Write src/chip/data/config_fields.json: which fields the config classes of transformers have, and of what types.

    python benchmarks/config_fields.py

It is run once for a version of transformers. `chip.decoders.config` holds configs against it, without transformers.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from pathlib import Path

import torch
import transformers
from transformers.activations import ACT2FN
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from chip.decoders import architectures

FILE = Path(__file__).resolve().parents[1] / "src" / "chip" / "data" / "config_fields.json"
PLAIN = {int: "int", float: "float", bool: "bool", str: "str", list: "list", dict: "dict", type(None): "null"}


def kinds(hint: object) -> list[str]:
    """JSON types that a field takes; "any" where it cannot be told."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return [k for part in typing.get_args(hint) for k in kinds(part)]
    if origin is list and typing.get_args(hint)[0] in (int, float, str, bool):
        return [f"list[{PLAIN[typing.get_args(hint)[0]]}]"]
    if origin in (list, tuple):
        return ["list"]
    if origin is dict or (isinstance(hint, type) and issubclass(hint, dict)):
        return ["dict"]
    if getattr(hint, "__name__", "") == "dtype":
        return []  # torch's own, never in JSON
    return [PLAIN.get(hint, "any")] if isinstance(hint, type) else ["any"]


def describe(model_type: str) -> dict[str, object]:
    cls = CONFIG_MAPPING[model_type]
    hints = typing.get_type_hints(cls, localns={"torch": torch})
    fields = {f.name: "|".join(dict.fromkeys(kinds(hints.get(f.name, f.type)))) for f in dataclasses.fields(cls)}
    pad = next((f.default for f in dataclasses.fields(cls) if f.name == "pad_token_id"), None)
    return {
        "class": MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type],
        "aliases": dict(sorted(cls.attribute_map.items())),
        "pad_token_id": pad if isinstance(pad, int) else None,
        "fields": {name: kind for name, kind in sorted(fields.items()) if "any" not in kind},
    }


def table() -> dict[str, object]:
    classes = {c: t for t, c in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items() if t in CONFIG_MAPPING and isinstance(c, str)}
    rows = ("standard", "latent", "hybrid")  # which read sizes under any of their names
    described = [a for a, family in architectures().items() if family not in rows]
    wanted = sorted({classes[a] for a in described if a in classes} | {"gemma3_text"})
    return {
        "transformers": transformers.__version__,
        "activations": sorted(ACT2FN),
        "model_types": {name: describe(name) for name in wanted},
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(table(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"wrote {FILE}")
