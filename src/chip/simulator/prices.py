"""Prices of GPUs: the asker's own, as `h100=2.5, h200:3.5` or as a file like the bundled example."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from chip.files import artifact
from chip.hardware import gpus
from chip.types import ChipError

EXAMPLE = Path(__file__).resolve().parent.parent / "data" / "prices" / "example.json"
FIELDS = ("dated", "currency", "what", "gpu_hour")
MOST = 1e6
BETWEEN = re.compile(r"[,;\n]")
ENTRY = re.compile(r"(.*\S)\s*[:=]\s*([^:=]*)")
NUMBER = re.compile(r"\d+\.?\d*|\.\d+")


def parse(text: str) -> dict[str, float]:
    """One GPU for one hour, by the name it has here: `example`, a file, or GPUs with their prices."""
    if not text:
        return {}
    if text == "example":
        return read(EXAMPLE)
    if not re.search("[:=]", text) or text.endswith(".json") or os.path.isfile(text):
        return read(Path(text))
    try:
        return of_text(text)
    except ChipError as e:
        raise ChipError(f"--price {e}") from None


def of_text(text: str) -> dict[str, float]:
    """GPUs with their prices, in any case: `:` or `=` before a price, a comma, a semicolon or a new line between two.
    The page has the same rule (report/static/prices.js)."""
    found: dict[str, float] = {}
    before = ""
    for entry in filter(None, map(str.strip, BETWEEN.split(text))):
        parts = ENTRY.fullmatch(entry)
        if parts is None and before and entry.isdecimal():
            raise ChipError(f"{before},{entry}: a comma stands between two GPUs; write {before}.{entry}"[:160])
        if parts is None:
            raise ChipError(f"{entry[:40]}: write a GPU and its price, as in h200:3.5")
        if not NUMBER.fullmatch(parts[2]) or not 0 < float(parts[2]) < MOST:
            raise ChipError(f"{entry[:40]}: the price must be a number above 0, as in h200:3.5")
        found[name_of(parts[1])] = float(parts[2])
        before = entry
    return found


def name_of(gpu: str) -> str:
    """By which a price is kept and looked up: the bundled name where there is one, whatever it was called."""
    if gpus.is_known(gpu):
        return gpus.find(gpu).name.lower()
    if os.path.isfile(gpu):  # the asker's own
        return gpu
    near = get_close_matches(gpu.lower()[:80], gpus.spec_names(), 1, 0.5)
    raise ChipError(f"no GPU {gpu[:40]}" + (f"; did you mean {near[0]}?" if near else ""))


def read(path: Path) -> dict[str, float]:
    raw = artifact.read_json(path)
    if not isinstance(raw, dict) or not isinstance(raw.get("gpu_hour"), dict):
        raise ChipError(f"{path}: must be an object with gpu_hour, prices by the name of the GPU; example: {EXAMPLE}")
    for key in raw:
        if key not in FIELDS:
            raise ChipError(f"{path}: unknown field {str(key)[:40]!r}; known: {', '.join(FIELDS)}")
    try:
        return of_values(raw["gpu_hour"])
    except ChipError as e:
        raise ChipError(f"{path}: gpu_hour: {e}") from None


def about() -> dict[str, Any]:
    """What the example says of itself: its date, its currency, and what it is not."""
    found: dict[str, Any] = artifact.read_json(EXAMPLE)
    return found


def of_values(prices: Mapping[str, Any]) -> dict[str, float]:
    for gpu, price in prices.items():
        if isinstance(price, bool) or not isinstance(price, (int, float)) or not 0 < price < MOST:
            raise ChipError(f"{gpu[:40]} must be a price above 0, got {str(price)[:40]!r}")
    return {name_of(gpu): float(price) for gpu, price in prices.items()}
