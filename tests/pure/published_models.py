"""Published models: what their makers say of their sizes, and where each was read (`published_configs.jsonl`).

A list of layers is short there: `layers.{0-3,7}.` stands for five layers. Fields that decide nothing here are left out.
"""

import json
import re
from pathlib import Path

FILE = Path(__file__).parents[1] / "data" / "published_configs.jsonl"
RANGES = re.compile(r"\{([\d,-]+)\}")


def _layers(entry):
    found = RANGES.search(entry)
    if not found:
        return [entry]
    spans = [[int(n) for n in span.split("-")] for span in found[1].split(",")]
    return [RANGES.sub(str(i), entry) for first, *last in spans for i in range(first, (last or [first])[0] + 1)]


def _whole(value):
    if isinstance(value, dict):
        return {one: _whole(v) for k, v in value.items() for one in _layers(k)}
    if isinstance(value, list):
        return [one for v in value for one in (_layers(v) if isinstance(v, str) else [_whole(v)])]
    return value


ROWS = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
SOURCES = {row["name"]: row["source"] for row in ROWS}
PUBLISHED = {row["name"]: (row["billions"], _whole(row["config"])) for row in ROWS}  # billions of parameters; 0: unsaid
QUANTISED = [n for n, (_, raw) in PUBLISHED.items() if "quantization_config" in json.dumps(raw)]
