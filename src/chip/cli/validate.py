"""Hold predictions against real runs: every metric of every run, errors by class, and what they owe to each stage.

RUNS are files that `chip bench` wrote, or folders of them. A run that a prediction was made from is refused: every
artifact names its inputs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chip import artifact, engine_profile, hardware, output
from chip.cli.validate_text import render
from chip.predict.stages import Stage
from chip.types import ChipError
from chip.validate import judge, peers
from chip.validate.document import SCHEMA, document
from chip.validate.points import Point
from chip.validate.unseen import Unseen, leave_one_model_out
from chip.validate.unseen import read as read_measurements

HELP = "predictions against real runs: errors by engine, metric and model, with and without each stage"
EPILOG = """\
  chip validate llm.json
  chip validate results/h200/runs --peers benchmarks/peers/answers.json --plot scatter.png
  chip validate llm.json --gpu my-gpu.json --engine hf-eager --ablate --json
  chip validate llm.json --gpu my-gpu.json --leave-one-model-out tables.jsonl
  chip validate llm.json --engine-profile h200.vllm.json
  chip validate results/h200/runs --engine-profile results/h200/engines
"""
TERMS = (
    "terms of `chip calibrate --engine` on the host of the runs [those of the GPU]; may be repeated. Of a folder, "
    "NAME.terms.json for the runs in NAME.json"
)
OF_RUNS = ".terms.json"
LEAVE_OUT = "what the operator tables were fitted on; each model is then also predicted from a fit without its shapes"


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("runs", metavar="RUNS", nargs="*", help="files of `chip bench`, or folders of them")
    add("--gpu", default="", help="bundled name, profile or datasheet file [the bundled GPU that the runs name]")
    add("--engine", default="", help="only runs of this engine: vllm, hf-eager or hf-graph [all]")
    add("--engine-profile", metavar="FILE", action="append", default=[], help=TERMS)
    add("--ablate", action="store_true", help="the same errors stage by stage, from the datasheet to everything")
    add("--leave-one-model-out", metavar="MEASUREMENTS", action="append", default=[], help=LEAVE_OUT)
    add("--peers", metavar="FILE", default="", help="recorded answers of other predictors, into the same table")
    add("--plot", metavar="FILE", default="", help="draw predicted against measured into this .png, .svg or .pdf")
    add("-o", "--output", metavar="FILE", default="", help="also write the JSON document as an artifact")
    add("--force", action="store_true", help="let -o replace a file of another kind; never an input")
    add("--json", action="store_true", help="one JSON document on stdout")


def run(args: argparse.Namespace) -> int:
    if not args.runs:
        raise ChipError("give files of runs; `chip bench -o llm.json` makes them")
    sources = judge.read(Path(f) for f in args.runs)
    if args.output:
        given = (*(s.path for s in sources), args.peers, args.gpu, *args.engine_profile, *args.leave_one_model_out)
        output.check(Path(args.output), SCHEMA, given, args.force)
    gpu = judge.gpu_of(sources, args.gpu)
    answers = peers.read(Path(args.peers)) if args.peers else None
    terms = _terms(args.engine_profile, sources, args.engine)
    found = judge.judge(sources, gpu, args.engine, terms=terms)
    if not found.points:
        raise ChipError(f"no run could be judged; the first: {found.left_out[0]}")
    theirs = _asked(answers, sources, gpu, args.engine) if answers else []
    stages = [judge.judge(sources, gpu, args.engine, stage, terms) for stage in Stage] if args.ablate else []
    unseen = _unseen(args.leave_one_model_out, found)
    made = document(found, theirs, stages, unseen)
    print(json.dumps(made, indent=1) if args.json else render(found, theirs, stages, unseen))
    for line in found.left_out:
        print(f"left out: {line}", file=sys.stderr)
    if args.output:
        _write(Path(args.output), made, args.force)
        print(f"wrote {args.output}", file=sys.stderr)
    if args.plot:
        from chip.report import scatter_plot

        scatter_plot.save(Path(args.plot), found.points, f"{found.gpu}: predicted against measured")
        print(f"drawn: {args.plot}", file=sys.stderr)
    return 0


def _terms(given: Sequence[str], sources: Sequence[judge.Source], engine: str) -> judge.Terms:
    judged = {(s.path.stem, r.engine) for s in sources for r in s.ok if engine in ("", r.engine)}
    found: dict[tuple[str, str], str] = {}
    for name in given:
        path = Path(name)
        if path.is_dir():
            inside = {f.name.removesuffix(OF_RUNS): f for f in sorted(path.glob(f"*{OF_RUNS}"))}
            each = {(stem, engine_profile.read(f).engine): str(f) for stem, f in inside.items()}
            used = {key: f for key, f in each.items() if key in judged}
            if not used:
                raise ChipError(
                    f"--engine-profile {name}: the folder has no NAME{OF_RUNS} for any file of runs NAME.json"
                )
            found.update(used)
            continue
        of = engine_profile.read(path).engine
        if of not in {who for _, who in judged}:
            raise ChipError(f"--engine-profile {name} is of {of}, of which there is no run to judge")
        found["", of] = name
    return found


def _asked(answers: peers.Answers, sources: Sequence[judge.Source], gpu: str, engine: str) -> list[Point]:
    found = [p for p in peers.judge(answers, sources, hardware.find(gpu).name) if engine in ("", p.engine)]
    if not found:
        print("no peer was asked for any of these runs: benchmarks/peers/record.py asks them", file=sys.stderr)
    return found


def _unseen(files: Sequence[str], found: judge.Validation) -> list[Unseen]:
    """Some seconds of fitting for each model."""
    if not files:
        return []
    held = read_measurements((Path(f) for f in files), found.gpu)
    try:
        from chip.measure.fit import fit
    except ImportError as e:
        raise ChipError(f"--leave-one-model-out needs {e.name}: pip install 'chip-inference[measure]'") from None
    profile = hardware.find(found.gpu).profile
    assert profile
    done = []
    for one in leave_one_model_out(found, held, lambda kept: fit(kept, profile)[0]):
        print(f"{one.model}: fitted without {one.left_out} of {len(held)} measurements", file=sys.stderr)
        done.append(one)
    return done


def _write(path: Path, made: dict[str, Any], force: bool) -> None:
    inputs = [f["id"] for f in made["files"]] + [u["id"] for u in made["rests_on"]]
    data = {k: v for k, v in made.items() if k != "schema"}
    artifact.write(path, artifact.new(SCHEMA, data, {}, inputs), force=force)
