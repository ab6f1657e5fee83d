"""`chip calibrate --host`: the launch latency of this host alone, or of one that recorded it beside its runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chip.files import artifact, codec, runs
from chip.hardware import hosts
from chip.show.cli import options
from chip.show.cli.text import duration
from chip.stats import quantile
from chip.types import Ceiling, ChipError, HostProfile

WITHOUT = ("engine", "gpu", "python", "engine_setting", "only", "restart")
METHOD = "x * 1.0 of 64 values, 200 into an empty queue, host clock"
BESIDE = f"{METHOD}, beside recorded runs"
LEAST = 5  # samples that tell anything


def run(args: argparse.Namespace) -> int:
    strays = [name for name in WITHOUT if getattr(args, name)] + ["full"] * (args.mode == "full")
    if strays:
        raise ChipError(f"--{strays[0].replace('_', '-')} does not go with --host")
    path = args.output or Path("host.json")
    profile, environment, inputs = _recorded(args.runs, path) if args.runs else _measured(args, path)
    host = artifact.new(HostProfile.SCHEMA, codec.to_json(profile), environment, inputs)
    artifact.write(path, host)
    print(artifact.read_text(path).rstrip() if args.json else render(profile))
    print(f"chip calibrate: wrote {path}; use it with `chip predict MODEL --host {path}`", file=sys.stderr)
    return 0


def render(p: HostProfile) -> str:
    c = p.terms[hosts.LATENCY]
    return (
        f"{p.name} ({p.cpu}): launches a small kernel in {duration(c.value)}, {duration(c.low)} to {duration(c.high)} "
        f"(5th to 95th percentile of {len(c.samples)})"
    )


def profile_of(name: str, cpu: str, samples_ns: Sequence[float], method: str) -> HostProfile:
    if len(samples_ns) < LEAST:
        raise ChipError(f"{len(samples_ns)} launch latencies tell nothing of a host; at least {LEAST} are needed")
    low, middle, high = (quantile(samples_ns, q) * 1e-9 for q in (0.05, 0.5, 0.95))
    samples = tuple(round(ns * 1e-9, 10) for ns in samples_ns)
    return HostProfile(name, cpu, {hosts.LATENCY: Ceiling(middle, low, high, "s", method, samples)})


def _recorded(files: Sequence[Path], path: Path) -> tuple[HostProfile, dict[str, Any], list[str]]:
    """The profile of the host of these runs, whose launch latency `chip bench` may have measured beside them."""
    read = [runs.read(f) for f in files]
    samples = [ns for _, file in read for r in file.runs for ns in r.launch_ns]
    if not samples:
        raise ChipError(f"{files[0]}: no run has a launch latency (launch_ns); run `chip bench` anew")
    about = read[0][0].environment
    return profile_of(path.stem, str(about.get("cpu", "")), samples, BESIDE), dict(about), [a.id for a, _ in read]


def _measured(args: argparse.Namespace, path: Path) -> tuple[HostProfile, dict[str, Any], list[str]]:
    with options.extra("--host"):
        from chip.lab.measure.device import cpu_title
        from chip.lab.measure.environment import environment
        from chip.lab.run.clock import samples_ns
    device = options.device(args)
    if device.kind == "cpu":
        raise ChipError("--host needs the host's GPU: a launch latency is what it takes to hand a kernel to one")
    return profile_of(path.stem, cpu_title(), samples_ns(device), METHOD), environment(device), []
