"""The fields that a family's config has, and of what types: a config that transformers would refuse is refused here.

The table is made from the config classes of one version of transformers (benchmarks/config_fields.py). Fields it does
not know are ignored, as transformers ignores them.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from chip.decoders.config import Config
from chip.types import ChipError

FILE = Path(__file__).parent.parent / "data" / "config_fields.json"
KINDS: dict[str, type | tuple[type, ...]] = {
    "int": int, "float": float, "bool": bool, "str": str, "list": list, "dict": dict, "null": type(None),
}  # fmt: skip
WORDS = {
    "int": "a whole number", "float": "a number with a decimal point", "bool": "true or false", "str": "text",
    "list": "a list", "dict": "an object", "null": "null",
}  # fmt: skip
ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function", "activation")
DTYPES = ("float32", "float16", "bfloat16", "float64", "auto")
ROTARY_NUMBERS = ("rope_theta", "rope_local_base_freq", "partial_rotary_factor", "rotary_pct", "rotary_emb_base")
ABSENT: Any = object()
DIVIDED = (
    "llama",
    "gemma2",
    "gemma3_text",
    "gpt_neox",
    "deepseek_v2",
)  # into whole heads, even where head_dim is given
ROTARY = ("rope_scaling", "rope_parameters")


@lru_cache(maxsize=1)
def table() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


@lru_cache(maxsize=1)
def _types() -> dict[str, str]:
    """Architecture -> model type."""
    return {entry["class"]: name for name, entry in table()["model_types"].items()}


def check(c: Config, architecture: str) -> Config:
    """Refuse what would not load; the config with its aliases resolved."""
    own = _types().get(architecture)
    if own is None:
        return c
    given = c.raw.get("model_type", own)
    is_own = isinstance(given, str) and given and given not in table()["model_types"]
    if given != own and not is_own:  # Kimi-K2 names DeepSeek's class and a type of its own
        raise ChipError(f"{c.where}: model_type {str(given)[:40]!r} is not that of {architecture}, which is {own!r}")
    entry = table()["model_types"][own]
    raw, said = _resolved(c.raw, entry)
    for name, kinds in entry["fields"].items():
        for key, value in ((name, c.raw.get(name, ABSENT)), (said.get(name, name), raw.get(name, ABSENT))):
            if value is not ABSENT and name != "architectures" and not any(_is(value, k) for k in kinds.split("|")):
                wanted = " or ".join(dict.fromkeys(_word(kind) for kind in kinds.split("|")))
                raise ChipError(f"{c.where}: {key} must be {wanted}, got {str(value)[:40]!r}")
    checked = Config(raw, c.where, said, c.root)
    _check_values(checked, entry)
    if own in DIVIDED and (own != "llama" or checked.has("head_dim")):  # without it Llama itself divides
        checked.divides(
            "num_attention_heads", checked.size("num_attention_heads"), "hidden_size", checked.size("hidden_size")
        )
    return checked


def _resolved(raw: dict[str, Any], entry: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Values under the names of the family's fields, and which of them came under an alias: where both are given,
    transformers sets the alias last."""
    out, said = dict(raw), {}
    for one, other in entry["aliases"].items():
        field, alias = (one, other) if one in entry["fields"] else (other, one)
        if alias in raw:
            out[field] = out.pop(alias)
            said[field] = alias
    return out, said


def _is(value: Any, kind: str) -> bool:
    if kind.startswith("list["):
        inner = kind[5:-1]
        return isinstance(value, list) and all(_is(v, inner) for v in value)
    if isinstance(value, bool):
        return kind == "bool"
    return isinstance(value, KINDS[kind])


def _word(kind: str) -> str:
    return "a list of layer indices" if kind == "list[int]" else WORDS[kind.partition("[")[0]]


def _check_rotation(c: Config, entry: dict[str, Any]) -> None:
    """What rotary embeddings are made of, though it is no field of the family's own."""
    for name in ROTARY:
        theta = (c.raw.get(name) or {}).get("rope_theta", 1.0)
        if isinstance(theta, bool) or not (isinstance(theta, (int, float)) and theta > 0):
            raise ChipError(f"{c.where}: rope_theta of {name} must be a number above 0, got {str(theta)[:40]!r}")
    dim = c.raw.get("head_dim", 1)
    if "head_dim" not in entry["fields"] and (isinstance(dim, bool) or not (isinstance(dim, int) and dim > 0)):
        raise ChipError(f"{c.where}: head_dim must be a whole number above 0, or be left out, got {str(dim)[:40]!r}")


def _check_values(c: Config, entry: dict[str, Any]) -> None:
    """What the types leave open and the model's own code refuses."""
    for name in ACTIVATIONS:
        value = c.raw.get(name)
        if name in entry["fields"] and value is not None and value not in table()["activations"]:
            raise ChipError(f"{c.where}: {name} {str(value)[:40]!r} is no activation function of transformers")
    for name in ("torch_dtype", "dtype"):
        if c.raw.get(name) is not None and c.raw[name] not in DTYPES:
            raise ChipError(f"{c.where}: {name} must be one of {', '.join(DTYPES)}, got {str(c.raw[name])[:40]!r}")
    for name in ROTARY:
        if c.raw.get(name) is not None and not isinstance(c.raw[name], dict):
            raise ChipError(f"{c.where}: {name} must be an object, got {str(c.raw[name])[:40]!r}")
    if "rope_parameters" in entry["fields"]:
        for name in ROTARY_NUMBERS:
            if name in c.raw and not (isinstance(c.raw[name], (int, float)) and c.raw[name] > 0):
                raise ChipError(f"{c.where}: {name} must be a number above 0, got {str(c.raw[name])[:40]!r}")
        _check_rotation(c, entry)
    if "layer_types" in c.raw:
        c.names("layer_types")
    pad, rows = c.raw.get("pad_token_id", entry["pad_token_id"]), c.raw.get("vocab_size")
    if isinstance(pad, int) and isinstance(rows, int) and rows > 0 and not -rows <= pad < rows:
        raise ChipError(f"{c.where}: pad_token_id {pad} is outside of the vocabulary of {rows}")
