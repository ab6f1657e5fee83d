"""Predict time to first token, time per output token, throughput and memory of a model on a GPU.

MODEL is a bundled name (`chip list models`), a config.json, its folder, or a hub id. Options marked * take several
values with commas: one row for each combination. With `-` as MODEL, scenarios are read as JSON Lines from stdin, one
answer a line; options stand in for the keys a line leaves out.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from chip.engines import recorded
from chip.files import output
from chip.predictor import request
from chip.question import BATCH, DEFAULTS, complete, question_of, scenario_of
from chip.show.cli import grid, lines, options, speculation_text
from chip.show.cli.predict_text import render
from chip.types import ChipError

HELP = "TTFT, TPOT, throughput and memory of a model on a GPU, with what limits it"
MOST_JOBS = 256
EPILOG = """\
  chip predict llama-3.1-8b --gpu h200 --batch 8 --prompt 1024 --output 128
  chip predict llama-3.1-8b --gpu h100,h200 --batch 1,8,32 --csv -
  chip predict ./my-model/config.json --gpu a100 --dtype int4 --json
  chip predict llama-3.1-70b --gpu h100 --tp 4
  chip predict llama-3.1-8b --gpu h200 --batch 8 --speculative eagle3:k=3,task=coding
  chip predict deepseek-v3 --gpu h200 --tp 1 --ep 8 --batch 64
  chip predict llama-3.1-405b --gpu h100 --tp 8 --pp 2
  chip predict qwen3-32b-fp8 --gpu l40s --kv-dtype fp8
  chip predict mixtral-8x7b --gpu sm_90:80GB
  chip predict qwen3-32b --gpu l40s@16GB/s+20us --tp 2
  echo '{"model": "qwen3-8b", "gpu": "l40s", "batch": 4, "prompt": 512, "output": 64}' | chip predict -
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add, count = parser.add_argument, options.Several(int)
    add("model", metavar="MODEL", help="bundled name, config.json, its folder, hub id, or - for stdin")
    add("--batch", type=count, default=[BATCH["batch"]], help=f"* requests submitted at once [{BATCH['batch']}]")
    add("--prompt", type=count, default=[BATCH["prompt"]], help=f"* tokens of each prompt [{BATCH['prompt']}]")
    add("--output", type=count, default=[BATCH["output"]], help=f"* tokens generated for each [{BATCH['output']}]")
    add("--image-tokens", type=int, default=0, metavar="N", help="tokens of an image beside each prompt [none]")
    options.add_question(parser, several=DEFAULTS)
    drafts = "draft and verify: eagle3:k=3,task=coding, mtp:accept=0.85, ngram:..., draft:model=NAME,k=4,accept=0.7"
    add("--speculative", metavar="HOW", default="", help=drafts)
    add("--breakdown", action="store_true", help="every line of both phases, with its work and its bound")
    add("--trace", action="store_true", help="take the operators from what HF really runs (needs torch)")
    options.add_file(parser, "--timeline", help="write a predicted step, host and device, as a Perfetto trace")
    add("--jobs", type=int, default=0, help="of MODEL -, where many lines come at once: processes [one a core]")
    add("--ray", metavar="ADDRESS", default="", help="of MODEL -: a Ray cluster, local or its address")
    options.add_file(parser, "--csv", help="the figures as rows of a CSV file; - for stdout")
    add("--json", action="store_true", help="one JSON document on stdout; of a grid, a list of its rows")


def outputs(args: argparse.Namespace) -> list[output.Output]:
    return [(args.csv, grid.TABLE), (args.timeline, recorded.TRACE)]


