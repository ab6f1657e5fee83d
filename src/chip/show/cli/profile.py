"""Measure operators on a device: cold, hot, in a graph and as the host sees them, compared with the measured roofline.

OP with its axes measures one operator; --suite a set of them; --model the operators of one step of a model, largest
first. With -o results are appended as JSON Lines: run the same command again to go on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chip.files import output
from chip.show.cli import options
from chip.show.cli.estimate import parse_axes
from chip.show.cli.profile_text import document, render_hotspots, render_one, render_table
from chip.types import ChipError, Measurement

if TYPE_CHECKING:
    from chip.hardware.roofline import Roofs
    from chip.lab.measure.device import Device
    from chip.lab.measure.profile import ProfileSettings
    from chip.lab.measure.suites import SuiteCase

HELP = "time operators on this device: cold, hot, in a graph and host-visible, as shares of the measured roof"
EPILOG = """\
  chip profile linear m=4096 n=4096 k=4096
  chip profile attention batch=1 heads=32 kv_heads=8 head_dim=128 q_len=1 kv_len=4096 --impl flash
  chip profile --suite llm --profile my-gpu.json -o llm.jsonl
  chip profile --suite gemm --model llama-3.1-8b -o gemm.jsonl
  chip profile --model qwen2.5-7b --batch 8 --prompt 1024 --phase decode
  chip profile --suite classic --device cpu --quick
