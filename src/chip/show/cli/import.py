"""Bring measurements that others published into CHIP's own files of points, one for each operator kind.

SOURCE is `aiconfigurator`: NVIDIA's package aiconfigurator-core 0.12.0 (Apache-2.0), which holds operator times of
several GPUs. It is read where it is installed, or from its wheel; reading needs `pip install '.[import]'`.
By default the shapes that models have are kept, and of each curve over tokens the points that its shape needs.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from chip.files import output
from chip.hardware.tables import aiconfigurator, points_csv
from chip.hardware.tables.aiconfigurator_pick import TOLERANCE
from chip.show.cli import options
from chip.show.cli.text import Column, table
from chip.types import ChipError

HELP = "measured operator times of other GPUs, from a published package into files of points"
EPILOG = """\
  pip download aiconfigurator-core==0.12.0 --no-deps
  chip import aiconfigurator --system h100_sxm --package aiconfigurator_core-0.12.0-*.whl -o points/h100
  chip import aiconfigurator --system l40s --all -o every-point/l40s
  chip import aiconfigurator --system list
"""
COLUMNS: tuple[Column, ...] = (
    ("operator", "operator", str), ("points", "points", str), ("file", "file"), ("device", "device")
)  # fmt: skip


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("source", choices=("aiconfigurator",), help="whose measurements")
    add("--system", required=True, help="as the package calls the GPU: h100_sxm, l40s, ...; `list` shows them")
    add("--backend", default="vllm", help="the engine whose kernels were timed [vllm]")
    add("--package", metavar="PATH", default="", help="a wheel, or the folder it was unpacked to [the installed one]")
    add("--all", action="store_true", help="keep every shape: 100 times as large")
    add("--tolerance", type=float, default=TOLERANCE, help=f"to which curves over tokens are kept [{TOLERANCE:g}]")
    options.add_file(parser, "-o", "--output", metavar="DIR", help="where the files go [./points/GPU]")


def outputs(args: argparse.Namespace) -> list[output.Output]:
    return [(_folder(args), output.FOLDER)]


def _folder(args: argparse.Namespace) -> Path:
    return args.output or Path("points", aiconfigurator.GPUS.get(args.system, args.system))


def run(args: argparse.Namespace) -> int:
    if not 0 <= args.tolerance < 1:
        raise ChipError(f"--tolerance must be from 0 to 1 (0.02: 2 %), got {args.tolerance:g}")
    package = aiconfigurator.find(args.package)
    if args.system == "list":
        names = package.of_backend(args.backend)
        print(json.dumps(names) if args.json else "\n".join(names))
        return 0
    tables = aiconfigurator.tables(package, args.system, args.backend, args.all, args.tolerance)
    folder = _folder(args)
    rows = []
    for one in tables:
        path = folder / f"{one.kind}.csv"
        points_csv.write(path, one)
        rows.append({"operator": one.kind, "points": len(one.rows), "file": str(path), "device": one.notes["device"]})
    print(json.dumps(rows, indent=1) if args.json else table(rows, COLUMNS))
    print(f"licence of these files: {aiconfigurator.LICENCE}", file=sys.stderr)
    return 0
