"""Kernels of our own, in Triton and CUDA C++: build them, prove them right, time them beside PyTorch, profile them.

list     what there is, what each needs
build    compile the CUDA sources now, for this GPU or --arch (a cluster's login node will do)
check    against float64: error at most twice that of PyTorch's own; without a GPU the Triton ones in its interpreter
bench    alternating with PyTorch and torch.compile (products: cuBLAS and cublasLt's best algorithm), cold
tune     try a kernel's configurations and say which is best here
profile  Nsight Compute's counters of one call, beside our own byte counts

KERNEL is one or more of those that `list` shows without a number; all where none is named.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chip.files import output
from chip.show.cli import kernels_text as text
from chip.show.cli import options
from chip.show.cli.estimate import parse_axes
from chip.show.cli.text import once
from chip.types import ChipError, Measurement, Op

if TYPE_CHECKING:
    from chip.hardware.roofline import Roofs
    from chip.lab.kernels.bench import TimedKernel
    from chip.lab.kernels.subjects import KernelSubject
    from chip.lab.measure.device import Device

HELP = "kernels of our own: list, build, check, bench, tune, profile"
EPILOG = """\
  chip kernels list
  chip kernels build --arch sm_90a
  chip kernels check layer_norm hgemm
  chip kernels check hgemm --variant wgmma --sanitize
  chip kernels bench layer_norm -o artifacts
  chip kernels bench hgemm --shape m=4096,n=4096,k=4096
  chip kernels tune rms_norm --shape rows=16384,cols=8192 --keep
  chip kernels profile hgemm --variant wgmma --shape m=4096,n=4096,k=4096
