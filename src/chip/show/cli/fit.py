"""Make points of measurements, so that shapes never measured are predicted from those that were.

Points are CSV files, one for each kind of operator, in a folder beside the profile (my-gpu.json -> my-gpu.points/),
where `--gpu my-gpu.json` finds them.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from chip import ops, stats
from chip.files import artifact, codec, measurements, output
from chip.hardware import gpus, points
from chip.show.cli import options
from chip.show.cli.text import Column, percent, table
from chip.types import ChipError

HELP = "measured points of `chip profile --suite tables`, made ready for predictions on this device"
EPILOG = """\
  chip profile --suite tables -o tables.jsonl
  chip fit tables.jsonl --profile my-gpu.json
"""
COLUMNS: tuple[Column, ...] = tuple(
    (name, name) for name in ("operator", "implementation", "dtype", "context", "shapes", "median error", "p90")
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("measurements", metavar="MEASUREMENTS", nargs="+", help="files of `chip profile`")
    parser.add_argument("--profile", metavar="FILE", required=True, help="the device's profile, from `chip calibrate`")
    options.add_file(parser, "-o", "--output", metavar="FOLDER", help="[beside the profile]")


def outputs(args: argparse.Namespace) -> list[output.Output]:
    folder = _folder(args)
    return [(folder, output.FOLDER), *((folder / f"{kind}{points.SUFFIX}", points.KIND) for kind in ops.names())]


def _folder(args: argparse.Namespace) -> Path:
    return args.output or gpus.points_folder(Path(args.profile))


def run(args: argparse.Namespace) -> int:
    profile_path = Path(args.profile)
    profile = gpus.read_profile(profile_path)
    inputs, measured = [artifact.read(profile_path, profile.SCHEMA).id], []
    for name in args.measurements:
        header, ms = measurements.read(Path(name))
        if header["device"] != profile.device:
            raise ChipError(f"{name}: was measured on {header['device']}, the profile is of {profile.device}")
        measured += ms
        inputs += [artifact.new(header["schema"], [codec.to_json(m) for m in ms], {}).id, *header.get("runs", [])]
    with options.extra("fitting"):
        from chip.lab.measure.fit import clocks, fit, settling
    groups, left_out = fit(measured, profile)
    clock, of_kinds = settling(measured, profile), clocks(measured, profile)
    about = {"device": profile.device, "source": ", ".join(Path(f).name for f in args.measurements)}
    about |= {"inputs": " ".join(inputs)} | ({"settling": clock.write()} if clock else {})
    folder = _folder(args)
    for kind in dict.fromkeys(g.kind for g in groups):
        points.write(
            folder / f"{kind}{points.SUFFIX}", about | of_kinds.get(kind, {}), [g for g in groups if g.kind == kind]
        )
    rows = [row(g) for g in groups]
    if args.json:
        print(json.dumps({"points": str(folder), "operators": rows, "left_out": left_out}, indent=1))
    else:
        print(render(groups))
        print("errors are of points predicted from all others (leave one out)", file=sys.stderr)
        for kind, why in left_out.items():
            print(f"no points of {kind}: {why}", file=sys.stderr)
        print(f"wrote {folder}", file=sys.stderr)
    return 0


def render(groups: list[points.PointGroup]) -> str:
    return table(map(row, groups), COLUMNS, keep=("operator",))


def row(g: points.PointGroup) -> dict[str, Any]:
    errors = [abs(e) for e in g.loo]
    return {
        "operator": g.kind,
        "implementation": g.kernel,
        "dtype": g.dtype,
        "context": g.context,
        "shapes": len(g.ops),
        "median error": percent(stats.median(errors)),
        "p90": percent(stats.quantile(errors, 0.9)),
    }