def run(args: argparse.Namespace) -> int:
    _check(args)
    values = {"model": args.model, **{name: getattr(args, name) for name in BATCH}, **options.question(args)}
    is_grid = any(len(values[name]) > 1 for name in DEFAULTS)
    if is_grid and (args.trace or args.timeline or args.breakdown or args.speculative or args.model == "-"):
        alone = "--trace, --timeline, --breakdown, --speculative and MODEL -"
        raise ChipError(f"{alone} take one value of each option, without commas")
    if is_grid or args.csv:
        return _grid(args, values)
    values |= {name: values[name][0] for name in DEFAULTS}
    if args.image_tokens:
        values["image_tokens"] = args.image_tokens
    if args.model == "-":
        del values["model"]
        return _lines(values, args.jobs, args.ray)
    if args.trace:
        from chip.lab.measure.meta_forward import answer_traced as answer
    else:
        answer = request.answer
    prediction = answer(values)
    if args.speculative:
        prediction["speculation"] = _speculated(args.speculative, values)
    if args.json:
        print(json.dumps(prediction, indent=1, allow_nan=False))
        for note in prediction["notes"]:
            print(f"note: {note}", file=sys.stderr)
    else:
        print(render(prediction, args.breakdown))
        if args.speculative:
            print(f"\n{speculation_text.render(prediction['speculation'])}")
    if args.speculative:
        print(f"note: {prediction['speculation']['note']}", file=sys.stderr)
    if args.timeline:
        write_timeline(args.timeline, values)
    return 0


def _speculated(text: str, values: dict[str, Any]) -> dict[str, Any]:
    from chip.simulator import speculation

    question = question_of(complete(values)).with_formats()
    scenario, drafts = scenario_of(values, question), speculation.parse(text)
    context = scenario.prompt + scenario.output // 2
    batches = sorted({*speculation.BATCHES, scenario.batch})
    return speculation.document(question, drafts, speculation.speculated(question, drafts, context, batches), context)


def _check(args: argparse.Namespace) -> None:
    if args.speculative and (args.trace or args.timeline or args.csv or args.model == "-"):
        raise ChipError("--speculative does not go with --trace, --timeline, --csv or MODEL -")
    if args.timeline and (args.trace or args.model == "-"):
        raise ChipError("--timeline takes one MODEL, without --trace")
    if args.trace and args.model == "-":
        raise ChipError("--trace takes one MODEL, not scenarios from stdin")
    if not 0 <= args.jobs <= MOST_JOBS:
        raise ChipError(f"--jobs must be between 1 and {MOST_JOBS}, or 0 for one a core, got {args.jobs}")
    if args.csv and (args.trace or args.timeline or args.breakdown or args.json or args.model == "-"):
        raise ChipError("--csv does not go with --json, --breakdown, --trace, --timeline or MODEL -")


def _grid(args: argparse.Namespace, values: dict[str, Any]) -> int:
    rows = grid.rows(values)
    if args.csv:
        output.write(args.csv, grid.to_csv(rows), grid.TABLE)
        if not output.is_stream(args.csv):
            print(f"wrote {args.csv}: {len(rows)} row{'s' if len(rows) > 1 else ''}", file=sys.stderr)
    else:
        print(json.dumps(rows, indent=1, allow_nan=False) if args.json else grid.render(rows))
    failed = sum("error" in row for row in rows)
    if failed:
        print(f"chip predict: {failed} of {len(rows)} rows could not be predicted", file=sys.stderr)
    return 1 if failed else 0


def _lines(values: dict[str, Any], jobs: int, ray: str) -> int:
    if not ray:
        return lines.answer_stdin(lambda question: request.answer_line(question, values), jobs)
    from chip.simulator.jobs import pool_of
    from chip.simulator.sweep import answers

    return lines.write(answers((line for batch in lines.rounds() for line in batch), values, pool_of(jobs, ray)))


def write_timeline(path: Path, values: dict[str, Any]) -> None:
    """The mean decode step, or the prefill where one token is asked for, kernel by kernel."""
    q = question_of(complete(values)).with_formats()
    s, steps = scenario_of(values, q), request.setting(q).steps
    step = steps.engine.decode(s, steps.options) if s.output > 1 else steps.schedule(s).prefill[0][0]
    title = f"{q.model.name} on {q.gpu}, {q.engine}: {s.name}"
    output.write(path, json.dumps(recorded.chrome(steps.timeline(step).events, title)) + "\n", recorded.TRACE)
    print(f"wrote {path}: open it in https://ui.perfetto.dev", file=sys.stderr)
