"""List what CHIP knows: models, gpus, ops, engines or hosts."""

from __future__ import annotations

import argparse
import json
import re
from typing import Any

from chip.catalog import ROWS
from chip.cli.text import gib, si, table

HELP = "the models, GPUs, operators, engines or hosts that are known"
EPILOG = """\
  chip list models
  chip list gpus --json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=tuple(ROWS), help="what to list")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


RIGHT = ("parameters", "active", "layers", "hidden", "memory", "bandwidth", "16-bit matmul")


def run(args: argparse.Namespace) -> int:
    rows = ROWS[args.what]()
    if args.json:
        print(json.dumps(rows, indent=1))
        return 0
    print(table([_pretty(r) for r in rows], right=RIGHT))
    return 0


def _pretty(row: dict[str, Any]) -> dict[str, Any]:
    out = dict(row)
    if "axes" in out:  # `chip show` has those with a default, and the whole text
        out["axes"] = out.pop("required")
        out["what"] = re.split(r"[:;.]| \(", out["what"])[0].strip()
    out.pop("launch_ns", None)  # the text says it
    for key in ("parameters", "active"):
        if key in out:
            out[key] = f"{out[key] / 1e9:.2f} B"
    if "memory_bytes" in out:
        out["title"] = out["title"].removeprefix("NVIDIA ")
        out["memory"] = gib(out.pop("memory_bytes"))
        out["bandwidth"] = si(out.pop("hbm_bytes_per_s"), "B/s")
        out["16-bit matmul"] = si(out.pop("matmul_16bit_flop_per_s"), "FLOP/s")
        del out["measured"], out["aliases"]
        not_for = out.pop("too_old_for")
        out["rests on"] = out.pop("rests_on") + (f", no {', '.join(not_for)}" if not_for else "")
    return out
