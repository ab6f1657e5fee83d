"""Finding a model: a bundled name, a config.json or its folder, or a hub id where huggingface_hub is installed."""

from __future__ import annotations

import os
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from chip.decoders import describe, hub
from chip.decoders.decoder import Decoder
from chip.files import artifact
from chip.types import ChipError

CONFIGS = Path(__file__).parent.parent / "data" / "models"


@lru_cache(maxsize=1)
def names() -> tuple[str, ...]:
    return tuple(sorted(p.stem for p in CONFIGS.glob("*.json")))


@lru_cache(maxsize=256)
def find(name: str, answer_as: str = "") -> Decoder:
    path, title = locate(name)
    return describe(with_quantization(path), title, name if title == name else str(path), answer_as)


def with_quantization(path: Path) -> Any:
    """The config, with what an hf_quant_config.json beside it says (ModelOpt writes that file of its own)."""
    raw = artifact.read_json(path)
    beside = path.with_name("hf_quant_config.json")
    if path.name != "config.json" or not beside.is_file() or not isinstance(raw, dict):
        return raw
    own = artifact.read_json(beside)
    said = own.get("quantization") if isinstance(own, dict) else None
    if not isinstance(said, dict):
        raise ChipError(f"{beside}: field 'quantization' is missing; it names the algorithm")
    inside = raw.get("quantization_config")
    if isinstance(inside, dict) and inside.get("quant_algo", said.get("quant_algo")) != said.get("quant_algo"):
        raise ChipError(
            f"{beside}: quant_algo {str(said.get('quant_algo'))[:40]} contradicts "
            f"{str(inside.get('quant_algo'))[:40]} of config.json; correct one of them"
        )
    return raw if inside else {**raw, "quantization_config": {"quant_method": "modelopt", "quantization": said}}


def locate(name: str) -> tuple[Path, str]:
    """(config file, title) that `name` stands for."""
    if not isinstance(name, str) or not name:
        raise ChipError("model must be a bundled name, a config.json, its folder or a hub id")
    lowered = name.lower()
    if lowered in names():
        return CONFIGS / f"{lowered}.json", lowered
    path = Path(name)
    if os.path.isdir(name):  # unlike Path's, these take any text for a name
        if not (path / "config.json").is_file():
            raise ChipError(f"{name}: the folder holds no config.json")
        return path / "config.json", path.resolve().name
    if name.endswith(".json") or os.path.isfile(name):
        if not os.path.isfile(name):
            raise ChipError(f"{name}: no such file")
        return path, path.resolve().parent.name if path.name == "config.json" else path.stem
    if name.count("/") == 1 and not name.startswith((".", "/")):
        return from_hub(name), name
    near = get_close_matches(lowered[:80], names(), 3, 0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "`chip list models` shows the bundled ones;"
    raise ChipError(f"no model {name[:80]!r}; {hint} a config.json or its folder works too")


def from_hub(repo: str) -> Path:
    """config.json of a hub id, whatever lies in this folder."""
    short = repo.split("/")[1].lower()[:80]
    near = get_close_matches(short, names(), 1, 0.6)
    hint = f"; the bundled {near[0]!r} may be what you want" if near else "; point at a local config.json instead"
    config = hub.config_of(repo, hint)
    raw = artifact.read_json(config)
    if isinstance(raw, dict) and raw.get("quantization_config") is None:
        hub.also(repo, "hf_quant_config.json")  # most repositories have none, and config.json answers without it
    return config
