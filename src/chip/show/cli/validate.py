"""Compare predictions with real runs: errors by class, engine and metric, and what each stage of the predictor buys.

RUNS are files that `chip bench` wrote, or folders of them. A run that a prediction was made from is refused: every
artifact names its inputs. Results of vllm bench serve, sglang.bench_serving, AIPerf, guidellm and InferenceX are
read as they are.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chip.engines import options as engine_options
from chip.engines import profile as engine_profile
from chip.files import artifact, output
from chip.hardware import gpus
from chip.predictor.stages import Stage
from chip.show.cli import ledger, options
from chip.show.cli import validate_field as field
from chip.show.cli.text import once
from chip.show.cli.validate_text import render, render_suite, render_traffic
from chip.show.report.figure_file import output_of
from chip.types import ChipError
from chip.validate import clients, judge, peers, public, suites
from chip.validate.document import document
from chip.validate.points import Point
from chip.validate.unseen import Unseen, leave_one_model_out
from chip.validate.unseen import read as read_measurements

if TYPE_CHECKING:
    from chip.simulator.recorded import TrafficRun

HELP = "predictions against real runs: errors by engine, metric and model, with and without each stage"
EPILOG = """\
  chip validate llm.json --points
  chip validate my-bench-serve.json --gpu h200 --model llama-3.1-8b
  chip validate results/h200/runs --latency-known
  chip validate results/h200/runs --peers benchmarks/peers/answers.json --plot scatter.png
  chip validate llm.json --gpu my-gpu.json --engine hf-eager --ablate --json
  chip validate llm.json --gpu my-gpu.json --leave-one-model-out tables.jsonl
  chip validate llm.json --engine-profile h200.vllm.json
  chip validate results/h200/runs --engine-profile results/h200/engines
  chip validate --by-operator results/h200/traces/vllm
  chip validate --suite argonne All_results.csv --gpu h100
  chip validate --suite silicon --engine vllm --jobs 0
