"""Predict time to first token, time per output token, throughput and memory of a model on a GPU.

MODEL is a bundled name (`chip list models`), a config.json, its folder, or a hub id. Options marked * take several
values with commas: one row for each combination. With `-` as MODEL, scenarios are read as JSON Lines from stdin, one
answer a line; options stand in for the keys a line leaves out.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from pathlib import Path
from typing import Any

from chip import api, artifact, timeline
from chip.cli import grid
from chip.cli.predict_text import render
from chip.models import library
from chip.predict import request
from chip.types import ChipError

HELP = "TTFT, TPOT, throughput and memory of a model on a GPU, with what limits it"
LAUNCH = "launch latency of the host, in ns, as `chip bench` measures it [that of the engine's reference host]"
EP = "GPUs that the experts lie on, a multiple of --tp: ep / tp replicas of the attention share them (vLLM)"
GPU = "bundled name, file, or sm_90:80GB; then @16GB/s+20us for a link of your own"
HOST = "the host: a file of `chip calibrate --host` or --engine, or one of `chip list hosts` [reference]"
DTYPE = (
    "weights and what they are multiplied in: auto (as the model's quantization_config says, else bf16); "
    "bf16, fp16, fp32; fp8, w8a8 (int8), nvfp4 with rounded inputs; weight-only int8, int4, mxfp4"
)
KV_DTYPE = "of the KV cache: auto (as the config says), bf16, fp16, fp8"
MOST_LAUNCH_NS = 1e6
MOST_JOBS = 256
EPILOG = """\
  chip predict llama-3.1-8b --gpu h200 --batch 8 --prompt 1024 --output 128
  chip predict llama-3.1-8b --gpu h100,h200 --batch 1,8,32 --csv -
  chip predict ./my-model/config.json --gpu a100 --dtype int4 --json
  chip predict llama-3.1-70b --gpu h100 --tp 4
  chip predict deepseek-v3 --gpu h200 --tp 1 --ep 8 --batch 64
  chip predict llama-3.1-405b --gpu h100 --tp 8 --pp 2
  chip predict qwen3-32b-fp8 --gpu l40s --kv-dtype fp8
  chip predict mixtral-8x7b --gpu sm_90:80GB
  chip predict qwen3-32b --gpu l40s@16GB/s+20us --tp 2
  echo '{"model": "qwen3-8b", "gpu": "l40s", "batch": 4, "prompt": 512, "output": 64}' | chip predict -
