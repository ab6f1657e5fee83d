"""Predict time to first token, time per output token, throughput and memory of a model on a GPU.

MODEL is a bundled name (`chip list models`), a config.json, its folder, or a hub id. With `-` as MODEL, scenarios are
read as JSON Lines from stdin, one answer a line: that is a sweep. Options stand in for the keys a line leaves out.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from pathlib import Path
from typing import Any

from chip import artifact, timeline
from chip.cli.lines import answer_stdin
from chip.cli.text import duration, gib, number, percent, si, table
from chip.models import library
from chip.predict import request
from chip.types import ChipError

HELP = "TTFT, TPOT, throughput and memory of a model on a GPU, with what limits it"
LAUNCH = "what the host takes to launch a small kernel: launch_ns of a run on it [that of the engine's terms]"
MOST_LAUNCH_NS = 1e6
EPILOG = """\
  chip predict llama-3.1-8b --gpu h200 --batch 8 --prompt 1024 --output 128
  chip predict ./my-model/config.json --gpu a100 --dtype int4 --json
  chip predict llama-3.1-70b --gpu h100 --tp 4
  chip predict qwen3-32b-fp8 --gpu l40s --kv-dtype fp8
  chip predict mixtral-8x7b --gpu sm_90:80GB
  echo '{"model": "qwen3-8b", "gpu": "l40s", "batch": 4, "prompt": 512, "output": 64}' | chip predict -