"""
SUITE_NAMES = ("llm", "classic", "gemm", "tables", "vllm", "quant", "native", "between", "models")
TABLE_SUITES = SUITE_NAMES[3:]  # of many shapes, each measured briefly
CONTEXTS = ("cold", "hot", "graph", "host", "layer")
SUITE_FILE = "artifacts/profile.jsonl"


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("op", metavar="OP", nargs="?", help="an operator (`chip list ops`)")
    add("axes", metavar="axis=value", nargs="*", help="its axes; `chip show OP` lists them")
    suites = f"sets of operators instead of one: {', '.join(SUITE_NAMES)}, or several with commas"
    add("--suite", default="", help=suites)
    add("--limit", type=int, metavar="N", help="only the first N shapes of the suites")
    add("--model", help="the hotspots of one step of this model; with --suite gemm: its matrix shapes as well")
    add("--batch", type=int, default=1, help="sequences of the model's step [%(default)s]")
    add("--prompt", type=int, default=1024, help="tokens of each sequence [%(default)s]")
    add("--phase", choices=("prefill", "decode"), default="prefill", help="the model's step [%(default)s]")
    add("--dtype", default="", help="bf16, fp16, fp32, tf32, fp8 [bf16; on a CPU fp32]")
    add("--impl", default="", help="attention: flash, cudnn, efficient, math; conv2d: channels_last [the default]")
    add("--context", default="", help="cold, hot, graph, host, layer, or several with commas [all but layer]")
    add("--runs", type=int, help="samples of each context [100; with --quick 20]")
    warm_up = "load before sampling [0.2, before long arithmetic 1.5; with --quick 0.04]"
    add("--warm-up", type=float, metavar="SECONDS", help=warm_up)
    add("--span", type=float, metavar="GB", help="cold buffers together take at least this much memory [0]")
    add("--quick", action="store_true", help="fewer samples, shorter warm-up")
    options.add(parser, "--device", "--profile", "--force")
    options.add_file(parser, "-o", "--output", help=f"append to this JSON Lines file [suites: {SUITE_FILE}]")


def outputs(args: argparse.Namespace) -> list[output.Output]:
    return [(_output(args), Measurement.SCHEMA)]


def _output(args: argparse.Namespace) -> Path | None:
    return args.output or (Path(SUITE_FILE) if args.suite else None)


def run(args: argparse.Namespace) -> int:
    _check(args)
    device = options.device(args)
    cases, program = _cases(args, device)
    options.refuse_busy(args, device)
    roofs = roofs_for(args.profile, device)
    path = _output(args)
    measured: list[Measurement] = []
    interrupted = False
    try:
        with output.locked(path) if path else nullcontext():
            measured.extend(_measure(cases, device, _settings(args), path))
    except KeyboardInterrupt:
        interrupted = True
        rest = f"; {path} is whole and the same command goes on with it" if path else ""
        print(f"chip profile: interrupted{rest}", file=sys.stderr)
    if args.json:
        print(json.dumps(document(measured, device.title, roofs, program), indent=1))
    elif program and not interrupted:
        print(render_hotspots(measured, roofs, program))
    elif args.op and measured:
        print(render_one(measured, roofs))
    elif measured:
        print(render_table(measured, roofs))
    if interrupted:
        return 130
    return 1 if any(m.status == "failed" for m in measured) else 0


def _check(args: argparse.Namespace) -> None:
    if args.op and (args.suite or args.model):
        raise ChipError("give an operator, --suite or --model, not several")
    if not args.op and not args.suite and not args.model:
        raise ChipError("nothing to measure: give an operator with its axes, --suite or --model")
    for name in options.words_of(args.suite):
        if name not in SUITE_NAMES:
            raise ChipError(f"no suite {name!r}; choose of {', '.join(SUITE_NAMES)}")
    if args.model and args.suite and "gemm" not in options.words_of(args.suite):
        raise ChipError(f"--model goes with --suite gemm or alone, not with --suite {args.suite}")
    for name in options.words_of(args.context):
        if name not in CONTEXTS:
            raise ChipError(f"no context {name!r}; choose of {', '.join(CONTEXTS)}")
    if args.limit is not None and (args.limit < 1 or not args.suite):
        raise ChipError("--limit is a number of shapes, at least 1, and goes with --suite")
    if args.runs is not None and args.runs < 3:
        raise ChipError(f"--runs must be at least 3, got {args.runs}")
    if args.warm_up is not None and not 0 <= args.warm_up <= 3600:
        raise ChipError(f"--warm-up must be between 0 and 3600 seconds, got {args.warm_up:g}")
    if args.span is not None and not 0 <= args.span <= 1e4:
        raise ChipError(f"--span must be between 0 and 10000 GB, got {args.span:g}")
    options.between(args, ("batch", "prompt"), 1, 2**24, "2^24")


def _settings(args: argparse.Namespace) -> ProfileSettings:
    from dataclasses import replace

    from chip.lab.measure import profile

    settings = profile.QUICK if args.quick else profile.ProfileSettings()
    if args.suite in TABLE_SUITES:
        settings = profile.BURSTS if args.suite == "native" else profile.TABLES
    if args.context:
        settings = replace(settings, only=tuple(options.words_of(args.context)))
    if args.runs:
        settings = replace(settings, runs=args.runs)
    if args.span:
        settings = replace(settings, span_bytes=args.span * 1e9)
    return settings if args.warm_up is None else replace(settings, warm_s=args.warm_up, arithmetic_warm_s=args.warm_up)


def roofs_for(path: str, device: Device) -> Roofs | None:
    """Roofs of the device: the given profile, the bundled one, a datasheet, or none."""
    from chip.hardware import gpus, roofline

    if path:
        gpu = gpus.find(path)
        if gpu.profile and gpu.profile.device != device.title:
            raise ChipError(f"{path}: is a profile of {gpu.profile.device}, this is {device.title}")
        return roofline.roofs_of(gpu)
    name = gpus.match_device(device.title) if device.kind == "cuda" else ""
    return roofline.roofs_of(gpus.find(name)) if name else None


def _cases(args: argparse.Namespace, device: Device) -> tuple[list[SuiteCase], Any]:
    """(cases to measure, the model's program where hotspots are asked for)."""
    from chip import ops
    from chip.decoders import library
    from chip.lab.measure import build, profile, suites

    dtype = device.dtype(args.dtype)
    if args.op:
        axes = parse_axes(args.axes)
        if args.dtype and axes.get("dtype", args.dtype) != args.dtype:
            raise ChipError(f"dtype is given twice: {axes['dtype']} and --dtype {args.dtype}")
        known = None if args.axes else suites.usual(args.op, dtype, device.kind == "cpu")
        op = known or ops.build(args.op, {"dtype": dtype, **axes})
        if args.impl:
            build.choose(op, device.kind, args.impl)
        return profile.name_cases([suites.SuiteCase(op, args.impl)], device), None
    if args.model and not args.suite:
        program = suites.step_program(library.find(args.model), dtype, args.batch, args.prompt, args.phase)
        unique = dict.fromkeys(suites.SuiteCase(call.op) for block in program.blocks for call in block.calls)
        return profile.name_cases(list(unique), device), program
    names = options.words_of(args.suite)
    cases = [c for name in names for c in suites.cases(name, dtype, device.kind == "cpu")][: args.limit]
    if not cases:
        raise ChipError(f"--suite {args.suite} is of implementations that a CPU does not have; measure it on a GPU")
    if args.model:
        cases += suites.matrices(library.find(args.model), dtype)
    return list(dict.fromkeys(profile.name_cases(cases, device))), None


def _measure(
    cases: Sequence[SuiteCase], device: Device, settings: ProfileSettings, path: Path | None
) -> Iterator[Measurement]:
    """Every measurement of the cases, those of earlier runs first taken from the file."""
    from chip.files import measurements
    from chip.hardware.roofline import label
    from chip.lab.measure import profile
    from chip.lab.measure.environment import environment
    from chip.lab.measure.progress import Progress

    measured = (
        {measurements.key_of(m): m for m in measurements.start(path, device.title, environment(device))} if path else {}
    )
    todo = {case: profile.missing(case, device, measured, settings.only) for case in cases}
    left = sum(bool(wanted) for wanted in todo.values())
    if path:
        print(f"{path}: {len(cases) - left} of {len(cases)} cases are there already", file=sys.stderr)
    with Progress(left, "profile") as progress:
        for case, wanted in todo.items():
            op = measurements.record(case.op)
            for context in profile.contexts(device, settings.only):
                key = measurements.key(op, case.implementation, context)
                if key in measured:
                    yield measured[key]
            if not wanted:
                continue
            progress.step(label(case.op))
            for m in profile.profile_case(case, device, wanted, settings):
                if path:
                    measurements.add(path, m)
                yield m
