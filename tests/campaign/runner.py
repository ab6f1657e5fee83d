"""Fuzzers side by side, each in a process of its own; what they tried adds up in one record, and goes on from there."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from glob import glob
from pathlib import Path
from random import Random
from typing import Any

import record as records

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FUZZERS = (
    "lines", "command_lines", "configs", "artifacts", "traces", "http_requests", "kills", "physics", "edges",
    "properties",
)  # fmt: skip
HARD_S = 60  # a case that takes longer is stopped
SHRINKS = 200
AGED = 600  # cases, each about another model and GPU: more than a process remembers
SAVE_S = 2.0


class Stopped(Exception):
    """A case was stopped because it took too long."""


def case_of(fuzzer: Any, name: str, seed: int, number: int) -> Any:
    """The case of a number. A fuzzer with a GROUP draws what is slow to prepare once for so many cases in a row."""
    draw = Random(f"{name}:{seed}:{number}")
    group = getattr(fuzzer, "GROUP", 0)
    if getattr(fuzzer, "IN_ORDER", False):
        return fuzzer.case(draw, number)
    return fuzzer.case(draw, Random(f"{name}:{seed}:group {number // group}")) if group else fuzzer.case(draw)


def judged(fuzzer: Any, case: Any, first: bool = False) -> tuple[str, float]:
    """(why a case failed or "", seconds it took); the first one of a process reads models and modules, so it is
    timed when it is asked again."""
    hard_s = max(HARD_S, fuzzer.LIMIT_S * 2)
    why, took = attempt(fuzzer.check, case, hard_s)
    if first and not why:
        why, took = attempt(fuzzer.check, case, hard_s)
    if not why and took > fuzzer.LIMIT_S:
        why = f"took {took:.2f} s, the limit is {fuzzer.LIMIT_S:g} s"
    return why, took


def work(name: str, seed: int, start: int, seconds: float, most: int, state: Path) -> None:
    """Cases from number `start` to `most`, until the time is up; the state is written every few seconds."""
    fuzzer, parent = importlib.import_module(name), os.getppid()
    signal.signal(signal.SIGALRM, stop_case)
    found: dict[str, Any] = records.empty()
    began = saved = time.monotonic()
    last = getattr(fuzzer, "count", lambda: most)()
    while (now := time.monotonic()) - began < seconds and start + found["tried"] < min(most, last):
        number = start + found["tried"]
        case = case_of(fuzzer, name, seed, number)
        why, took = judged(fuzzer, case, first=not found["tried"])
        found["tried"] += 1
        found["worst_s"] = max(found["worst_s"], round(took, 4))
        if why:
            found["failed"] += 1
            case, why = shrink(fuzzer, case, why)
            found["failures"].append({"number": number, "why": why[:500], "case": case})
        if now - saved > SAVE_S:
            saved = now
            _save(state, found, began, fuzzer)
            if os.getppid() != parent:
                break  # nobody waits for it any more
    _save(state, found, began, fuzzer)


def attempt(check: Callable[[Any], str], case: Any, hard_s: float) -> tuple[str, float]:
    """(why it failed, seconds it took: of the clock, less those in which this process waited for a CPU that others
    had). Of what other processes do for it, all seconds count."""
    began, clock, waited = time.process_time(), time.monotonic(), waited_s()
    signal.setitimer(signal.ITIMER_REAL, hard_s)
    try:
        why = check(case)
    except Stopped:
        why = f"stopped after {hard_s:g} s"
    except Exception as e:
        why = f"{type(e).__name__}: {e}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    spent, elapsed = time.process_time() - began, time.monotonic() - clock
    return why, max(spent, elapsed - (waited_s() - waited))


def waited_s() -> float:
    """How long the threads of this process have waited for a CPU; 0 where the system does not tell."""
    found = 0
    for path in glob("/proc/self/task/*/schedstat"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            found += int(Path(path).read_text().split()[1])
    return found * 1e-9


def stop_case(*_: object) -> None:
    raise Stopped


def shrink(fuzzer: Any, case: Any, why: str, hard_s: float = HARD_S) -> tuple[Any, str]:
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


def _save(state: Path, found: dict[str, Any], began: float, fuzzer: Any) -> None:
    usage = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    found["worst_mib"] = round(max(usage) / 1024, 1)
    found["seconds"] = round(time.monotonic() - began, 1)
    found["of_which"] = dict(getattr(fuzzer, "COUNTED", {}))
    beside = state.with_suffix(".new")
    beside.write_text(json.dumps(found))
    os.replace(beside, state)


# -- all of them ------------------------------------------------------------------------------------------------------
def campaign(names: list[str], seconds: float, seed: int, jobs: int, record: Path, most: int) -> dict[str, Any]:
    """Every fuzzer gets the same share of the time. A record of the same seed is gone on with and added to."""
    held = records.read(record, seed)
    share = seconds * jobs / len(names)
    waiting, running = list(names), {}
    folder = record.parent / f".{record.name}.states"
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob("*.json"):  # of a campaign that was killed
        records.add(held, left.stem, left, 0)
        left.unlink()
    while waiting or running:
        while waiting and len(running) < jobs:
            name = waiting.pop(0)
            state = folder / f"{name}.json"
            start = held["fuzzers"].get(name, {}).get("tried", 0)
            words = ["--worker", name, "--seed", str(seed), "--start", str(start), "--seconds", str(share)]
            command = [sys.executable, "-W", "ignore", str(HERE), *words, "--cases", str(most), "--state", str(state)]
            running[name] = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}), state
        time.sleep(0.2)
        for name, (process, state) in [*running.items()]:
            if process.poll() is not None:
                del running[name]
                records.add(held, name, state, process.returncode)
                state.unlink(missing_ok=True)
                records.write(record, held)
    for left in folder.glob("*"):
        left.unlink()
    folder.rmdir()
    return held


def again(record: Path, seed: int) -> dict[str, Any]:
    """Try every failing case of a record again, with the code of today: what holds now is counted as mended. A case
    that took too long is asked in a process that has answered others of every kind before: in a fresh one it would be
    quick."""
    held = records.read(record, seed)
    signal.signal(signal.SIGALRM, stop_case)
    for name, f in held["fuzzers"].items():
        fuzzer = importlib.import_module(name)
        left, aged = [], False
        for one in f["failures"]:
            if one["why"].startswith("took") and not aged:
                aged = True
                for number in range(AGED):
                    fuzzer.check(case_of(fuzzer, name, seed, number * getattr(fuzzer, "GROUP", 1)))
            cases = [] if one["case"] is None else [one["case"]]
            if one["number"] is not None:
                cases.append(case_of(fuzzer, name, seed, one["number"]))
            if why := next(filter(None, (judged(fuzzer, each)[0] for each in cases)), ""):
                left.append({**one, "why": why[:500]})
            else:
                f["mended"].append({**one, "commit": records.commit()})
        f["failed"] -= len(f["failures"]) - len(left)
        f["failures"] = left
    records.write(record, held)
    return held
