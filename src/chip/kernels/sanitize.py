"""compute-sanitizer over the CUDA kernels, on small shapes: memcheck, then racecheck."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import Any

from chip import ops
from chip.kernels import catalog, once
from chip.kernels.subjects import Subject
from chip.types import ChipError, Op

TOOLS = ("memcheck", "racecheck")
SECONDS = 300
PRODUCTS = ((128, 256, 64), (129, 264, 200), (320, 520, 136))
ROWS = ((5, 100), (4, 1024), (3, 4097), (2, 33000))


def require() -> str:
    found = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.access(found, os.X_OK):
        raise ChipError("compute-sanitizer is not installed; it comes with the CUDA toolkit")
    return found


def shapes(kind: str) -> list[Op]:
    if kind == "linear":
        return [ops.build(kind, {"m": m, "n": n, "k": k, "dtype": d}) for m, n, k in PRODUCTS for d in ("bf16", "fp16")]
    return [ops.build(kind, {"rows": r, "cols": c, "dtype": "fp32"}) for r, c in ROWS]


def sanitize(s: Subject) -> list[dict[str, Any]]:
    """A row for each variant and tool: how many errors, and the first one's line."""
    if s.name not in catalog.LADDERS:
        return []
    found = []
    for v in s.variants:
        for tool in TOOLS if not v.unusable else ():
            words = [
                require(),
                "--tool",
                tool,
                "--kernel-name-exclude",
                "kernel_substring=at::",
                *once.command(s.name, v.name, shapes(s.kind)),
            ]
            found.append({"variant": v.name, "tool": tool, **_verdict(words)})
    return found


def _verdict(words: list[str]) -> dict[str, Any]:
    env = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}  # so that one tensor's end is not the next one's start
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, env=env)
    except subprocess.TimeoutExpired:
        return {"errors": 1, "first": f"not done after {SECONDS} s"}
    return verdict(done.stdout + done.stderr, done.returncode)


def verdict(output: str, code: int) -> dict[str, Any]:
    lines = [line.removeprefix("=========").strip() for line in output.splitlines() if line.startswith("=========")]
    summary = re.search(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)", output)
    if not summary:
        return {"errors": 1, "first": (output.strip().splitlines() or [f"ended with code {code}"])[-1][:200]}
    count = int(summary[1] or summary[2])
    telling = [line for line in lines if re.match(r"(Invalid|Error|Race|Warning|Program hit|Potential)", line)]
    return {"errors": count, "first": (telling or [""])[0][:200] if count or telling else ""}
