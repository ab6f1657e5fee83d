"""Reading an HF `config.json`: every size is checked, every error names the file and the field.

Which fields a family's config has, and of what types, says a table made from the config classes of one version of
transformers (benchmarks/config_fields.py): what transformers would refuse is refused here. Fields it does not know are
ignored, as transformers ignores them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from chip.ops.elementwise import ACTIVATIONS, Gelu
from chip.types import ChipError

MAX_SIZE = 20_000_000  # twice the longest context in use; anything above is a typing error
MAX_LAYERS = 10_000
FILE = Path(__file__).parent.parent / "data" / "config_fields.json"
KINDS: dict[str, type | tuple[type, ...]] = {
    "int": int, "float": float, "bool": bool, "str": str, "list": list, "dict": dict, "null": type(None),
}  # fmt: skip
WORDS = {
    "int": "a whole number", "float": "a number with a decimal point", "bool": "true or false", "str": "text",
    "list": "a list", "dict": "an object", "null": "null",
}  # fmt: skip
ACTIVATION_FIELDS = ("hidden_act", "hidden_activation", "activation_function", "activation")
DTYPES = ("float32", "float16", "bfloat16", "float64", "auto")
ROTARY_NUMBERS = ("rope_theta", "rope_local_base_freq", "partial_rotary_factor", "rotary_pct", "rotary_emb_base")
ABSENT: Any = object()
# whose hidden size is divided into whole heads, even where head_dim is given
DIVIDED = ("llama", "gemma2", "gemma3_text", "gpt_neox", "deepseek_v2")
ROTARY = ("rope_scaling", "rope_parameters")


class Config:
    """An HF config as a mapping with checked look-ups. A field that is null counts as absent, but see `omits`."""

    def __init__(self, raw: Any, where: str, said: dict[str, str] | None = None, root: Config | None = None) -> None:
        if not isinstance(raw, dict):
            raise ChipError(f"{where}: a model config is a JSON object, got {type(raw).__name__}")
        self.raw = raw
        self.where = where
        self.said = said or {}  # field -> the alias that it was given under
        self._around = root  # no reference to itself: a config of a megabyte would wait for the garbage collector

    @property
    def root(self) -> Config:
        """The whole config, where this is a section of it."""
        return self._around or self

    def has(self, name: str) -> bool:
        return self.raw.get(name) is not None

    def omits(self, name: str) -> bool:
        """Not even null: transformers then takes its own default, where null would mean "none"."""
        return name not in self.raw

    def without(self, *names: str) -> Config:
        """As a family sees it that does not read these fields."""
        return Config({k: v for k, v in self.raw.items() if k not in names}, self.where, self.said, self.root)

    def refuse_odd(self, rotated: int) -> None:
        """Values of a head are rotated in pairs."""
        if rotated % 2:
            raise ChipError(f"{self.where}: {rotated} values of each head are rotated, which must be an even number")

    def refuse_null(self, *names: str) -> None:
        """Fields that may be absent, but not null: the model's own code computes with them."""
        for name in names:
            if name in self.raw and self.raw[name] is None:
                raise ChipError(f"{self.where}: {name} is null; give a number, or leave it out")

    def section(self, name: str) -> Config:
        """A config inside the config (such as `text_config`)."""
        if not self.has(name):
            raise ChipError(f"{self.where}: field {name!r} is missing")
        return Config(self.raw[name], f"{self.where}: {name}", root=self.root)

    def within(self, name: str) -> Config:
        """A config inside the config, empty where it is absent."""
        return self.section(name) if self.has(name) else Config({}, f"{self.where}: {name}", root=self.root)

    def size(self, *names: str, default: int | None = None) -> int:
        """A positive whole number under the first of `names` that is present."""
        return self._number(names, default, least=1)

    def count(self, *names: str, default: int | None = None) -> int:
        """A whole number, zero allowed."""
        return self._number(names, default, least=0)

    def layer_count(self, *names: str) -> int:
        return self._number(names or ("num_hidden_layers",), None, least=1, most=MAX_LAYERS)

    def _number(self, names: tuple[str, ...], default: int | None, least: int, most: int = MAX_SIZE) -> int:
        for name in names:
            value = self.raw.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise ChipError(
                    f"{self.where}: {self.said.get(name, name)} must be a whole number, got {str(value)[:40]!r}"
                )
            if not least <= value <= most:
                shown = self.said.get(name, name)
                raise ChipError(f"{self.where}: {shown} must be between {least} and {most}, got {value!r:.40}")
            return value
        if default is None:
            raise ChipError(f"{self.where}: field {names[0]!r} is missing")
        return default

    def flag(self, name: str, default: bool) -> bool:
        value = self.raw.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ChipError(f"{self.where}: {name} must be true or false, got {str(value)[:40]!r}")
        return value

    def number(self, name: str, default: float) -> float:
        value = self.raw.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
            raise ChipError(f"{self.where}: {name} must be a number, got {str(value)[:40]!r}")
        return float(value)

    def text(self, name: str, default: str) -> str:
        value = self.raw.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise ChipError(f"{self.where}: {name} must be text, got {str(value)[:40]!r}")
        return value

    def names(self, name: str) -> list[str]:
        """A list of texts (such as `layer_types`), empty when absent."""
        value = self.raw.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise ChipError(f"{self.where}: {name} must be a list of names")
        return value

    def indices(self, name: str, layers: int) -> list[int]:
        """A list of layers by their index (such as `mlp_only_layers`), empty when absent."""
        value = self.raw.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(v, int) and not isinstance(v, bool) for v in value):
            raise ChipError(f"{self.where}: {name} must be a list of layer indices")
        for v in value:
            if not 0 <= v < layers:
                raise ChipError(f"{self.where}: {name} names layer {v!r:.40}, but there are {layers} layers")
        return value

    def window(self, default: int = 0) -> int:
        """`sliding_window`, 0 where it is null; `default` is what transformers takes where it is absent."""
        return default if self.omits("sliding_window") else self.count("sliding_window", default=0)

    def windows(self, layers: int, window: int, slides: Callable[[int], bool]) -> list[int]:
        """Each layer's window (0: none), by `layer_types` where given, else by the family's own rule."""
        kinds = self.names("layer_types")
        if not kinds:
            return [window if slides(i) else 0 for i in range(layers)]
        if len(kinds) != layers:
            raise ChipError(f"{self.where}: layer_types lists {len(kinds)} layers, but there are {layers}")
        for kind in kinds:
            if kind not in ("full_attention", "sliding_attention"):
                raise ChipError(
                    f"{self.where}: layer_types has {kind[:40]!r}, known: full_attention, sliding_attention"
                )
        if "sliding_attention" in kinds and not window:
            raise ChipError(f"{self.where}: layer_types has sliding_attention, but sliding_window gives no window")
        return [window if kind == "sliding_attention" else 0 for kind in kinds]

    def activation(self, name: str, default: str) -> str:
        """The operator of an activation function: a kernel of torch, or several where HF spells it out."""
        value = self.text(name, default)
        known = ACTIVATIONS.get(value) or (Gelu if value.startswith("gelu") else None)
        if known is None:
            raise ChipError(
                f"{self.where}: {name} {value[:40]!r} is not known; known: gelu..., {', '.join(ACTIVATIONS)}"
            )
        return known.kind

    def rotary(self, default: float = 1.0, name: str = "partial_rotary_factor") -> float:
        """Part of each head that is rotated, at the top (under `name`) or among the rotary parameters."""
        for inner in ("rope_parameters", "rope_scaling"):
            found = self.raw.get(inner)
            if isinstance(found, dict) and found.get("partial_rotary_factor") is not None:
                return Config(found, f"{self.where}: {inner}")._share("partial_rotary_factor", default)
        return self._share(name, default)

    def _share(self, name: str, default: float) -> float:
        value = self.number(name, default)
        if not 0 < value <= 1:
            raise ChipError(f"{self.where}: {name} must be above 0 and at most 1, got {value:g}")
        return value

    def top_k(self, name: str, experts_name: str, experts: int, default: int | None = None) -> int:
        """Experts that each token uses: no more than there are."""
        value = self.size(name, default=default)
        if value > experts:
            raise ChipError(f"{self.where}: {name} {value} is more than {experts_name} {experts}")
        return value

    def divides(self, small_name: str, small: int, large_name: str, large: int) -> None:
        if large % small:
            raise ChipError(f"{self.where}: {large_name} {large} is not a multiple of {small_name} {small}")

    def head_dim(self, hidden: int, heads: int, default: int | None = None) -> int:
        """`head_dim` where given, else `default`, else hidden / heads, which must then be whole."""
        if self.has("head_dim") or (default and self.omits("head_dim")):
            return self.size("head_dim", default=default)
        if hidden % heads:
            sizes = f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}"
            raise ChipError(f"{self.where}: {sizes}, and head_dim is absent")
        return hidden // heads


# -- fields
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
    for name in ACTIVATION_FIELDS:
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