"""
TERMS = (
    "terms of `chip calibrate --engine` on the host of the runs [those of the GPU]; may be repeated. Of a folder, "
    "NAME.terms.json for the runs in NAME.json"
)
OF_RUNS = ".terms.json"
KIND = output.Kind(
    "a validation", re.compile(rb'\s*\{\s*"schema"\s*:\s*"chip\.(public_|traffic_|client_)?validation/\d')
)
SUITE = (
    "RUNS is what others published, as they publish it: argonne (All_results.csv), llmservingsim (a folder), silicon "
    "(silicon_sample.csv, or the folder of the package that holds it) [the installed package's]"
)
AGAINST = "with --suite silicon: also ask aiconfigurator, as it is installed, the same rows"
LATENCY = "also predict each run at the launch latency that was measured beside it, as a second table"
LEAVE_OUT = "what the points were made from; each model is then also predicted from points without its shapes"


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("runs", metavar="RUNS", nargs="*", help="files of `chip bench`, or folders of them")
    add("--gpu", default="", help="bundled name, profile or datasheet file [the bundled GPU that the runs name]")
    add("--model", default="", help="of a benchmarking client's result: the model that it calls otherwise")
    add("--tp", type=int, default=0, help="of such a result: GPUs that share each layer [as it says, else 1]")
    add("--dtype", default="", help="of such a result: the format of the weights [as it says, else auto]")
    add("--host", metavar="FILE|NAME", default="", help="of such a result: the host that served [reference]")
    options.add(parser, "--engine-setting")
    add("--engine", default="", help="only runs of this engine, such as vllm [all]")
    add("--engine-profile", metavar="FILE", action="append", default=[], help=TERMS)
    add("--suite", metavar="NAME", default="", help=SUITE)
    add("--against", metavar="NAME", default="", help=AGAINST)
    options.add(parser, "--jobs")
    add("--by-operator", action="store_true", help="RUNS are traces of `chip capture`: errors role by role, the ledger")
    add("--ablate", action="store_true", help="the same errors stage by stage, from the datasheet to everything")
    add("--leave-one-model-out", metavar="MEASUREMENTS", action="append", default=[], help=LEAVE_OUT)
    add("--latency-known", action="store_true", help=LATENCY)
    add("--points", action="store_true", help="also every single point; --json always has them")
    add("--peers", metavar="FILE", default="", help="recorded answers of other predictors, into the same table")
    options.add_file(parser, "--plot", help="draw predicted against measured into this .png, .svg or .pdf")
    options.add_file(parser, "-o", "--output", help="also write the JSON document as an artifact")


def outputs(args: argparse.Namespace) -> list[output.Output]:
    return [(args.output, KIND), output_of(args.plot)]


def run(args: argparse.Namespace) -> int:
    if not args.runs and args.suite != suites.SILICON:
        raise ChipError("give files of runs; `chip bench -o llm.json` makes them")
    if args.by_operator:
        return ledger.run(args)
    if args.suite == suites.SILICON:
        return field.run(args)
    if args.suite:
        return _published(args)
    if of_clients := [Path(name) for name in args.runs if clients.is_foreign(Path(name))]:
        return _clients(args, of_clients)
    if traffic_files := _traffic_files(args.runs):
        return _traffic(args, traffic_files)
    sources = judge.read(Path(f) for f in args.runs)
    gpu = judge.gpu_of(sources, args.gpu)
    answers = peers.read(Path(args.peers)) if args.peers else None
    terms = _terms(args.engine_profile, sources, args.engine)
    validation = judge.judge(sources, gpu, args.engine, terms=terms)
    known = judge.judge(sources, gpu, args.engine, terms=terms, latency_known=True) if args.latency_known else None
    if not validation.points:
        raise ChipError(f"no run could be judged; the first: {validation.left_out[0]}")
    theirs = _asked(answers, sources, gpu, args.engine) if answers else []
    stages = [judge.judge(sources, gpu, args.engine, stage, terms) for stage in Stage] if args.ablate else []
    unseen = _unseen(args.leave_one_model_out, validation)
    judged = document(validation, theirs, stages, unseen, known)
    print(json.dumps(judged, indent=1) if args.json else render(judged, unseen, args.points))
    _tell_left_out(validation.left_out)
    inputs = [f["id"] for f in judged["files"]] + [u["id"] for u in judged["rests_on"]]
    _write(args.output, judged, inputs)
    if args.plot:
        from chip.show.report import scatter_plot

        scatter_plot.save(args.plot, validation.points, f"{validation.gpu}: predicted against measured")
        print(f"drawn: {args.plot}", file=sys.stderr)
    return 0


def _published(args: argparse.Namespace) -> int:
    if len(args.runs) > 1:
        raise ChipError(f"--suite {args.suite} takes one file or folder, got {len(args.runs)}")
    if args.suite == suites.TRAFFIC:
        return _published_traffic(args)
    judged = public.judge(suites.read(args.suite, Path(args.runs[0])), args.gpu)
    answer = public.document(judged)
    print(json.dumps(answer, indent=1) if args.json else render_suite(answer))
    for rows, reason in judged.left_out:
        print(f"left out: {rows} rows: {reason}", file=sys.stderr)
    _write(args.output, answer)
    return 0


def _published_traffic(args: argparse.Namespace) -> int:
    from chip.validate import published_traffic

    runs = suites.read_traffic(Path(args.runs[0]))
    counted = [f"{rows} rows: {reason}" for rows, reason in runs.left_out]
    if not runs.runs:
        raise ChipError(f"no run could be judged; the first: {counted[0]}")
    if not args.json:
        print(
            f"{len(runs.runs)} published runs of {published_traffic.SOURCE} (MIT)\nmind: {published_traffic.CAUTION}\n"
        )
    return _judged_traffic(args, runs.runs, counted, published_traffic.TARGETS)


def _clients(args: argparse.Namespace, files: Sequence[Path]) -> int:
    """What benchmarking clients wrote, against simulations of the server."""
    from chip.show.cli import client_text
    from chip.validate import client_errors

    if len(files) < len(args.runs):
        raise ChipError(f"{files[0]} is of a benchmarking client, the others of chip: judge them by two commands")
    system = {
        name: getattr(args, name) for name in ("model", "gpu", "engine", "tp", "dtype", "host") if getattr(args, name)
    }
    if args.engine_setting:
        system["engine_settings"] = engine_options.parse(args.engine_setting)
    judged = [client_errors.judge(result, system) for path in files for result in clients.read(path)]
    errors = client_errors.document(judged)
    print(json.dumps(errors, indent=1) if args.json else client_text.render(errors))
    for note in dict.fromkeys(note for j in judged for note in j.notes):
        print(f"note: {note}", file=sys.stderr)
    _write(args.output, errors)
    return 0


def _traffic_files(names: Sequence[str]) -> list[Path]:
    """Files of served traffic among those given; they are not judged together with static batches."""
    from chip.simulator.recorded import is_traffic

    files = [f for name in names for f in (sorted(Path(name).glob("*.json")) if Path(name).is_dir() else [Path(name)])]
    recorded = [f for f in files if is_traffic(f)]
    if recorded and len(recorded) < len(files):
        other = next(f for f in files if f not in recorded)
        raise ChipError(f"{other} holds batches and {recorded[0]} live traffic: judge them by two commands")
    return recorded


def _traffic(args: argparse.Namespace, files: Sequence[Path]) -> int:
    from chip.simulator import recorded
    from chip.validate.traffic import TARGETS

    for option in ("ablate", "latency_known", "points", "leave_one_model_out", "peers", "plot", "engine_profile"):
        if getattr(args, option):
            raise ChipError(f"--{option.replace('_', '-')} is of static batches; {files[0]} holds live traffic")
    read = [recorded.read(f) for f in files]
    return _judged_traffic(args, [run for _, runs in read for run in runs.runs], (), TARGETS, [a.id for a, _ in read])


def _judged_traffic(
    args: argparse.Namespace, runs: Sequence[TrafficRun], counted: Sequence[str],
    targets: Mapping[str, float | None], inputs: Sequence[str] = (),
) -> int:  # fmt: skip
    from chip.validate import traffic

    points, left_out = traffic.judge_runs(runs, args.gpu)
    left_out = [*counted, *left_out]
    if not points:
        raise ChipError(f"no run could be judged; the first: {left_out[0] if left_out else 'the files hold none'}")
    answer = traffic.document(points, left_out, targets)
    print(json.dumps(answer, indent=1) if args.json else render_traffic(answer))
    _tell_left_out(left_out)
    _write(args.output, answer, inputs)
    return 0


def _tell_left_out(lines: Iterable[str]) -> None:
    """Runs that have the same reason are told of once."""
    parts = [line.partition(": ") for line in lines]
    for reason, these in once((which, reason) for which, _, reason in parts).items():
        more = f" and {len(these) - 1} more" if len(these) > 1 else ""
        print(f"left out: {these[0]}{more}: {reason}", file=sys.stderr)


def _terms(names: Sequence[str], sources: Sequence[judge.RunsSource], engine: str) -> judge.Terms:
    judged = {(s.path.stem, r.engine) for s in sources for r in s.ok if engine in ("", r.engine)}
    paths: dict[tuple[str, str], str] = {}
    for name in names:
        path = Path(name)
        if path.is_dir():
            inside = {f.name.removesuffix(OF_RUNS): f for f in sorted(path.glob(f"*{OF_RUNS}"))}
            each = {(stem, engine_profile.read(f).engine): str(f) for stem, f in inside.items()}
            used = {key: f for key, f in each.items() if key in judged}
            if not used:
                raise ChipError(
                    f"--engine-profile {name}: the folder has no NAME{OF_RUNS} for any file of runs NAME.json"
                )
            paths.update(used)
            continue
        engine_of = engine_profile.read(path).engine
        if engine_of not in {who for _, who in judged}:
            raise ChipError(f"--engine-profile {name} is of {engine_of}, of which there is no run to judge")
        paths["", engine_of] = name
    return paths


def _asked(answers: peers.Answers, sources: Sequence[judge.RunsSource], gpu: str, engine: str) -> list[Point]:
    points = [p for p in peers.judge(answers, sources, gpus.find(gpu).name) if engine in ("", p.engine)]
    if not points:
        print("no peer was asked for any of these runs: benchmarks/peers/record.py asks them", file=sys.stderr)
    return points


def _unseen(files: Sequence[str], validation: judge.Validation) -> list[Unseen]:
    """Some seconds of fitting for each model."""
    if not files:
        return []
    measured = read_measurements((Path(f) for f in files), validation.gpu)
    with options.extra("--leave-one-model-out"):
        from chip.lab.measure.fit import fit
    profile = gpus.find(validation.gpu).profile
    assert profile
    done = []
    for one in leave_one_model_out(validation, measured, lambda rest: fit(rest, profile)[0]):
        print(f"{one.model}: fitted without {one.left_out} of {len(measured)} measurements", file=sys.stderr)
        done.append(one)
    return done


def _write(path: Path | None, answer: dict[str, Any], inputs: Sequence[str] = ()) -> None:
    if path:
        data = {k: v for k, v in answer.items() if k != "schema"}
        artifact.write(path, artifact.new(answer["schema"], data, {}, inputs))
        print(f"wrote {path}", file=sys.stderr)