"""
ACTIONS = ("list", "build", "check", "bench", "tune", "profile")
MEASURED = "kernels.jsonl"
ONLY = {  # option -> the actions that heed it
    "shape": ("bench", "tune", "profile"),
    "arch": ("build",),
    "sanitize": ("check",),
    "seed": ("check",),
    "keep": ("tune",),
    "quick": ("bench",),
    "output": ("check", "bench", "profile"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("action", choices=ACTIONS, help="what to do")
    add("kernels", metavar="KERNEL", nargs="*", default=[], help="which (`chip kernels list`) [all]")
    add("--variant", default="", metavar="WORD", help="only variants whose name contains the word, such as mma")
    shape = "bench, tune, profile: this call instead of the usual ones"
    add("--shape", default="", metavar="AXIS=VALUE,...", help=shape)
    add("--arch", default="", help="build: for this architecture, such as sm_90a [the GPU's]")
    add("--debug", action="store_true", help="a build whose waits end with a message instead of hanging")
    add("--cache", metavar="DIR", default="", help="where compiled kernels are kept [TORCH_EXTENSIONS_DIR]")
    add("--seed", type=int, default=0, help="check: of shapes and data [a new one, which is printed]")
    add("--count", type=int, default=12, help="check: random shapes besides the edges [%(default)s]")
    add("--sanitize", action="store_true", help="check: run under compute-sanitizer, memcheck and racecheck")
    add("--keep", action="store_true", help="tune: use the best from now on (16-bit rows of that length, that product)")
    add("--quick", action="store_true", help="bench: fewer samples, no energy")
    options.add(parser, "--device", "--profile", "--force")
    files = f"check, bench, profile: JSON files; bench also {MEASURED}"
    options.add_file(parser, "-o", "--output", metavar="DIR", help=files)


def outputs(args: argparse.Namespace) -> list[output.Output]:
    return [(args.output, output.FOLDER), *([(args.output / MEASURED, Measurement.SCHEMA)] if args.output else [])]


def run(args: argparse.Namespace) -> int:
    for option, actions in ONLY.items():
        if getattr(args, option) and args.action not in actions:
            raise ChipError(f"--{option} is for {', '.join(actions)}, not for {args.action}")
    if args.cache:
        os.environ["TORCH_EXTENSIONS_DIR"] = args.cache
    does = {"list": _list, "build": _build, "check": _check, "bench": _bench, "tune": _tune, "profile": _profile}
    return does[args.action](args)


def _list(args: argparse.Namespace) -> int:
    from chip.lab.kernels import catalog

    entries = catalog.entries()
    names = _asked(args, [e.name for e in entries], lambda k: f"no kernel {k!r}; see `chip kernels list`")
    rows = [
        {"name": e.name, "language": e.language, "needs": e.needs, "what": e.what, "file": e.file}
        for e in entries
        if e.name in names
    ]
    _show(args, rows, text.catalog)
    return 0


def _asked(args: argparse.Namespace, names: Sequence[str], unknown: Callable[[str], str]) -> list[str]:
    """Those of `names` that the command line names, by themselves or as steps of a ladder; all where it names none."""

    def fits(name: str, k: str) -> bool:
        return name == k or name.startswith(f"{k}_")

    for k in args.kernels:
        if not any(fits(name, k) for name in names):
            raise ChipError(unknown(k))
    return [name for name in names if not args.kernels or any(fits(name, k) for k in args.kernels)]


# -- build ------------------------------------------------------------------------------------------------------------
def _build(args: argparse.Namespace) -> int:
    from chip.lab.kernels import build, catalog
    from chip.lab.measure.progress import Progress

    arch = args.arch or _this_arch(args)
    build.check_arch(arch)
    known = catalog.cuda_stems()
    stems = _asked(args, known, lambda k: f"{k!r} is no CUDA kernel; they are {', '.join(known)}")
    wanted = [s for s in stems if catalog.runs_on(s, arch)]
    with Progress(len(wanted), "build") as progress:
        built = build.compile_all(wanted, arch, args.debug, progress.step)
    left_out = {s: f"needs {catalog.needs(s)}" for s in stems if s not in wanted}
    rows = [{"source": b.stem, "arch": b.arch, "library": str(b.path), "cached": b.cached} for b in built]
    _show(args, {"built": rows, "left_out": left_out}, text.built)
    return 0


def _show(args: argparse.Namespace, data: Any, render: Callable[[Any], str]) -> None:
    print(json.dumps(data, indent=1) if args.json else render(data))


def _this_arch(args: argparse.Namespace) -> str:
    from chip.lab.kernels import catalog

    device = options.device(args)
    if device.kind != "cuda" or not device.compute_capability:
        raise ChipError(f"no GPU to build for: name one with --arch ({', '.join(catalog.ARCHS)})")
    return catalog.arch_of(device.compute_capability)


# -- check ------------------------------------------------------------------------------------------------------------
def _check(args: argparse.Namespace) -> int:
    if args.count < 0 or args.seed < 0:
        raise ChipError(f"--count and --seed must be at least 0, got {min(args.count, args.seed)}")
    if args.sanitize:
        return _sanitize(args)
    device = _device(args, interpret=True)
    subjects = _subjects(args, device, configs=True)
    from chip.files import codec
    from chip.lab.kernels import check
    from chip.lab.measure.progress import Progress

    seed = args.seed or int.from_bytes(os.urandom(2), "big") + 1
    findings = []
    with Progress(len(subjects), "check") as progress:
        for s in subjects:
            progress.step(s.name)
            findings += list(check.check(s, device, seed, args.count))
    data = {"device": device.title, "seed": seed, "findings": codec.to_json(findings)}
    _store(args, "check", check.SCHEMA, data, device)
    _show(args, data, text.findings)
    return 1 if any(f.status == "failed" for f in findings) else 0


def _sanitize(args: argparse.Namespace) -> int:
    device = _device(args)
    from chip.lab.kernels import sanitize

    sanitize.require()
    rows = sanitize.sanitize(_subjects(args, device), _tell)
    _store(args, "sanitize", sanitize.SCHEMA, rows, device)
    _show(args, rows, text.sanitized)
    return 1 if any(row["errors"] for row in rows) else 0


# -- bench ------------------------------------------------------------------------------------------------------------
def _bench(args: argparse.Namespace) -> int:
    device, subjects, roofs = _ready(args)
    from chip.files import codec
    from chip.lab.kernels import bench
    from chip.lab.kernels.ladder import ladders

    settings = bench.QUICK if args.quick else bench.BenchSettings()
    on_cpu = device.kind == "cpu"
    calls = [(s, op) for s in subjects for op in _ops(args, s, on_cpu)]
    for s in subjects:
        for why, names in once((v.name, v.unusable) for v in s.variants if v.unusable).items():
            print(f"left out of {s.name}: {', '.join(names)} ({why})", file=sys.stderr)
    timed: dict[str, list[TimedKernel]] = {s.name: [] for s in subjects}
    ladder: list[dict[str, Any]] = []
    paths: dict[str, dict[str, float]] = {}
    from chip.hardware.roofline import label
    from chip.lab.measure.progress import Progress

    lock = output.locked(args.output / MEASURED) if args.output else nullcontext()
    with lock, Progress(len(calls), "bench") as progress:
        for s, op in calls:
            progress.step(f"{s.name}, {label(op)}")
            timed[s.name] += bench.bench(s if args.shape or on_cpu else s.timed(op), op, device, roofs, settings)
            if s.name == "hgemm":
                ladder = ladders(device, timed["hgemm"], paths)
            if args.output:
                _write(args.output, device, s.name, timed[s.name], ladder if s.name == "hgemm" else [])
    _show(args, {"device": device.title, "kernels": codec.to_json(timed), "ladder": ladder}, text.benched)
    return 1 if any(t.measurement.status == "failed" for rows in timed.values() for t in rows) else 0


def _write(folder: Path, device: Device, name: str, rows: list[TimedKernel], ladder: list[dict[str, Any]]) -> None:
    """The kernel's artifact, anew after each call, and its measurements for `chip roofline`."""
    from chip.files import artifact, codec, measurements
    from chip.lab.kernels.bench import SCHEMA
    from chip.lab.measure.environment import environment

    data = {"kernel": name, "rows": codec.to_json(rows), "ladder": ladder}
    artifact.write(folder / f"{name.replace('_', '')}.json", artifact.new(SCHEMA, data, environment(device)))
    path = folder / MEASURED
    stored = {measurements.key_of(m): m for m in measurements.start(path, device.title, environment(device))}
    for t in rows:
        if stored.get(measurements.key_of(t.measurement)) != t.measurement:
            measurements.add(path, t.measurement)


