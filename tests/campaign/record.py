"""What a campaign did: counts that add up over runs, with the environment and the commits they were made on."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = "chip.campaign/2"
KEPT = 200  # failures of a fuzzer that are kept


def empty() -> dict[str, Any]:
    counts = {"tried": 0, "failed": 0, "worst_s": 0.0, "worst_mib": 0.0, "seconds": 0.0}
    return {**counts, "of_which": {}, "failures": [], "mended": []}


def read(path: Path, seed: int) -> dict[str, Any]:
    fresh = {"schema": SCHEMA, "seed": seed, "environment": {}, "commits": {}, "fuzzers": {}}
    held = json.loads(path.read_text(encoding="utf-8")) if path.exists() else fresh
    if held["schema"] != SCHEMA:
        raise SystemExit(f"{path}: is {held['schema']}, not {SCHEMA}; give another --record")
    if held["seed"] != seed:
        raise SystemExit(f"{path}: is of seed {held['seed']}; give --seed {held['seed']}, or another --record")
    return dict(held)


def add(held: dict[str, Any], name: str, state: Path, code: int) -> None:
    """What a worker did, on top of what was done before."""
    now = json.loads(state.read_text()) if state.exists() else empty()
    if code != 0:  # the fuzzer itself ended: what it tried is counted, and that it ended
        now["failed"] += 1
        now["failures"].append({"number": None, "why": f"the fuzzer ended with {code}", "case": None})
    before = {**empty(), **held["fuzzers"].get(name, {})}
    kinds = {*before["of_which"], *now["of_which"]}
    held["fuzzers"][name] = {
        **{key: before[key] + now[key] for key in ("tried", "failed")},
        "of_which": {k: before["of_which"].get(k, 0) + now["of_which"].get(k, 0) for k in sorted(kinds)},
        "seconds": round(before["seconds"] + now["seconds"], 1),
        **{key: max(before[key], now[key]) for key in ("worst_s", "worst_mib")},
        "failures": (before["failures"] + now["failures"])[:KEPT],
        "mended": before["mended"],
    }
    of_commit = held["commits"].setdefault(commit(), {})
    of_commit[name] = of_commit.get(name, 0) + now["tried"]


@cache
def commit() -> str:
    """The commit that is tested; a "+" says that the sources were changed since."""
    git = ["git", "-C", str(ROOT)]
    try:
        found = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "src"], check=False).returncode
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip() + "+" * bool(changed)


def environment() -> dict[str, Any]:
    found: dict[str, Any] = {"python": platform.python_version(), "system": platform.system()}
    found |= {"machine": platform.machine(), "cpus": os.cpu_count()}
    for name in ("chip-inference", "torch", "transformers"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def write(path: Path, held: dict[str, Any]) -> None:
    held["environment"] = environment()
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")
    os.replace(beside, path)


def table(held: dict[str, Any]) -> str:
    rows = [("fuzzer", "tried", "failed", "mended", "worst time", "worst memory", "time spent")]
    for name, f in held["fuzzers"].items():
        memory, spent = f"{f['worst_mib']:.0f} MiB", f"{f['seconds']:.0f} s"
        counts = (f"{n:,}" for n in (f["tried"], f["failed"], len(f["mended"])))
        rows.append((name, *counts, f"{f['worst_s']:.3g} s", memory, spent))
        rows += [(f"  {what}", f"{n:,}", "", "", "", "", "") for what, n in f["of_which"].items()]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths))).rstrip()
        for row in rows
    )
