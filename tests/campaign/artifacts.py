"""Damaged artifacts of every kind, given to every command that reads such files."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import command_lines
from damage import damage, damaged_bytes

ROOT = Path(__file__).resolve().parents[2]
NAME = "artifacts"
LIMIT_S = 10.0
MOST_ITEMS = 4
RECORDED = {kind: ROOT / "results/h200/replay/bloom-560m-1x5" / f"{kind}.json" for kind in ("trace", "replay")}
FOLDER = Path(tempfile.mkdtemp(prefix="campaign-"))
READERS = {
    "runs": (
        ["validate", "{file}"], ["compare", "{file}", "{file}"], ["show", "{file}"],
        ["report", "{file}", "-o", "{out}"],
    ),
    "profile": (["predict", "gpt2", "--gpu", "{file}"], ["show", "{file}"], ["roofline", "--gpu", "{file}"]),
    "engine": (["predict", "gpt2", "--gpu", "h200", "--engine", "vllm", "--engine-profile", "{file}"],),
    "measurements": (["report", "{file}", "-o", "{out}"], ["roofline", "{file}", "--gpu", "h200"]),
    "trace": (["explain", "{file}", "{replay}", "--output-dir", "{out}"],),
    "replay": (["explain", "{trace}", "{file}", "--output-dir", "{out}"],),
    "validation": (["report", "{file}", "-o", "{out}"],),
}  # fmt: skip


@cache
def seeds() -> dict[str, bytes]:
    """A small artifact of each kind, as chip wrote it."""
    data = ROOT / "src" / "chip" / "data"
    found = {"profile": (data / "profiles" / "h200.json").read_bytes()}
    found["engine"] = next((data / "engines").glob("h200.vllm.json")).read_bytes()
    found["measurements"] = b"\n".join((ROOT / "results/h200/windows.jsonl").read_bytes().split(b"\n")[:6]) + b"\n"
    command_lines.prepare()
    found["runs"] = (command_lines.FOLDER / "runs.json").read_bytes()
    whole = json.loads((ROOT / "results/h200/validation.json").read_bytes())
    found["validation"] = json.dumps(whole).encode()
    short = {kind: data if kind == "measurements" else _short(data) for kind, data in found.items()}
    return {**short, **{kind: path.read_bytes() for kind, path in RECORDED.items()}}


def _short(data: bytes) -> bytes:
    """The same with every list cut to its first elements: small files are damaged in more places."""
    whole = json.loads(data)
    kept = {"ttft_ns", "step_ns", "e2e_ns", "x", "y", "samples"}  # belong together, item by item
    return json.dumps(_cut(whole, kept)).encode()


def _cut(value: Any, kept: set[str]) -> Any:
    if isinstance(value, dict):
        return {k: v if k in kept else _cut(v, kept) for k, v in value.items()}
    if isinstance(value, list):
        return [_cut(v, kept) for v in value[:MOST_ITEMS]]
    return value


def case(draw: Random) -> dict[str, Any]:
    kind = draw.choice(sorted(READERS))
    data = seeds()[kind]
    if draw.random() < 0.6 and kind != "measurements":
        value = json.loads(data)
        for _ in range(draw.choice((1, 1, 2, 3))):
            value = damage(value, draw)
        data = json.dumps(value).encode()
    else:
        for _ in range(draw.choice((1, 1, 2))):
            data = damaged_bytes(data, draw)
    command = draw.randrange(len(READERS[kind]))
    return {"kind": kind, "command": command, "data": data.decode("latin-1")}


def check(case: dict[str, Any]) -> str:
    name = "it.jsonl" if case["kind"] == "measurements" else "it.json"
    path = FOLDER / name
    path.write_bytes(case["data"].encode("latin-1"))
    words = READERS[case["kind"]][case["command"]]
    return command_lines.run([w.format(file=path, out=FOLDER / "site", **RECORDED) for w in words])
