"""Prices of GPUs: the asker's own, as `h100=2.5,h200=3.5` or as a file like the bundled example."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chip import artifact
from chip.types import ChipError

EXAMPLE = Path(__file__).resolve().parent.parent / "data" / "prices" / "example.json"
FIELDS = ("dated", "currency", "what", "gpu_hour")


def parse(text: str) -> dict[str, float]:
    """One GPU for one hour, by its name."""
    if not text:
        return {}
    if "=" not in text:
        return read(EXAMPLE if text == "example" else Path(text))
    found = {}
    for word in text.split(","):
        gpu, _, price = word.partition("=")
        found[gpu.strip()] = _price(price, f"--price {word[:40]!r}")
    return found


def read(path: Path) -> dict[str, float]:
    raw = artifact.read_json(path)
    if not isinstance(raw, dict) or not isinstance(raw.get("gpu_hour"), dict):
        raise ChipError(f"{path}: must be an object with gpu_hour, prices by the name of the GPU; example: {EXAMPLE}")
    for key in raw:
        if key not in FIELDS:
            raise ChipError(f"{path}: unknown field {str(key)[:40]!r}; known: {', '.join(FIELDS)}")
    return {gpu: _price(price, f"{path}: gpu_hour.{gpu}") for gpu, price in raw["gpu_hour"].items()}


def _price(value: Any, where: str) -> float:
    try:
        price = float(value)
    except (TypeError, ValueError):
        price = -1.0
    if isinstance(value, bool) or not 0 < price < 1e6:
        raise ChipError(f"{where}: must be a price above 0, as in h100=2.5")
    return price
