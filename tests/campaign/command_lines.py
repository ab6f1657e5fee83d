"""Command lines of the commands that need no device: an exit code of 0, 1 or 2, one line of error, no traceback."""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
from pathlib import Path
from random import Random
from typing import Any

from chip.show import cli

NAME = "command lines"
LIMIT_S = 10.0  # a report is a second's work
PURE = ("predict", "estimate", "list", "show", "roofline", "compare", "validate", "explain", "report", "fit", "lab")
WORDS = (
    "gpt2", "llama-3.1-8b", "h200", "a100", "vllm", "hf-eager", "linear", "m=8", "n=64", "k=64", "models", "gpus", "",
    "-1", "0", "1", "8", "1e9", "999999999999", "nan", "x" * 300, "a/b", "..", ".", "/dev/null", "/", "a\0b", "\x1b[1m",
    "ü", "\udcff", "{runs}", "{config}", "{profile}", "{folder}", "{missing}", "{fifo}", "sm_90:80GB", "bf16", "int4",
    "fp3", "5%", "=", "a=b",
)  # fmt: skip
FOLDER = Path(tempfile.mkdtemp(prefix="campaign-")) / "in"  # with nothing beside it: ".." is a word too
FOLDER.mkdir()


def case(draw: Random) -> list[str]:
    command = draw.choice((*PURE, *PURE, "nothing", "", "help"))
    words = [command] if command not in ("",) else []
    options: list[str] = []
    if command in PURE:
        options = sorted(cli.parser(command)._option_string_actions)
    for _ in range(draw.randrange(7)):
        word = draw.choice(options) if options and draw.random() < 0.45 else draw.choice(WORDS)
        words.append(word if draw.random() < 0.95 else word[: draw.randrange(len(word) + 1)])
    if command == "lab":
        words.append("--plan")
    if command == "report":  # an explorer of all models is minutes of work
        words = [w for word in words for w in ((word, "gpt2") if _means_explorer(word) else (word,))]
    return words


def _means_explorer(word: str) -> bool:
    return len(word) > len("--e") and "--explorer".startswith(word)


def prepare() -> dict[str, str]:
    """Files that words stand for."""
    import os
    import sys

    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "pure"))
    from samples import a_run, write_runs

    from chip.decoders import library
    from chip.hardware.gpus import PROFILES

    write_runs(FOLDER / "runs.json", a_run())
    (FOLDER / "config.json").write_bytes((library.CONFIGS / "gpt2.json").read_bytes())
    (FOLDER / "profile.json").write_bytes((PROFILES / "h200.json").read_bytes())
    if not (FOLDER / "fifo").exists():
        os.mkfifo(FOLDER / "fifo")
    os.chdir(FOLDER)
    names = ("runs.json", "config.json", "profile.json", "missing", "fifo")
    return {"{" + n.split(".")[0] + "}": str(FOLDER / n) for n in names} | {"{folder}": str(FOLDER / "out")}


_files: dict[str, str] = {}


def check(case: list[str]) -> str:
    if not _files:
        _files.update(prepare())
    words = [_files.get(w, w) for w in case]
    return run(words)


def run(words: list[str]) -> str:
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        stdin, __import__("sys").stdin = __import__("sys").stdin, io.StringIO("")
        try:
            code = cli.main(words)
        except SystemExit as e:
            code = e.code
        finally:
            __import__("sys").stdin = stdin
    told = err.getvalue()
    if code not in (0, 1, 2, None):
        return f"exit code {code}: {told[-200:]}"
    if "Traceback" in told or "fault of chip's own" in told:
        return told[-200:]
    if code == 2 and words and len(told.strip().splitlines()) > 3:
        return f"the refusal has {len(told.splitlines())} lines"
    if "\x1b" in out.getvalue() + told or re.search(r"\bNaN\b", out.getvalue()):
        return "a control character or NaN was printed"
    return ""


def smaller(case: list[str]) -> list[list[str]]:
    return [case[:i] + case[i + 1 :] for i in range(len(case))]
