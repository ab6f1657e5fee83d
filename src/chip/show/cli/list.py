"""List what CHIP knows: architectures, models, gpus, ops, engines or hosts."""

from __future__ import annotations

import argparse
import json
import re

from chip.catalog import ROWS
from chip.show.cli.text import Column, bandwidth, flops, gib, table

HELP = "the architectures, models, GPUs, operators, engines or hosts that are known"
EPILOG = """\
  chip list models
  chip list gpus --json
"""
FIRST_WORDS = re.compile(r"[:;.]| \(")


def billions(count: float) -> str:
    return f"{count / 1e9:.2f} B"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=tuple(ROWS), help="what to list")


COLUMNS: dict[str, tuple[Column, ...]] = {
    "architectures": (("name", "name", str), ("family", "family", str), ("held against", "held_against", str),
                      ("median error of recorded runs", "error")),
    "models": (
        ("name", "name", str), ("architecture", "architecture"), ("parameters", "parameters", billions),
        ("active", "active", billions), ("layers", "layers"), ("hidden", "hidden"),
    ),
    "gpus": (
        ("name", "name", str), ("title", lambda r: r["title"].removeprefix("NVIDIA ")), ("memory", "memory_bytes", gib),
        ("bandwidth", "hbm_bytes_per_s", bandwidth), ("16-bit matmul", "matmul_16bit_flop_per_s", flops),
        ("rests on", lambda r: r["rests_on"] + (f", no {', '.join(r['too_old_for'])}" if r["too_old_for"] else "")),
    ),
    # `chip show` has the axes with a default too, and the whole text
    "ops": (("name", "name", str), ("axes", "required"), ("what", lambda r: FIRST_WORDS.split(r["what"])[0].strip())),
    "engines": (("name", "name", str), ("what", "what")),
    "hosts": (("name", "name", str), ("what", "what")),
}  # fmt: skip


def run(args: argparse.Namespace) -> int:
    rows = ROWS[args.what]()
    print(json.dumps(rows, indent=1) if args.json else table(rows, COLUMNS[args.what]))
    return 0
