"""`chip calibrate --engine`: run the small models or read recorded runs, fit, and lay the terms out."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from chip.engines import profile as engine_profile
from chip.engines.profile import EngineProfile
from chip.engines.timeline import MEANING
from chip.files import artifact, output
from chip.files.runs import Run
from chip.hardware import gpus
from chip.hardware.gpus import Hardware
from chip.show.cli import options
from chip.show.cli.bench import settings
from chip.show.cli.text import Column, duration, table
from chip.types import ChipError

if TYPE_CHECKING:
    from chip.lab.measure.device import Device

WITH_ENGINE = ("gpu", "runs", "python", "engine_setting")
WITHOUT = ("only",)
MAKE = "make a profile with `chip calibrate -o my-gpu.json` and name it: --gpu my-gpu.json"


def asked(args: argparse.Namespace) -> bool:
    """Whether an engine is to be measured; an option of the other kind is refused, never ignored."""
    strays = [name for name in (WITHOUT if args.engine else WITH_ENGINE) if getattr(args, name)]
    if args.engine and args.mode == "full":
        strays.append("full")
    if strays:
        option = "--" + strays[0].replace("_", "-")
        raise ChipError(f"{option} does not go with --engine" if args.engine else f"{option} goes with --engine")
    return bool(args.engine)


def run(args: argparse.Namespace) -> int:
    with options.extra("--engine"):
        from chip.lab.measure import engine_fit
        from chip.lab.run import calibration
    calibration.check(args.engine)
    failed = 0
    if args.runs:
        gpu = args.gpu or _bundled(str(artifact.read(args.runs[0], Run.SCHEMA).environment.get("device")))
        path, sources = _path(args, gpu), args.runs
        output.check_all([(path, EngineProfile.SCHEMA)], (gpu, *args.runs))
    else:
        device = options.device(args)
        gpu = args.gpu or _bundled(device.title)
        path = _path(args, gpu)
        sources = [path.with_suffix(".runs.json")]
        output.check_all([(path, EngineProfile.SCHEMA), (sources[0], Run.SCHEMA)], (gpu,))
        with output.locked(sources[0]):
            failed = _measure(args, device, gpu, sources[0])
    profile, terms = engine_fit.from_files(sources, gpu, args.engine)
    artifact.write(path, terms)
    print(artifact.read_text(path).rstrip() if args.json else render(profile))
    _say(f"wrote {path}; {_use(path, gpu, args.engine)}")
    return 1 if failed else 0


def _measure(args: argparse.Namespace, device: Device, gpu: str, into: Path) -> int:
    """How many points failed."""
    from chip.lab.run import calibration

    profile = _measured(gpu).profile
    assert profile is not None
    if profile.device != device.title:
        raise ChipError(f"--gpu {gpu} is of {profile.device}, {device.name} is {device.title}")
    options.refuse_busy(args, device)
    if args.restart:
        into.unlink(missing_ok=True)
    dtype = next((d for d in ("bf16", "fp16") if device.kind != "cpu" and f"matmul_{d}" in profile.ceilings), "fp32")
    plans = calibration.plans(args.engine, device, dtype, args.python, settings(args.engine_setting))
    _say(f"{args.engine} on {device.title}: {', '.join(p.job.model for p in plans)}, into {into}")
    return sum(r.status == "failed" for r in calibration.run(plans, device, into, _say))


def _say(text: str) -> None:
    print(f"chip calibrate: {text}", file=sys.stderr, flush=True)


def _bundled(device: str) -> str:
    """The bundled GPU of a device's name, if it was calibrated."""
    name = gpus.match_device(device)
    if name not in gpus.profile_names():
        raise ChipError(f"no bundled profile of {device}; {MAKE}")
    return name


def _measured(gpu: str) -> Hardware:
    h = gpus.find(gpu)
    if h.profile is None:
        raise ChipError(f"{gpu} was never calibrated; {MAKE}")
    return h


def _path(args: argparse.Namespace, gpu: str) -> Path:
    """Where predictions for that GPU find it; what is bundled stays as it is."""
    h = _measured(gpu)
    if args.output:
        return Path(args.output)
    path = engine_profile.path_for(h, args.engine)
    return Path(path.name) if engine_profile.is_bundled(h) else path


def _use(path: Path, gpu: str, engine: str) -> str:
    words = f"chip predict MODEL --gpu {gpu} --engine {engine}"
    if path == engine_profile.path_for(gpus.find(gpu), engine):
        return f"`{words}` uses it"
    return f"use it with `{words} --engine-profile {path}`"


TERMS: tuple[Column, ...] = (
    ("term", lambda row: row[0], str),
    *((end, lambda row, end=end: getattr(row[1], end), duration) for end in ("value", "low", "high")),
    ("of", lambda row: MEANING[row[0]], str),
)  # fmt: skip


def render(p: EngineProfile) -> str:
    latency = f", launch latency {duration(p.launch_ns * 1e-9)}" if p.launch_ns else ""
    title = f"{p.engine} ({p.engine_version}) on {p.device}, host {p.cpu}{latency}; measured on {_names(p.models)}"
    return f"{title}\n{table(p.terms.items(), TERMS)}"


def _names(models: Sequence[str]) -> str:
    """Depths of one model together: "llama of 4, 20 layers"."""
    depths: dict[str, set[int]] = {}
    for model in models:
        base, _, layers = model.rpartition("-layers")[0].rpartition("-")
        depths.setdefault(base if layers.isdigit() else model, set()).update([int(layers)] if layers.isdigit() else [])
    told = {base: ", ".join(map(str, sorted(each))) for base, each in depths.items()}
    return "; ".join(f"{base} of {layers} layers" if layers else base for base, layers in told.items())
