"""Damaged Chrome traces, plain and packed: a trace or one line, never a fault."""

from __future__ import annotations

import base64
import gzip
import json
import tempfile
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from damage import damaged_bytes

from chip.lab.replay import foreign, signatures
from chip.show import cli

ROOT = Path(__file__).resolve().parents[2]
NAME = "traces"
LIMIT_S = 10.0
FOLDER = Path(tempfile.mkdtemp(prefix="campaign-"))


@cache
def seed() -> bytes:
    """The first events of each kind of a real trace."""
    path = ROOT / "tests" / "pure" / "h200_traces" / "bloom-560m-prefill-1x5-eager.chrome.json.gz"
    whole = json.loads(gzip.decompress(path.read_bytes()))
    kinds: dict[str, list[Any]] = {}
    for event in whole["traceEvents"]:
        kinds.setdefault(str(event.get("cat")), []).append(event)
    whole["traceEvents"] = [event for events in kinds.values() for event in events[:40]]
    return json.dumps(whole).encode()


def case(draw: Random) -> dict[str, str]:
    data = seed()
    for _ in range(draw.choice((1, 1, 2, 5))):
        data = damaged_bytes(data, draw)
    data = gzip.compress(data, 1, mtime=0)
    if draw.random() < 0.2:
        data = damaged_bytes(data, draw)
    return {"data": base64.b85encode(data).decode()}


def check(case: dict[str, str]) -> str:
    path = FOLDER / "it.json.gz"
    path.write_bytes(base64.b85decode(case["data"]))
    try:
        signatures.workload_of(foreign.trace_of(path))
    except Exception as e:
        said = cli.told(e)
        return said if "fault" in said or "\n" in said else ""
    return ""
