"""Place measured operators under a roofline: how near each is to what the device can do, and what would help.

PROFILE is what `chip calibrate` wrote, MEASUREMENTS what `chip profile -o` wrote; their order does not matter.
Without a PROFILE the roofs are those of --gpu, or of the bundled GPU that the measurements name.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chip.explain import advice
from chip.files import artifact, jsontext, measurements, output
from chip.hardware import gpus, roofline
from chip.hardware.roofline import RooflinePoint, Roofs
from chip.show.cli import options
from chip.show.cli.profile_text import point_json
from chip.show.cli.text import Column, bandwidth, digits, duration, flops, percent, table, us
from chip.show.report.figure_file import output_of
from chip.types import ChipError, HardwareProfile, Measurement

HELP = "measured operators under measured roofs: share, bound, verdict, what would help; as text and picture"
EPILOG = """\
  chip roofline my-gpu.json llm.jsonl --plot roofline.png
  chip roofline --gpu h200 llm.jsonl --context cold,hot --op rms_norm,silu_mul --plot norms.svg
  chip roofline --gpu h100 --plot roofs.png
  chip roofline my-gpu.json llm.jsonl --json
"""
SCHEMA = "chip.roofline/1"
CONTEXTS = ("cold", "hot", "graph", "host", "layer")


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("files", metavar="FILE", nargs="*", help="a hardware profile (JSON) and measurements (JSON Lines)")
    add("--gpu", default="", help="roofs of this GPU (bundled name or file) where no PROFILE is given")
    add("--context", default="cold", help=f"which times to place, of {', '.join(CONTEXTS)} [%(default)s]")
    add("--op", default="", help="only these kinds of operator, such as linear,attention")
    add("--call", default="", help="only calls whose name, as listed, ends so, such as 32768x4096,4096x4096x4096")
    options.add_file(parser, "--plot", help="draw into this .png, .svg or .pdf")


def outputs(args: argparse.Namespace) -> list[output.Output]:
    return [output_of(args.plot)]


def run(args: argparse.Namespace) -> int:
    if not args.files and not args.gpu:
        raise ChipError("give a hardware profile, measurements, or --gpu NAME")
    profile, measured, environment = _read([Path(f) for f in args.files])
    roofs = _roofs(profile, args.gpu, measured, environment)
    points, left_out = place_all(_select(measured, args.context, args.op), roofs)
    points = _called(points, args.call)
    if measured and not points:
        raise ChipError(f"no measurement to place: none is ok, of context {args.context}, and under a known roof")
    print(json.dumps(document(points, roofs), indent=1) if args.json else render(points, roofs))
    for line in left_out:
        print(f"left out: {line}", file=sys.stderr)
    for line in advice.warnings(points, roofs):
        print(f"warning: {line}", file=sys.stderr)
    if args.plot:
        from chip.show.report import roofline_plot

        roofline_plot.save(args.plot, points, roofs)
        print(f"drawn: {args.plot}", file=sys.stderr)
    return 0


def _read(paths: Sequence[Path]) -> tuple[Path | None, list[Measurement], dict[str, Any]]:
    """Tell profile from measurements by what the files say they are; with where the last of these were made."""
    profile, measured, environment = None, list[Measurement](), dict[str, Any]()
    for path in paths:
        if is_profile(path):
            if profile:
                raise ChipError(f"{path}: a second hardware profile; one roofline has one")
            profile = path
        else:
            header, more = measurements.read(path)
            measured, environment = measured + more, header.get("environment") or {}
    return profile, measured, environment


def is_profile(path: Path) -> bool:
    """By its first line: measurements begin with a whole JSON object on one line."""
    try:
        first = jsontext.parse(next(artifact.lines(path), ""))
    except jsontext.Malformed:
        if path.suffix in (".jsonl", ".ndjson"):
            return False
        raw = artifact.read_json(path)
        first = raw if isinstance(raw, dict) else {}
    name = str(first.get("schema", "")) if isinstance(first, dict) else ""
    return name.startswith((HardwareProfile.SCHEMA.split("/")[0], "chip.hardware_spec"))


def _roofs(profile: Path | None, gpu: str, measured: Sequence[Measurement], environment: Mapping[str, Any]) -> Roofs:
    devices = sorted({m.device for m in measured if m.device})
    if len(devices) > 1:
        raise ChipError(f"the measurements are of several devices: {', '.join(devices)}")
    if profile:
        chosen = gpus.find(str(profile))
        if chosen.profile and devices and chosen.profile.device != devices[0]:
            raise ChipError(f"{profile} is a profile of {chosen.profile.device}, the measurements are of {devices[0]}")
        return roofline.roofs_of(chosen)
    name = gpu or (gpus.match_device(devices[0]) if devices else "")
    if not name:
        where = devices[0] if devices else "this device"
        capability, units = str(environment.get("compute_capability", "")), environment.get("units", 0)
        if stand_in := gpus.unlisted(where, capability, units if isinstance(units, int) else 0):
            return roofline.roofs_of(stand_in)
        raise ChipError(f"no roofs are known for {where}; give the profile that `chip calibrate` wrote, or --gpu NAME")
    return roofline.roofs_of(gpus.find(name))


def _select(measured: Sequence[Measurement], contexts: str, kinds: str) -> list[Measurement]:
    wanted = [c.strip() for c in contexts.split(",")]
    for c in wanted:
        if c not in CONTEXTS:
            raise ChipError(f"--context {c!r} is not known; choose of {', '.join(CONTEXTS)}")
    only = options.words_of(kinds)
    have = sorted({str(m.op.get("op")) for m in measured})
    for k in only:
        if k not in have:
            raise ChipError(f"--op {k!r}: not among the measured operators ({', '.join(have)})")
    return [m for m in measurements.ok(measured) if m.context in wanted and (not only or m.op.get("op") in only)]


def _called(points: list[RooflinePoint], endings: str) -> list[RooflinePoint]:
    wanted = options.words_of(endings)
    for w in wanted:
        if not any(p.label.endswith(f" {w}") for p in points):
            raise ChipError(f"--call {w!r}: no measured call ends so; without --call all are listed")
    return [p for p in points if not wanted or any(p.label.endswith(f" {w}") for w in wanted)]


def place_all(measured: Sequence[Measurement], roofs: Roofs) -> tuple[list[RooflinePoint], list[str]]:
    """(points, what could not be placed and why)."""
    points, left_out = [], []
    for m in measured:
        try:
            points.append(roofline.place(m, roofs))
        except ChipError as e:
            left_out.append(str(e))
    kinds, calls = list(dict.fromkeys(p.op.kind for p in points)), list(dict.fromkeys(p.op for p in points))
    points.sort(key=lambda p: (kinds.index(p.op.kind), calls.index(p.op)))  # variants of one operator side by side
    return points, sorted(set(left_out))


POINTS: tuple[Column, ...] = (
    ("#", "number", str), ("operator", "label", str), ("impl", "implementation"), ("context", "context"),
    ("P50", "p50_us", us), ("bandwidth", "bytes_per_s", bandwidth), ("rate", "flops_per_s", flops),
    ("FLOP/B", "intensity", digits(3)), ("of roof", "share_of_roof", percent), ("bound", "bound"),
    ("level", "level_name"),
)  # fmt: skip


def render(points: Sequence[RooflinePoint], roofs: Roofs) -> str:
    out = [roofs.title, "", *_ceilings(roofs)]
    if points:
        rows = [
            {**row, "number": n, "level_name": roofs.memory[row["level"]].name}
            for n, row in enumerate(document(points, roofs)["points"], 1)
        ]
        out += ["", table(rows, POINTS), "", "what each means, and what would help:"]
        out += [f"{row['number']:>3}  {row['verdict']}\n     {row['would_help']}" for row in rows]
    return "\n".join(out)


def _ceilings(roofs: Roofs) -> list[str]:
    columns: list[Column] = [("roof", "name", str), ("FLOP/s", "value", flops), ("settled", "settled", flops)]
    columns += [(f"ridge to {m.name}", level, "{:.3g} FLOP/B".format) for level, m in roofs.memory.items()]
    rows = [
        {"name": roof.name, "value": roof.value, "settled": roof.settled}
        | {level: roofs.ridge(name, level) for level in roofs.memory}
        for name, roof in roofs.compute.items()
    ]
    levels = ", ".join(f"{m.name} {bandwidth(m.value)}" for m in roofs.memory.values())
    floor = f"; a kernel takes at least {duration(roofs.floor_s)}" if roofs.floor_s else ""
    return [table(rows, columns), f"memory: {levels}{floor}"]


def document(points: Sequence[RooflinePoint], roofs: Roofs) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        **roofline.describe(roofs),
        "warnings": advice.warnings(points, roofs),
        "points": [
            {
                "label": p.label,
                "op": measurements.record(p.op),
                "implementation": p.implementation,
                "p50_us": p.seconds * 1e6,
                "mean_us": p.mean_s * 1e6,
                "p95_us": p.p95_s * 1e6,
                "flops": p.cost.flops,
                "bytes": p.cost.bytes,
                "intensity": p.cost.intensity,
                **point_json(p, roofs),
            }
            for p in points
        ],
    }
