"""Do the whole chain on this machine: calibrate, profile, bench, kernels, replay, validate, report.

MODEL is a bundled name or a config.json, run with random weights where there are no others. What this machine cannot do
is left out, with the reason. Run the same command again to go on where it stopped; a step that failed is tried again.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from chip.decoders import library
from chip.files import output
from chip.lab import chain as lab
from chip.show.cli import options
from chip.show.cli.text import Column, duration, table
from chip.types import ChipError

HELP = "everything on this machine, from calibration to the report, in one resumable command"
EPILOG = """\
  chip lab                                    # the first GPU, or the CPU where there is none
  chip lab llama-3.1-8b qwen3-8b --full -o h200
  chip lab ./tiny --device cpu --with bench="--repeats 3"
  chip lab --plan                             # only say what would be done
"""
MODELS = {"cuda": ("llama-3.1-8b",), "cpu": ("smollm2-135m",)}
COLUMNS: tuple[Column, ...] = (
    ("step", "step", str), ("result", "result", str), ("time", lambda s: s["seconds"] or None, duration),
    ("command", "command", str), ("why", "why"),
)  # fmt: skip


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("models", metavar="MODEL", nargs="*", help="models to run [llama-3.1-8b; on a CPU smollm2-135m]")
    options.add_file(
        parser, "-o", "--output", metavar="FOLDER", default=Path("lab"), help="for all that is made [%(default)s]"
    )
    options.add(parser, "--device")
    add("--engine", default="", help="engines of bench, with commas [those that this machine has]")
    add("--full", action="store_true", help="full calibration and all suites, not the quick ones")
    add("--only", metavar="STEP", action="append", default=[], help="only this step; may be repeated")
    add("--skip", metavar="STEP", action="append", default=[], help="not this step; may be repeated")
    add("--with", dest="more", metavar="STEP=OPTIONS", action="append", default=[], help="options for a step's command")
    add("--restart", action="store_true", help="do again what is done already")
    add("--plan", action="store_true", help="say what would be done, do nothing")


def outputs(args: argparse.Namespace) -> list[output.Output]:
    return [(args.output, output.FOLDER), (args.output / lab.JOURNAL, lab.SCHEMA)]


def run(args: argparse.Namespace) -> int:
    for name in (*args.only, *args.skip):
        _check(name)
    wanted = _wanted(args)
    steps = lab.plan(wanted)
    steps = [s for s in steps if s.name not in args.skip and (not args.only or s.name in args.only)]
    if not steps:
        raise ChipError("nothing is left to do: --only and --skip leave out every step")
    if args.plan:
        done = [lab.Done(s, "left out" if s.left_out else "to do", why=s.left_out) for s in steps]
    else:
        with output.locked(args.output / lab.JOURNAL):
            done = lab.run(steps, args.output, args.restart, lambda text: print(text, file=sys.stderr, flush=True))
    page = args.output / "site" / "index.html"
    answer = document(done, page)
    print(json.dumps(answer, indent=1) if args.json else render(answer))
    return 1 if any(d.result == "failed" for d in done) else 0


def _check(name: str) -> None:
    if name not in lab.NAMES:
        raise ChipError(f"no step {name!r}; steps: {', '.join(lab.NAMES)}")


def _wanted(args: argparse.Namespace) -> lab.Wanted:
    from chip.lab.run import check as check_engine

    device = args.device
    if not device:
        from chip.lab.measure.device import default_device

        device = default_device()
    more = {}
    for word in args.more:
        name, equals, words = word.partition("=")
        if not equals:
            raise ChipError(f"--with takes STEP=OPTIONS, such as bench='--repeats 3', got {word!r}")
        _check(name)
        try:
            more[name] = shlex.split(words)
        except ValueError as e:
            raise ChipError(f"--with {name}: {e}") from None
    kind = "cpu" if device == "cpu" else "cuda"
    engines = tuple(options.words_of(args.engine))
    for name in engines:
        check_engine(name)
    for name in args.models:
        library.locate(name)
    return lab.Wanted(args.output, device, tuple(args.models) or MODELS[kind], engines, args.full, more)


def document(done: list[lab.Done], page: Path) -> dict[str, Any]:
    steps = [
        {
            "step": d.step.name,
            "command": d.step.command,
            "result": d.result,
            "seconds": round(d.seconds, 3),
            "why": d.why,
        }
        for d in done
    ]
    return {"schema": lab.SCHEMA, "steps": steps, "page": str(page) if page.is_file() else None}


def render(a: dict[str, Any]) -> str:
    shown = table(a["steps"], COLUMNS)
    return f"{shown}\n\nreport: {a['page']}" if a["page"] else shown
