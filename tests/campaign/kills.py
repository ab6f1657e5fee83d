"""Commands that write, hit at any moment: killed, out of room, or with a second writer on the same output.

Whatever happens, the output is the old file, the new one or whole lines of both, and the same command run again ends
well. One case in `WITH_TORCH` runs a command that loads torch, on the CPU.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NAME = "kills"
LIMIT_S = 300.0
WITH_TORCH = 7
HITS = ("kill", "kill", "kill", "interrupt", "no room", "second writer")
PURE = {
    "validate": (["validate", "{runs}", "-o", "{out}/v.json"], ("v.json",)),
    "report": (["report", "{runs}", "-o", "{out}/site"], ("site/summary.json",)),
    "predict": (["validate", "{runs}", "--engine", "hf-graph", "-o", "{out}/v.json"], ("v.json",)),
}
CPU = ["--device", "cpu"]
TORCH = {
    "bench": (
        ["bench", "{config}", "--engine", "hf-eager", *CPU, "--batch", "1,2,3", "--prompt", "8", "--output", "3",
         "--repeats", "2", "--no-profile", "--force", "-o", "{out}/r.json"], ("r.json",),
    ),
    "profile": (
        ["profile", "linear", "m=8", "n=64", "k=64", *CPU, "--quick", "--force", "-o", "{out}/p.jsonl"], ("p.jsonl",),
    ),
    "capture": (["capture", "{config}", *CPU, "--prompt", "4", "--force", "-o", "{out}/t.json"], ("t.json",)),
}  # fmt: skip


@cache
def inputs() -> dict[str, str]:
    sys.path[:0] = [str(ROOT / "tests" / "pure"), str(ROOT / "tests" / "device")]
    from samples import a_run, write_runs
    from tiny_models import save_config

    folder = Path(tempfile.mkdtemp(prefix="campaign-"))
    (folder / "runs").mkdir()
    write_runs(folder / "runs" / "runs.json", *(a_run(batch=b) for b in (1, 2, 4, 8)))
    return {"runs": str(folder / "runs" / "runs.json"), "config": str(save_config(folder / "tiny.json"))}


def case(draw: Random) -> dict[str, Any]:
    torch = draw.randrange(WITH_TORCH) == 0
    return {
        "command": draw.choice(sorted(TORCH if torch else PURE)),
        "hit": draw.choice(HITS),
        "at": round(draw.random(), 4),  # of the time or the bytes that the command takes unharmed
    }


def check(case: dict[str, Any]) -> str:
    words, products = {**PURE, **TORCH}[case["command"]]
    folder = Path(tempfile.mkdtemp(prefix="campaign-"))
    try:
        asked = [w.format(out=folder, **inputs()) for w in words]
        whole_s, size = unharmed(case["command"])
        trouble = hit(case, asked, whole_s, size, folder / products[0])
        if trouble:
            return trouble
        for name in products:
            if why := broken(folder / name):
                return f"after {case['hit']}: {name} {why}"
        done = start(asked).communicate()
        last = start(asked)
        err = last.communicate()[1].decode(errors="replace")
        if last.returncode != 0 or "Traceback" in err:
            return f"again after {case['hit']}: exit code {last.returncode}: {err[-200:]}{done[1][-100:]!r}"
        for name in products:
            if not (folder / name).exists() or (why := broken(folder / name)):
                return f"again after {case['hit']}: {name} {why if (folder / name).exists() else 'is not there'}"
        return ""
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@cache
def unharmed(command: str) -> tuple[float, int]:
    """Seconds and bytes of the command when nothing happens to it."""
    words, products = {**PURE, **TORCH}[command]
    folder = Path(tempfile.mkdtemp(prefix="campaign-"))
    try:
        began = time.monotonic()
        process = start([w.format(out=folder, **inputs()) for w in words])
        err = process.communicate()[1]
        assert process.returncode == 0, err[-500:]
        return time.monotonic() - began, (folder / products[0]).stat().st_size
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def start(words: list[str], most_bytes: int | None = None) -> subprocess.Popen[bytes]:
    def limit() -> None:
        if most_bytes is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))

    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "chip", *words],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment, preexec_fn=limit,
    )  # fmt: skip


def hit(case: dict[str, Any], words: list[str], whole_s: float, size: int, product: Path) -> str:
    """Let it happen; what is wrong already, "" otherwise."""
    if case["hit"] == "second writer":
        both = [start(words), start(words)]
        told = [p.communicate()[1].decode(errors="replace") for p in both]
        codes = sorted(p.returncode for p in both)
        bad = codes not in ([0, 0], [0, 2]) or any("Traceback" in t for t in told)
        return f"two writers ended with {codes}: {told[0][-150:]} | {told[1][-150:]}" if bad else ""
    if case["hit"] == "no room":
        process = start(words, max(1, int(case["at"] * size)))
        err = process.communicate()[1].decode(errors="replace")
        bad = "Traceback" in err or process.returncode not in (0, 1, 2)
        return f"without room: exit code {process.returncode}: {err[-200:]}" if bad else ""
    process = start(words)
    try:
        process.communicate(timeout=case["at"] * whole_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL if case["hit"] == "kill" else signal.SIGINT)
        process.communicate()
    return ""


def broken(path: Path) -> str:
    """Why a product is no whole file; "" where it is one, or is not there."""
    if not path.exists():
        return ""
    text = path.read_text(encoding="utf-8", errors="replace")
    lines = text.split("\n")[:-1] if path.suffix == ".jsonl" else [text]  # a cut last line is dropped by every reader
    for line in lines:
        try:
            json.loads(line)
        except ValueError as e:
            return f"is broken: {e}"
    return ""
