"""Learn operator tables from measurements, so that shapes never measured are predicted from those that were.

The tables are written beside the profile (my-gpu.json -> my-gpu.tables.json), where `--gpu my-gpu.json` finds them.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from chip import artifact, codec, hardware, measurements, output
from chip.cli.text import percent, table
from chip.predict.tables import Tables
from chip.types import ChipError

HELP = "learn operator tables from `chip profile --suite tables`, for predictions on this device"
EPILOG = """\
  chip profile --suite tables -o tables.jsonl
  chip fit tables.jsonl --profile my-gpu.json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("measurements", metavar="MEASUREMENTS", nargs="+", help="files of `chip profile`")
    parser.add_argument("--profile", metavar="FILE", required=True, help="the device's profile, from `chip calibrate`")
    parser.add_argument("-o", "--output", metavar="FILE", default="", help="[beside the profile]")
    parser.add_argument("--force", action="store_true", help="let -o replace a file of another kind; never an input")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def run(args: argparse.Namespace) -> int:
    profile_path = Path(args.profile)
    profile = hardware.read_profile(profile_path)
    path = Path(args.output) if args.output else hardware.tables_path(profile_path)
    output.check(path, Tables.SCHEMA, (args.profile, *args.measurements), args.force)
    inputs, found = [artifact.read(profile_path, profile.SCHEMA).id], []
    for name in args.measurements:
        header, ms = measurements.read(Path(name))
        if header["device"] != profile.device:
            raise ChipError(f"{name}: was measured on {header['device']}, the profile is of {profile.device}")
        found += ms
        inputs.append(artifact.new(header["schema"], [codec.to_json(m) for m in ms], {}).id)
    try:
        from chip.measure.fit import fit
    except ImportError as e:
        raise ChipError(f"fitting needs {e.name}: pip install 'chip-inference[measure]'") from None
    tables, left_out = fit(found, profile)
    made = artifact.new(tables.SCHEMA, codec.to_json(tables), {"device": tables.device}, inputs)
    artifact.write(path, made, indent=None, force=args.force)
    rows = [
        {
            "operator": t.op,
            "implementation": t.implementation,
            "dtype": t.dtype,
            "context": t.context,
            "shapes": t.points,
            "median error": percent(t.median_error),
            "p90": percent(t.p90_error),
        }
        for t in tables.operators
    ]
    if args.json:
        print(json.dumps({"tables": str(path), "id": made.id, "operators": rows, "left_out": left_out}, indent=1))
    else:
        print(table(rows, right=("shapes", "median error", "p90"), keep=("operator",)))
        print("errors are of shapes the fit had not seen (cross-validation)", file=sys.stderr)
        for kind, why in left_out.items():
            print(f"no table of {kind}: {why}", file=sys.stderr)
        print(f"wrote {path}", file=sys.stderr)
    return 0