# -- tune and profile -------------------------------------------------------------------------------------------------
def _tune(args: argparse.Namespace) -> int:
    device, subjects, _ = _ready(args, configs=True)
    from chip.hardware.roofline import label
    from chip.lab.kernels import tune
    from chip.lab.measure.progress import Progress

    rows: list[dict[str, Any]] = []
    calls = [(s, op) for s in subjects if tune.tunable(s) for op in _ops(args, s)]
    if not calls:
        raise ChipError("nothing to tune: give a kernel over rows of a matrix, or hgemm")
    for s, _ in calls:
        if why := next((v.unusable for v in s.variants if v.unusable), ""):
            raise ChipError(f"{s.name} cannot be tuned here: {why}")
    with Progress(len(calls), "tune") as progress:
        for s, op in calls:
            progress.step(f"{s.name}, {label(op)}")
            timed = tune.tune(s, op, device)
            rows += [{"kernel": s.name, "call": label(op), **row} for row in timed]
            if args.keep:
                tune.keep(s, op, timed)
    _show(args, rows, text.tuned)
    return 0


def _profile(args: argparse.Namespace) -> int:
    device, subjects, roofs = _ready(args)
    from chip.lab.kernels import ncu

    ncu.require()
    rows = [row for s in subjects for op in _ops(args, s)[:1] for row in ncu.profile(s, op, roofs)]
    _store(args, "counters", ncu.SCHEMA, rows, device)
    _show(args, rows, text.counters)
    return 0


# -- what they share --------------------------------------------------------------------------------------------------
def _device(args: argparse.Namespace, interpret: bool = False) -> Device:
    from chip.lab.kernels import build

    device = options.device(args)
    if interpret and device.kind == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is imported
    build.BuildSettings.debug = args.debug
    return device


def _subjects(args: argparse.Namespace, device: Device, configs: bool = False) -> list[KernelSubject]:
    from chip.lab.kernels import subjects

    chosen = [subjects.subject(n, device, args.variant, configs) for n in subjects.names(args.kernels)]
    if not any(s.variants for s in chosen):
        raise ChipError(f"no variant of {', '.join(s.name for s in chosen)} has {args.variant!r} in its name")
    chosen = [s for s in chosen if s.variants]
    subjects.compile_for(chosen, device, lambda what: _tell(f"compiling {what}"))
    return chosen


def _tell(what: str) -> None:
    """In one piece: several compilers or sanitizers report at once."""
    sys.stderr.write(what + "\n")
    sys.stderr.flush()


def _store(args: argparse.Namespace, name: str, schema: str, data: Any, device: Device) -> None:
    """An artifact in the folder asked for, where one is."""
    if args.output:
        from chip.files import artifact
        from chip.lab.measure.environment import environment

        artifact.write(args.output / f"{name}.json", artifact.new(schema, data, environment(device)))


def _ready(args: argparse.Namespace, configs: bool = False) -> tuple[Device, list[KernelSubject], Roofs | None]:
    device = _device(args)
    options.refuse_busy(args, device)
    from chip.show.cli.profile import roofs_for

    return device, _subjects(args, device, configs), roofs_for(args.profile, device)


def _ops(args: argparse.Namespace, s: KernelSubject, on_cpu: bool = False) -> list[Op]:
    if not args.shape and on_cpu:
        from chip.lab.measure import suites

        return list(dict.fromkeys(map(suites.shrink_for_cpu, s.bench)))
    if not args.shape:
        return s.bench
    from chip import ops

    axes = parse_axes(args.shape.split(","))
    if s.kind == "row_normalize":
        axes.setdefault("dtype", "fp32")
    if s.kind == "attention":
        axes.setdefault("q_len", 1)
    return [ops.build(s.kind, axes)]
