"""List what CHIP knows: models, gpus, ops or engines."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from typing import Any

from chip import engines, hardware, ops
from chip.cli.text import gib, si, table
from chip.models import library

HELP = "the models, GPUs, operators or engines that are known"
EPILOG = """\
  chip list models
  chip list gpus --json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=tuple(ROWS), help="what to list")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def _models() -> list[dict[str, Any]]:
    rows = []
    for name in library.names():
        d = library.find(name)
        rows.append(
            {
                "name": name,
                "architecture": d.architecture,
                "parameters": d.params(),
                "active": d.active_params(),
                "layers": d.layer_count,
                "hidden": d.hidden,
            }
        )
    return rows


def _gpus() -> list[dict[str, Any]]:
    measured = hardware.profile_names()
    rows = []
    for name in hardware.spec_names():
        s = hardware.spec(name)
        best = s.ceilings.get("matmul_bf16") or s.ceilings["matmul_fp16"]
        rows.append(
            {
                "name": name,
                "title": s.title,
                "memory_bytes": s.memory_bytes.value,
                "hbm_bytes_per_s": s.ceilings["hbm"].value,
                "matmul_16bit_flop_per_s": best.value,
                "measured": name in measured,
            }
        )
    return rows


def _ops() -> list[dict[str, Any]]:
    rows = []
    for name in ops.names():
        cls = ops.get(name)
        rows.append(
            {"name": name, "axes": " ".join(ops.axes(cls)), "what": " ".join(import_doc(name).split("\n\n")[0].split())}
        )
    return rows


def import_doc(kind: str) -> str:
    from importlib import import_module

    return (import_module(f"chip.ops.{kind}").__doc__ or "").strip()


def _engines() -> list[dict[str, Any]]:
    return [{"name": n, "what": engines.get(n).TITLE} for n in engines.names()]


RIGHT = ("parameters", "active", "layers", "hidden", "memory", "bandwidth", "16-bit matmul")
ROWS = {"models": _models, "gpus": _gpus, "ops": _ops, "engines": _engines}


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
        required = ops.axes(ops.get(out["name"])).values()
        out["axes"] = " ".join(f.name for f in required if f.default is dataclasses.MISSING)
        out["what"] = re.split(r"[:;.]| \(", out["what"])[0].strip()
    for key in ("parameters", "active"):
        if key in out:
            out[key] = f"{out[key] / 1e9:.2f} B"
    if "memory_bytes" in out:
        out["memory"] = gib(out.pop("memory_bytes"))
        out["bandwidth"] = si(out.pop("hbm_bytes_per_s"), "B/s")
        out["16-bit matmul"] = si(out.pop("matmul_16bit_flop_per_s"), "FLOP/s")
        out["profile"] = "measured" if out.pop("measured") else "datasheet"
    return out