"""


def configure(parser: argparse.ArgumentParser) -> None:
    d = request.DEFAULTS
    parser.add_argument("model", metavar="MODEL", help="bundled name, config.json, its folder, hub id, or - for stdin")
    parser.add_argument(
        "--gpu", default=d["gpu"], help="bundled name, profile or datasheet file, or sm_90:80GB [%(default)s]"
    )
    parser.add_argument("--engine", default=d["engine"], help="vllm, hf-eager or hf-graph [%(default)s]")
    parser.add_argument("--batch", type=int, default=d["batch"], help="requests submitted at once [%(default)s]")
    parser.add_argument("--prompt", type=int, default=d["prompt"], help="tokens of each prompt [%(default)s]")
    parser.add_argument("--output", type=int, default=d["output"], help="tokens generated for each [%(default)s]")
    parser.add_argument(
        "--dtype",
        default=d["dtype"],
        help="weights and what they are multiplied in: auto (as the model's quantization_config says, else bf16); "
        "bf16, fp16, fp32; fp8, w8a8 (int8), nvfp4 with rounded inputs; weight-only int8, int4, mxfp4 [%(default)s]",
    )
    parser.add_argument(
        "--kv-dtype",
        default=d["kv_dtype"],
        help="of the KV cache: auto (as the config says), bf16, fp16, fp8 [%(default)s]",
    )
    parser.add_argument(
        "--tp", type=int, default=d["tp"], help="GPUs that share each layer (tensor parallel) [%(default)s]"
    )
    parser.add_argument(
        "--trace", action="store_true", help="take the operators from what HF really runs (needs torch)"
    )
    parser.add_argument(
        "--engine-profile", metavar="FILE", default="", help="terms of `chip calibrate --engine` [those of the GPU]"
    )
    parser.add_argument(
        "--sdpa", metavar="BACKEND", default="", help="what hf-eager's prefill attends with: cudnn or flash [cudnn]"
    )
    parser.add_argument(
        "--timeline", metavar="FILE", default="", help="write a predicted step, host and device, as a Perfetto trace"
    )
    parser.add_argument("--launch-ns", metavar="NS", type=float, default=0.0, help=LAUNCH)
    parser.add_argument("--jobs", type=int, default=1, help="of MODEL -: processes, 0 for one a core [%(default)s]")
    parser.add_argument("--ray", metavar="ADDRESS", default="", help="of MODEL -: a Ray cluster, local or its address")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def run(args: argparse.Namespace) -> int:
    if args.trace and (args.engine_profile or args.sdpa or args.launch_ns):
        raise ChipError("--trace is of operators alone; --engine-profile, --sdpa and --launch-ns do not go with it")
    if not 0 <= args.launch_ns <= MOST_LAUNCH_NS:  # also what is not a number
        raise ChipError(f"--launch-ns must be between 0 and {MOST_LAUNCH_NS:g} ns, got {args.launch_ns:g}")
    about = request.Options(engine_file=args.engine_profile, sdpa=args.sdpa, launch_ns=args.launch_ns)
    if args.timeline and (args.trace or args.model == "-"):
        raise ChipError("--timeline takes one MODEL, without --trace")
    if args.model == "-":
        if args.trace:
            raise ChipError("--trace takes one MODEL, not scenarios from stdin")
        given = {k: getattr(args, k) for k in request.DEFAULTS}  # options stand in for keys that a line leaves out
        if args.jobs != 1 or args.ray:
            return _spread(given, about, args.jobs, args.ray)
        return answer_stdin(lambda question: request.answer_line(question, given, about))
    values = {"model": args.model, **{k: getattr(args, k) for k in request.DEFAULTS}}
    found = _traced(values) if args.trace else request.answer(values, about)
    if args.json:
        print(json.dumps(found, indent=1, allow_nan=False))
    else:
        print(render(found))
    if args.timeline:
        write_timeline(Path(args.timeline), values, about)
    for note in found["notes"]:
        print(f"note: {note}", file=sys.stderr)
    return 0


def _spread(given: dict[str, Any], about: request.Options, jobs: int, ray: str) -> int:
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
    from chip.measure.trace import answer_traced

    return answer_traced(values)


def write_timeline(path: Path, values: dict[str, Any], options: request.Options) -> None:
    """One decode step (the first after the prompt), or the prefill where one token is asked for, kernel by kernel."""
    s = request.scenario_of(values)
    decoder = library.find(values["model"])
    held = request.setting(decoder, values["gpu"], values["engine"], s.dtype, s.tp, options)
    engine, memory = held.steps.engine, held.roof.memory_bytes
    steps = engine.decode(s, memory, 0) if s.output > 1 else engine.prefill(s, memory)
    played = held.steps.timeline(steps[0][0])
    title = f"{decoder.name} on {values['gpu']}, {values['engine']}: {s.name}"
    artifact.write_text(path, json.dumps(timeline.chrome(played.events, title)) + "\n")
    print(f"wrote {path}: open it in https://ui.perfetto.dev", file=sys.stderr)


def render(a: dict[str, Any]) -> str:
    gpus = f"{a['tp']} x {a['gpu']}" if a["tp"] > 1 else a["gpu"]
    parts = [
        f"{a['model']} on {gpus}, {a['engine']}, {_dtype(a)}: {a['batch']} x ({a['prompt']} in, {a['output']} out)",
        "",
        _headline(a),
        "",
        _memory(a["memory"]),
        "sources: "
        + ", ".join(f"{percent(v)} {k}" for k, v in a["sources"].items())
        + f"; ridge point {a['ridge_flop_per_byte']:g} FLOP/B",
    ]
    for phase, title in (("ttft", "to the first token"), ("tpot", "a decode step (mean)")):
        if a["breakdown"][phase]:
            parts += ["", f"where the time goes: {title}", _breakdown(a["breakdown"][phase], a["ridge_flop_per_byte"])]
    return "\n".join(parts)


def _dtype(a: dict[str, Any]) -> str:
    return f"{a['dtype']}, fp8 KV cache" if a["kv_dtype"] == "fp8" else str(a["dtype"])


def _headline(a: dict[str, Any]) -> str:
    rows = []
    names = (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"), ("end to end", "e2e_ms"))
    for title, key in names:
        if a[key] is None:
            continue
        low, high = a["interval"][key]
        span = f"{duration(low / 1e3)} - {duration(high / 1e3)}"
        bound = a["bound"].get(key.removesuffix("_ms"), "")
        rows.append({"": title, "predicted": duration(a[key] / 1e3), "90 % interval": span, "bound by": bound})
    low, high = a["interval"]["tokens_per_s"]
    rate = {"": "throughput", "predicted": f"{number(a['tokens_per_s'], 4)} tok/s"}
    rows.append({**rate, "90 % interval": f"{number(low, 4)} - {number(high, 4)}", "bound by": ""})
    if a.get("energy_j_per_token") is not None:
        low, high = a["interval"]["energy_j_per_token"]
        energy = {"": "energy", "predicted": f"{a['energy_j_per_token']:.3g} J/tok"}
        rows.append({**energy, "90 % interval": f"{low:.3g} - {high:.3g}", "bound by": ""})
    return table(rows, right=("predicted",), keep=tuple(rows[0]))


def _memory(m: dict[str, Any]) -> str:
    verdict = "fits" if m["fits"] else "DOES NOT FIT"
    return (
        f"memory a GPU: weights {gib(m['weights_bytes'])} + KV {gib(m['kv_bytes'])} "
        f"({m['kv_bytes_per_token'] / 1024:.4g} KiB/token) + activations {gib(m['activation_bytes'])} = "
        f"{gib(m['total_bytes'])} of {gib(m['capacity_bytes'])}: {verdict}, largest batch {m['max_batch']}"
    )


def _intensity(row: dict[str, Any]) -> float:
    return float(row["flops"] / row["bytes"]) if row["bytes"] else 0.0


def _breakdown(rows: list[dict[str, Any]], ridge: float) -> str:
    shown = [
        {
            "role": r["role"],
            "op": r["op"],
            "calls": f"{r['count']:g}",
            "time": duration(r["us"] / 1e6),
            "share": percent(r["share"]),
            "bound": r["bound"],
            "FLOP/B": number(_intensity(r)),
            "x ridge": number(_intensity(r) / ridge),
            "work": si(r["flops"], "FLOP"),
            "moved": si(r["bytes"], "B"),
            "source": r["source"],
        }
        for r in rows
    ]
    return table(shown, right=("calls", "time", "share", "FLOP/B", "x ridge", "work", "moved"), keep=("bound",))
