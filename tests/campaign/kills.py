"""Commands that write, hit at any moment: killed, interrupted, out of room, or with a second writer on the output.

Whatever happens, the output is the old file, the new one or whole lines of both, and the same command run again ends
well. Commands run in forks of a process that has their modules loaded, so that nearly all hits fall into their work;
one in `COLD` is a fresh interpreter instead. One in `WITH_TORCH` is a command that loads torch, on the CPU.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
NAME = "kills"
LIMIT_S = 300.0
WITH_TORCH = 6
COLD = 40
COUNTED: Counter[str] = Counter()
HITS = ("kill", "kill", "kill", "interrupt", "no room", "second writer")
RECORDED = ROOT / "results/h200/replay/bloom-560m-1x5"
CPU = ["--device", "cpu"]
PURE = {
    "validate": (["validate", "{runs}", "-o", "{out}/v.json"], ("v.json",)),
    "validate of one engine": (["validate", "{runs}", "--engine", "hf-graph", "-o", "{out}/v.json"], ("v.json",)),
    "report": (["report", "{runs}", "-o", "{out}/site"], ("site/summary.json",)),
    "explain": (
        ["explain", f"{RECORDED}/trace.json", f"{RECORDED}/replay.json", "--output-dir", "{out}"],
        ("comparison_report.json", "full_model_timing.json"),
    ),
    "fit": (["fit", "{measured}", "--profile", "{profile}", "-o", "{out}/points"], ("points/linear.csv",)),
}  # fmt: skip
TORCH = {
    "bench": (
        ["bench", "{config}", "--engine", "hf-eager", *CPU, "--batch", "1,2,3", "--prompt", "8", "--output", "3",
         "--repeats", "2", "--no-profile", "--force", "-o", "{out}/r.json"], ("r.json",),
    ),
    "profile": (
        ["profile", "linear", "m=8", "n=64", "k=64", *CPU, "--quick", "--force", "-o", "{out}/p.jsonl"], ("p.jsonl",),
    ),
    "capture": (["capture", "{config}", *CPU, "--prompt", "4", "--force", "-o", "{out}/t.json"], ("t.json",)),
    "calibrate": (["calibrate", *CPU, "--only", "host", "--force", "-o", "{out}/c.json"], ("c.json",)),
    "generate": (
        ["generate", "{config}", *CPU, "--requests", "{requests}", "--max-tokens", "4", "-o", "{out}/g.jsonl"],
        ("g.jsonl",),
    ),
}  # fmt: skip
COMMANDS = {**PURE, **TORCH}


@cache
def inputs() -> dict[str, str]:
    sys.path[:0] = [str(ROOT / "tests" / "pure"), str(ROOT / "tests" / "device")]
    from samples import a_run, write_runs
    from tiny_models import save_config

    folder = Path(tempfile.mkdtemp(prefix="campaign-"))
    (folder / "runs").mkdir()
    write_runs(folder / "runs" / "runs.json", *(a_run(batch=b) for b in (1, 2, 4, 8)))
    (folder / "requests.jsonl").write_text("".join(f'{{"tokens": [{i}, 5, 6]}}\n' for i in range(3, 9)))
    made = {"runs": folder / "runs" / "runs.json", "config": save_config(folder / "tiny.json")}
    made |= {"requests": folder / "requests.jsonl", **_measured(folder)}
    return {name: str(path) for name, path in made.items()}


def _measured(folder: Path) -> dict[str, Path]:
    """Measurements of a device that there is not, and its profile."""
    import test_fit

    from chip.files import codec, measurements

    file = folder / "measured.jsonl"
    measurements.start(file, test_fit.DEVICE, {})
    with open(file, "a") as f:
        for op in test_fit.linears(30):
            f.write(json.dumps(codec.to_json(test_fit.measured(op, test_fit.law(op)))) + "\n")
    return {"measured": file, "profile": test_fit.write_profile(folder / "my.json")}


def case(draw: Random) -> dict[str, Any]:
    torch = draw.randrange(WITH_TORCH) == 0
    return {
        "command": draw.choice(sorted(TORCH if torch else PURE)),
        "hit": draw.choice(HITS),
        "at": round(draw.random(), 4),  # of the time or the bytes that the command takes unharmed
        "cold": draw.randrange(COLD) == 0,
    }


def check(case: dict[str, Any]) -> str:
    words, products = COMMANDS[case["command"]]
    folder = Path(tempfile.mkdtemp(prefix="campaign-"))
    try:
        asked = [w.format(out=folder, **inputs()) for w in words]
        whole_s, size = unharmed(case["command"], case["cold"])
        if trouble := hit(case, asked, whole_s, size):
            return trouble
        COUNTED["in commands that load torch"] += case["command"] in TORCH
        COUNTED["in a fresh interpreter"] += case["cold"]
        for name in products:
            if why := broken(folder / name):
                return f"after {case['hit']}: {name} {why}"
        code, err = Process(asked).end()
        if code != 0 or "Traceback" in err:
            return f"again after {case['hit']}: exit code {code}: {err[-200:]}"
        for name in products:
            if not (folder / name).exists() or (why := broken(folder / name)):
                return f"again after {case['hit']}: {name} {why if (folder / name).exists() else 'is not there'}"
        return ""
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Unharmed(NamedTuple):
    seconds: float
    bytes: int


@cache
def unharmed(command: str, cold: bool) -> Unharmed:
    """Of the command when nothing happens to it."""
    words, products = COMMANDS[command]
    folder = Path(tempfile.mkdtemp(prefix="campaign-"))
    try:
        asked = [w.format(out=folder, **inputs()) for w in words]
        if not cold:
            load(asked)
            shutil.rmtree(folder)
            folder.mkdir()
        began = time.monotonic()
        code, err = Process(asked, cold=cold).end()
        assert code == 0, err[-500:]
        return Unharmed(time.monotonic() - began, (folder / products[0]).stat().st_size)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def load(words: list[str]) -> None:
    """Run it here once: what it imports and reads is there in every fork. No thread may be left behind."""
    from chip.show import cli

    if "torch" in sys.modules or words[0] in ("bench", "profile", "capture", "calibrate", "generate"):
        import torch

        torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as err:
        code = cli.main(words)
    assert code == 0, err.getvalue()[-500:]


class Process:
    """`chip WORDS` in a fork, or in a fresh interpreter."""

    def __init__(self, words: list[str], most_bytes: int | None = None, cold: bool = False) -> None:
        self.err = tempfile.TemporaryFile()  # noqa: SIM115
        sys.stdout.flush()
        self.id = os.fork()
        if not self.id:
            self._run(words, most_bytes, cold)

    def _run(self, words: list[str], most_bytes: int | None, cold: bool) -> None:
        """In the child; it never comes back."""
        inside = False
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            os.dup2(os.open(os.devnull, os.O_RDWR), 0)
            os.dup2(0, 1)
            os.dup2(self.err.fileno(), 2)
            if most_bytes is not None:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
            if cold:
                environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
                os.execve(sys.executable, [sys.executable, "-m", "chip", *words], environment)
            from chip.show import cli

            inside = True
            code = cli.main(words)
            inside = False
            os._exit(code)
        except BaseException as e:
            if isinstance(e, KeyboardInterrupt) and not inside:
                os._exit(130)  # it hit this process before or after the command
            os.write(2, f"Traceback: {e!r}".encode())
            os._exit(70)

    def end(self, seconds: float | None = None, by: int = signal.SIGKILL) -> tuple[int, str]:
        """(exit code, stderr), after `seconds` by a signal."""
        if seconds is not None:
            watched = os.pidfd_open(self.id)
            if not select.select([watched], [], [], seconds)[0]:
                os.kill(self.id, by)
            os.close(watched)
        code = os.waitstatus_to_exitcode(os.waitpid(self.id, 0)[1])
        self.err.seek(0)
        return code, self.err.read().decode(errors="replace")


def hit(case: dict[str, Any], words: list[str], whole_s: float, size: int) -> str:
    """Let it happen; what is wrong already, "" otherwise."""
    cold = case["cold"]
    if case["hit"] == "second writer":
        both = [Process(words, cold=cold), Process(words, cold=cold)]
        codes, told = zip(*(p.end() for p in both))
        bad = sorted(codes) not in ([0, 0], [0, 2]) or any("Traceback" in t for t in told)
        return f"two writers ended with {codes}: {told[0][-150:]} | {told[1][-150:]}" if bad else ""
    if case["hit"] == "no room":
        code, err = Process(words, max(1, int(case["at"] * size)), cold).end()
        bad = "Traceback" in err or code not in (0, 1, 2)
        return f"without room: exit code {code}: {err[-200:]}" if bad else ""
    by = signal.SIGKILL if case["hit"] == "kill" else signal.SIGINT
    code, err = Process(words, cold=cold).end(case["at"] * whole_s, by)
    COUNTED["killed or interrupted before the end"] += code != 0
    bad = case["hit"] == "interrupt" and code not in (0, 130, -signal.SIGINT)
    return f"interrupted: exit code {code}: {err[-200:]}" if bad else ""


def broken(path: Path) -> str:
    """Why a product is no whole file; "" where it is one, or is not there."""
    if not path.exists():
        return ""
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".csv":
        return "" if text.endswith("\n") and "\0" not in text else "is cut"
    lines = text.split("\n")[:-1] if path.suffix == ".jsonl" else [text]  # a cut last line is dropped by every reader
    for line in lines:
        try:
            json.loads(line)
        except ValueError as e:
            return f"is broken: {e}"
    return ""
