"""Fuzzers side by side, each in a process of its own; what they tried adds up in one record, and goes on from there."""

from __future__ import annotations

import importlib
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FUZZERS = ("lines", "command_lines", "configs", "artifacts", "traces", "http_requests", "kills", "physics", "edges")
SCHEMA = "chip.campaign/1"
HARD_S = 60  # a case that takes longer is stopped
KEPT = 50  # failures of a fuzzer that are kept with their input
SHRINKS = 200
SAVE_S = 2.0


class Stopped(Exception):
    """A case was stopped because it took too long."""


def work(name: str, seed: int, start: int, seconds: float, state: Path) -> None:
    """Cases from number `start` on, until the time is up; the state is written every few seconds."""
    fuzzer = importlib.import_module(name)
    hard_s = max(HARD_S, getattr(fuzzer, "LIMIT_S", 0) * 2)
    signal.signal(signal.SIGALRM, _stop)
    found: dict[str, Any] = {"tried": 0, "failed": 0, "worst_s": 0.0, "worst_mib": 0.0, "seconds": 0.0, "failures": []}
    began = saved = time.monotonic()
    while (now := time.monotonic()) - began < seconds:
        number = start + found["tried"]
        case = fuzzer.case(Random(f"{name}:{seed}:{number}"))
        why, took = attempt(fuzzer.check, case, hard_s)
        if not found["tried"]:
            why, took = attempt(fuzzer.check, case, hard_s)  # the first one read tables and models
        if not why and took > fuzzer.LIMIT_S:
            why = f"took {took:.2f} s, the limit is {fuzzer.LIMIT_S:g} s"
        found["tried"] += 1
        found["worst_s"] = max(found["worst_s"], round(took, 4))
        if why:
            found["failed"] += 1
            if len(found["failures"]) < KEPT:
                case, why = shrink(fuzzer, case, why, hard_s)
                found["failures"].append({"number": number, "why": why[:500], "case": case})
        if now - saved > SAVE_S:
            saved = now
            _save(state, found, began)
    _save(state, found, began)


def attempt(check: Callable[[Any], str], case: Any, hard_s: float) -> tuple[str, float]:
    """(why it failed, seconds of this process's CPU; of the clock where other processes do the work)."""
    began, clock = time.process_time(), time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, hard_s)
    try:
        why = check(case)
    except Stopped:
        why = f"stopped after {hard_s:g} s"
    except Exception as e:
        why = f"{type(e).__name__}: {e}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    spent = time.process_time() - began
    return why, spent if spent > 0.1 * (time.monotonic() - clock) else time.monotonic() - clock


def _stop(*_: object) -> None:
    raise Stopped


def shrink(fuzzer: Any, case: Any, why: str, hard_s: float) -> tuple[Any, str]:
    """A smaller input that fails as well, where the fuzzer knows how to make one."""
    smaller = getattr(fuzzer, "smaller", None)
    for _ in range(SHRINKS if smaller else 0):
        for one in smaller(case):
            again, _ = attempt(fuzzer.check, one, hard_s)
            if again:
                case, why = one, again
                break
        else:
            break
    return case, why


def _save(state: Path, found: dict[str, Any], began: float) -> None:
    usage = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    found["worst_mib"] = round(max(usage) / 1024, 1)
    found["seconds"] = round(time.monotonic() - began, 1)
    beside = state.with_suffix(".new")
    beside.write_text(json.dumps(found))
    os.replace(beside, state)


# -- all of them ------------------------------------------------------------------------------------------------------
def campaign(names: list[str], seconds: float, seed: int, jobs: int, record: Path) -> dict[str, Any]:
    """Every fuzzer gets the same share of the time. A record of the same seed is gone on with and added to."""
    held = read(record, seed)
    share = seconds * jobs / len(names)
    waiting, running = list(names), {}
    folder = record.parent / f".{record.name}.states"
    folder.mkdir(parents=True, exist_ok=True)
    while waiting or running:
        while waiting and len(running) < jobs:
            name = waiting.pop(0)
            state = folder / f"{name}.json"
            state.unlink(missing_ok=True)
            start = held["fuzzers"].get(name, {}).get("tried", 0)
            words = ["--worker", name, "--seed", str(seed), "--start", str(start), "--seconds", str(share)]
            command = [sys.executable, "-W", "ignore", str(HERE), *words, "--state", str(state)]
            running[name] = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}), state
        time.sleep(0.2)
        for name, (process, state) in [*running.items()]:
            if process.poll() is not None:
                del running[name]
                add(held, name, state, process.returncode)
                _write(record, held)
    for left in folder.glob("*"):
        left.unlink()
    folder.rmdir()
    return held


def read(record: Path, seed: int) -> dict[str, Any]:
    fresh = {"schema": SCHEMA, "seed": seed, "environment": {}, "fuzzers": {}}
    held = json.loads(record.read_text(encoding="utf-8")) if record.exists() else fresh
    if held["seed"] != seed:
        raise SystemExit(f"{record}: is of seed {held['seed']}; give --seed {held['seed']}, or another --record")
    return dict(held)


def add(held: dict[str, Any], name: str, state: Path, code: int) -> None:
    """What a worker did, on top of what was done before."""
    empty = {"tried": 0, "failed": 0, "worst_s": 0.0, "worst_mib": 0.0, "seconds": 0.0, "failures": []}
    now = json.loads(state.read_text()) if state.exists() else dict(empty)
    if code != 0:  # the fuzzer itself ended: what it tried is counted, and that it ended
        now["failed"] += 1
        now["failures"].append({"number": None, "why": f"the fuzzer ended with {code}", "case": None})
    before = {**empty, **held["fuzzers"].get(name, {})}
    held["fuzzers"][name] = {
        **{key: before[key] + now[key] for key in ("tried", "failed")},
        "seconds": round(before["seconds"] + now["seconds"], 1),
        **{key: max(before[key], now[key]) for key in ("worst_s", "worst_mib")},
        "failures": (before["failures"] + now["failures"])[:KEPT],
    }


def _write(record: Path, held: dict[str, Any]) -> None:
    from chip import __version__

    held["environment"] = {"chip": __version__, "python": platform.python_version(), "system": platform.system()}
    beside = record.with_name(f".{record.name}.new")
    beside.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")
    os.replace(beside, record)


def table(held: dict[str, Any]) -> str:
    rows = [("fuzzer", "tried", "failed", "worst time", "worst memory", "time spent")]
    for name, f in held["fuzzers"].items():
        memory, spent = f"{f['worst_mib']:.0f} MiB", f"{f['seconds']:.0f} s"
        rows.append((name, f"{f['tried']:,}", f"{f['failed']:,}", f"{f['worst_s']:.3g} s", memory, spent))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths)))
        for row in rows
    )
