"""compute-sanitizer over the CUDA kernels, on small shapes: memcheck and racecheck, each all of them in one process."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from chip import ops
from chip.lab.kernels import catalog, once
from chip.lab.kernels.subjects import KernelSubject
from chip.types import ChipError, Op

SCHEMA = "chip.kernel_sanitize/1"
TOOLS = ("memcheck", "racecheck")
SECONDS = 300
PRODUCTS = ((128, 256, 64, "bf16"), (129, 264, 136, "fp16"))
FEW = ((1, 264, 136, "bf16"), (17, 129, 2048, "fp16"), (64, 200, 4096, "bf16"))  # the last two divide k among blocks
MANY_TILES = (2200, 2400, 72, "bf16")  # more of them than SMs, for the rungs whose blocks take a second one
ROWS = ((5, 100), (3, 1024), (2, 4097), (1, 33000))


def require() -> str:
    path = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.access(path, os.X_OK):
        raise ChipError("compute-sanitizer is not installed; it comes with the CUDA toolkit")
    return path


def shapes(kind: str, variant: str) -> list[Op]:
    if kind != "linear":
        return [ops.build(kind, {"rows": r, "cols": c, "dtype": "fp32"}) for r, c in ROWS]
    if variant.startswith("skinny"):
        return [ops.build(kind, {"m": m, "n": n, "k": k, "dtype": d}) for m, n, k, d in FEW]
    products = [*PRODUCTS, MANY_TILES] if variant in catalog.steps("hgemm")[-2:] else PRODUCTS
    return [ops.build(kind, {"m": m, "n": n, "k": k, "dtype": d}) for m, n, k, d in products]


def sanitize(subjects: Sequence[KernelSubject], tell: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row for each variant and tool: how many errors, and the first one's line."""
    runs = [
        (s.name, v.name, shapes(s.kind, v.name))
        for s in subjects
        if s.name in catalog.LADDERS
        for v in s.variants
        if not v.unusable
    ]
    if not runs:
        raise ChipError("nothing to sanitize: give row_normalize, hgemm or skinny, on a GPU that runs them")
    words = once.command(runs)
    with ThreadPoolExecutor(len(TOOLS)) as pool:
        outputs = list(pool.map(lambda tool: _watch(tool, words, tell), TOOLS))
    return [row for tool, (output, code) in zip(TOOLS, outputs) for row in report(tool, output, code)]


def _watch(tool: str, words: list[str], tell: Callable[[str], None]) -> tuple[str, int]:
    """(what it printed, how it ended); each variant is told when its turn comes."""
    env = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}  # so that one tensor's end is not the next one's start
    ours = ["--kernel-name-exclude", "kernel_substring=at::"]
    lines = []
    with subprocess.Popen(
        [require(), "--tool", tool, *ours, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env
    ) as run:
        limit = threading.Timer(SECONDS, run.kill)
        limit.start()
        assert run.stdout
        for line in run.stdout:
            lines.append(line)
            if line.startswith(once.MARK):
                tell(f"{tool}: {line.removeprefix(once.MARK).strip()}")
        limit.cancel()
    return "".join(lines), run.returncode


def report(tool: str, output: str, code: int) -> list[dict[str, Any]]:
    """What a tool said, by variant: an error belongs to the variant that ran when it was printed."""
    whole = verdict(output, code)
    _, *parts = re.split(rf"^{re.escape(once.MARK)}", output, flags=re.MULTILINE)
    rows = []
    for part in parts:
        variant, _, talk = part.partition("\n")
        errors = telling(talk)
        rows.append({"variant": variant.strip(), "tool": tool, "errors": len(errors), "first": (errors or [""])[0]})
    if whole["errors"] and not any(row["errors"] for row in rows):  # it ended early, or says what we do not know
        last = rows[-1]["variant"] if rows else "before the first"
        rows.append({"variant": last, "tool": tool, **whole})
    return rows


def telling(output: str) -> list[str]:
    lines = [line.removeprefix("=========").strip() for line in output.splitlines() if line.startswith("=========")]
    return [line[:200] for line in lines if re.match(r"(Invalid|Error:|Race|Warning|Program hit|Potential)", line)]


def verdict(output: str, code: int) -> dict[str, Any]:
    summary = re.search(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)", output)
    if not summary:
        return {"errors": 1, "first": (output.strip().splitlines() or [f"ended with code {code}"])[-1][:200]}
    count, errors = int(summary[1] or summary[2]), telling(output)
    return {"errors": count, "first": (errors or [""])[0] if count or errors else ""}
