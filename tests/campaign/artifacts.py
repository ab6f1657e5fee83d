"""Damaged artifacts of every kind, given to every command that reads such files."""

from __future__ import annotations

import base64
import gzip
import json
import tempfile
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import command_lines
from damage import damaged_bytes, damaged_value

ROOT = Path(__file__).resolve().parents[2]
NAME = "artifacts"
LIMIT_S = 10.0
FOLDER = Path(tempfile.mkdtemp(prefix="campaign-"))
READERS = {
    "runs": (
        ["validate", "{file}"], ["compare", "{file}", "{file}"], ["show", "{file}"],
        ["report", "{file}", "-o", "{out}"],
    ),
    "profile": (["predict", "gpt2", "--gpu", "{file}"], ["show", "{file}"], ["roofline", "--gpu", "{file}"]),
    "engine": (["predict", "gpt2", "--gpu", "h200", "--engine", "vllm", "--engine-profile", "{file}"],),
    "measurements": (["report", "{file}", "-o", "{out}"], ["roofline", "{file}", "--gpu", "h200"]),
    "trace": (["explain", "{file}", "{file}"], ["report", "{file}", "-o", "{out}"]),
    "validation": (["report", "{file}", "-o", "{out}"],),
}  # fmt: skip


@cache
def seeds() -> dict[str, bytes]:
    """A small artifact of each kind, as chip wrote it."""
    data = ROOT / "src" / "chip" / "data"
    trace = ROOT / "tests" / "pure" / "h200_traces" / "bloom-560m-prefill-1x5.trace.json.gz"
    found = {"profile": (data / "profiles" / "h200.json").read_bytes(), "trace": gzip.decompress(trace.read_bytes())}
    found["engine"] = next((data / "engines").glob("h200.vllm.json")).read_bytes()
    found["measurements"] = b"\n".join((ROOT / "results/h200/windows.jsonl").read_bytes().split(b"\n")[:6]) + b"\n"
    command_lines.prepare()
    found["runs"] = (command_lines.FOLDER / "runs.json").read_bytes()
    whole = json.loads((ROOT / "results/h200/validation.json").read_bytes())
    whole["data"]["points"] = whole["data"].get("points", [])[:3]
    found["validation"] = json.dumps(whole).encode()
    return found


def case(draw: Random) -> dict[str, Any]:
    kind = draw.choice(sorted(READERS))
    data = seeds()[kind]
    if draw.random() < 0.6 and kind != "measurements":
        value = json.loads(data)
        for _ in range(draw.choice((1, 1, 2, 3))):
            value = damaged_value(value, draw)
        data = json.dumps(value).encode()
    else:
        for _ in range(draw.choice((1, 1, 2))):
            data = damaged_bytes(data, draw)
    command = draw.randrange(len(READERS[kind]))
    return {"kind": kind, "command": command, "data": base64.b85encode(gzip.compress(data, 1, mtime=0)).decode()}


def check(case: dict[str, Any]) -> str:
    name = "it.jsonl" if case["kind"] == "measurements" else "it.json"
    path = FOLDER / name
    path.write_bytes(gzip.decompress(base64.b85decode(case["data"])))
    words = READERS[case["kind"]][case["command"]]
    return command_lines.run([w.format(file=path, out=FOLDER / "site") for w in words])