"""


def configure(parser: argparse.ArgumentParser) -> None:
    d, add, text, count = request.DEFAULTS, parser.add_argument, grid.Several(str), grid.Several(int)
    add("model", metavar="MODEL", help="bundled name, config.json, its folder, hub id, or - for stdin")
    add("--gpu", type=text, default=[d["gpu"]], help=f"* {GPU} [{d['gpu']}]")
    add("--engine", type=text, default=[d["engine"]], help=f"* one of `chip list engines` [{d['engine']}]")
    add("--batch", type=count, default=[d["batch"]], help=f"* requests submitted at once [{d['batch']}]")
    add("--prompt", type=count, default=[d["prompt"]], help=f"* tokens of each prompt [{d['prompt']}]")
    add("--output", type=count, default=[d["output"]], help=f"* tokens generated for each [{d['output']}]")
    add("--dtype", type=text, default=[d["dtype"]], help=f"* {DTYPE} [{d['dtype']}]")
    add("--kv-dtype", type=text, default=[d["kv_dtype"]], help=f"* {KV_DTYPE} [{d['kv_dtype']}]")
    add("--tp", type=count, default=[d["tp"]], help=f"* GPUs that share each layer (tensor parallel) [{d['tp']}]")
    add("--pp", type=count, default=[d["pp"]], help=f"* stages of a pipeline, each with its layers [{d['pp']}]")
    add("--ep", type=count, default=[d["ep"]], help=f"* {EP} [{d['ep']}]")
    add("--breakdown", action="store_true", help="every line of both phases, with its work and its bound")
    add("--trace", action="store_true", help="take the operators from what HF really runs (needs torch)")
    add("--engine-profile", metavar="FILE", default="", help="terms of `chip calibrate --engine` [those of the GPU]")
    add("--engine-version", metavar="VERSION", default="", help="an older vLLM, such as 0.6: as its steps ran [newest]")
    add("--deep-gemm", action="store_true", help="fp8 in blocks by DeepGEMM's published times [on an H200: CUTLASS's]")
    add("--sdpa", metavar="BACKEND", default="", help="attention backend of hf-eager's prefill: cudnn, flash [cudnn]")
    add("--timeline", metavar="FILE", default="", help="write a predicted step, host and device, as a Perfetto trace")
    add("--launch-ns", metavar="NS", type=float, default=0.0, help=LAUNCH)
    add("--host", metavar="FILE|NAME", default="", help=HOST)
    add("--jobs", type=int, default=0, help="of MODEL -, where many lines come at once: processes [one a core]")
    add("--ray", metavar="ADDRESS", default="", help="of MODEL -: a Ray cluster, local or its address")
    add("--csv", metavar="FILE", default="", help="the figures as rows of a CSV file; - for stdout")
    add("--json", action="store_true", help="one JSON document on stdout; of a grid, a list of its rows")


def run(args: argparse.Namespace) -> int:
    _check(args)
    axes = {name: getattr(args, name) for name in api.AXES}
    is_grid = any(len(values) > 1 for values in axes.values())
    if is_grid and (args.trace or args.timeline or args.breakdown or args.model == "-"):
        raise ChipError("--trace, --timeline, --breakdown and MODEL - take one value of each option, without commas")
    if is_grid or args.csv:
        return _grid(args, axes)
    given = {name: values[0] for name, values in axes.items()}
    options = api.options_of(**_options(args))
    if args.model == "-":
        if args.ray:
            return _over_ray(given, options, args.jobs, args.ray)
        from chip.cli.lines import answer_stdin

        return answer_stdin(lambda question: request.answer_line(question, given, options), args.jobs)
    values = {"model": args.model, **given}
    found = _traced(values) if args.trace else request.answer(values, options)
    if args.json:
        print(json.dumps(found, indent=1, allow_nan=False))
        for note in found["notes"]:
            print(f"note: {note}", file=sys.stderr)
    else:
        print(render(found, args.breakdown))
    if args.timeline:
        write_timeline(Path(args.timeline), values, options)
    return 0


def _check(args: argparse.Namespace) -> None:
    if args.trace and any(_options(args).values()):
        raise ChipError(
            "--trace is of operators alone; --engine-profile, --engine-version, --deep-gemm, --sdpa, --launch-ns and "
            "--host are not"
        )
    if not 0 <= args.launch_ns <= MOST_LAUNCH_NS:  # also what is not a number
        raise ChipError(f"--launch-ns must be between 0 and {MOST_LAUNCH_NS:g} ns, got {args.launch_ns:g}")
    if args.timeline and (args.trace or args.model == "-"):
        raise ChipError("--timeline takes one MODEL, without --trace")
    if args.trace and args.model == "-":
        raise ChipError("--trace takes one MODEL, not scenarios from stdin")
    if not 0 <= args.jobs <= MOST_JOBS:
        raise ChipError(f"--jobs must be between 1 and {MOST_JOBS}, or 0 for one a core, got {args.jobs}")
    if args.csv and (args.trace or args.timeline or args.breakdown or args.json or args.model == "-"):
        raise ChipError("--csv does not go with --json, --breakdown, --trace, --timeline or MODEL -")


def _options(args: argparse.Namespace) -> dict[str, Any]:
    names = ("engine_profile", "engine_version", "deep_gemm", "sdpa", "launch_ns", "host")
    return {name: getattr(args, name) for name in names}


def _grid(args: argparse.Namespace, axes: dict[str, list[Any]]) -> int:
    if args.csv:
        grid.check_csv(Path(args.csv))
    found = grid.rows(args.model, axes, **_options(args))
    if args.csv:
        grid.write_csv(Path(args.csv), found)
        if args.csv != "-":
            print(f"wrote {args.csv}: {len(found)} row{'s' if len(found) > 1 else ''}", file=sys.stderr)
    else:
        print(grid.to_json(found) if args.json else grid.render(found))
    failed = sum("error" in row for row in found)
    if failed:
        print(f"chip predict: {failed} of {len(found)} rows could not be predicted", file=sys.stderr)
    return 1 if failed else 0


def _over_ray(given: dict[str, Any], about: request.Options, jobs: int, ray: str) -> int:
    from chip.simulate.jobs import pool_of
    from chip.simulate.sweep import answers

    failed = 0
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    for line in answers(sys.stdin, given, about, pool_of(jobs, ray)):
        failed += line.startswith('{"error"')
        print(line)
    if failed:
        print(f"chip: {failed} line{'s' if failed > 1 else ''} could not be answered", file=sys.stderr)
    return 1 if failed else 0


def _traced(values: dict[str, Any]) -> dict[str, Any]:
    from chip.measure.meta_forward import answer_traced

    return answer_traced(values)


def write_timeline(path: Path, values: dict[str, Any], options: request.Options) -> None:
    """The mean decode step, or the prefill where one token is asked for, kernel by kernel."""
    decoder = library.find(values["model"])
    s = request.resolved(decoder, request.scenario_of(values), values["engine"])
    held = request.setting(decoder, values["gpu"], values["engine"], s.dtype, s.tp, options, s.kv_dtype, s.ep)
    engine, memory = held.steps.engine, held.roof.memory_bytes
    played = held.steps.timeline(engine.decode(s, memory) if s.output > 1 else engine.prefill(s, memory)[0][0])
    title = f"{decoder.name} on {values['gpu']}, {values['engine']}: {s.name}"
    artifact.write_text(path, json.dumps(timeline.chrome(played.events, title)) + "\n")
    print(f"wrote {path}: open it in https://ui.perfetto.dev", file=sys.stderr)
