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

from chip import cli, lab, output
from chip.cli.text import duration, table
from chip.models import library
from chip.types import ChipError

HELP = "everything on this machine, from calibration to the report, in one resumable command"
EPILOG = """\
  chip lab                                    # the first GPU, or the CPU where there is none
  chip lab llama-3.1-8b qwen3-8b --full -o h200
  chip lab ./tiny --device cpu --with bench="--repeats 3"
  chip lab --plan                             # only say what would be done
"""
MODELS = {"cuda": ("llama-3.1-8b",), "cpu": ("smollm2-135m",)}


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("models", metavar="MODEL", nargs="*", help="models to run [llama-3.1-8b; on a CPU smollm2-135m]")
    add(
        "-o",
        "--output",
        metavar="FOLDER",
        type=output.path,
        default=Path("lab"),
        help="for all that is made [%(default)s]",
    )
    add("--device", default="", help="cuda:N or cpu [the first GPU, else the CPU]")
    add("--engine", default="", help="engines of bench, with commas [those that this machine has]")
    add("--full", action="store_true", help="full calibration and all suites, not the quick ones")
    add("--only", metavar="STEP", action="append", default=[], help="only this step; may be repeated")
    add("--skip", metavar="STEP", action="append", default=[], help="not this step; may be repeated")
    add("--with", dest="more", metavar="STEP=OPTIONS", action="append", default=[], help="options for a step's command")
    add("--restart", action="store_true", help="do again what is done already")
    add("--plan", action="store_true", help="say what would be done, do nothing")
    add("--json", action="store_true", help="one JSON document on stdout")


def outputs(args: argparse.Namespace) -> list[output.Output]:
    return [(args.output, output.FOLDER), (args.output / lab.JOURNAL, lab.SCHEMA)]


def run(args: argparse.Namespace) -> int:
    for name in (*args.only, *args.skip):
        _check(name)
    wanted = _wanted(args)
    steps = lab.plan(wanted, cli.commands())
    steps = [s for s in steps if s.name not in args.skip and (not args.only or s.name in args.only)]
    if not steps:
        raise ChipError("nothing is left to do: --only and --skip leave out every step")
    if args.plan:
        done = [lab.Done(s, "left out" if s.left_out else "to do", why=s.left_out) for s in steps]
    else:
        with output.locked(args.output / lab.JOURNAL):
            done = lab.run(steps, args.output, args.restart, lambda text: print(text, file=sys.stderr, flush=True))
    page = args.output / "site" / "index.html"
    print(json.dumps(document(done, page), indent=1) if args.json else render(done, page))
    return 1 if any(d.result == "failed" for d in done) else 0


def _check(name: str) -> None:
    if name not in lab.NAMES:
        raise ChipError(f"no step {name!r}; steps: {', '.join(lab.NAMES)}")


def _wanted(args: argparse.Namespace) -> lab.Wanted:
    from chip.run import check as check_engine

    device = args.device
    if not device:
        from chip.measure.device import default_device

        device = default_device()
    more = {}
    for word in args.more:
        name, equals, options = word.partition("=")
        if not equals:
            raise ChipError(f"--with takes STEP=OPTIONS, such as bench='--repeats 3', got {word!r}")
        _check(name)
        try:
            more[name] = shlex.split(options)
        except ValueError as e:
            raise ChipError(f"--with {name}: {e}") from None
    kind = "cpu" if device == "cpu" else "cuda"
    engines = tuple(e.strip() for e in args.engine.split(",") if e.strip())
    for name in engines:
        check_engine(name)
    for name in args.models:
        library.locate(name)
    return lab.Wanted(args.output, device, tuple(args.models) or MODELS[kind], engines, args.full, more)


def document(done: list[lab.Done], page: Path) -> dict[str, object]:
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


def render(done: list[lab.Done], page: Path) -> str:
    rows = [
        {
            "step": d.step.name,
            "result": d.result,
            "time": duration(d.seconds) if d.seconds else "",
            "command": d.step.command,
            "why": d.why,
        }
        for d in done
    ]
    shown = table(rows, right=("time",), keep=("step", "result", "command"))
    return f"{shown}\n\nreport: {page}" if page.is_file() else shown
