"""Estimate one operator: its device time as torch runs it eagerly, inputs cold in cache, settled clocks.

Axes are given as axis=value. With `-` as OP, operators are read as JSON Lines from stdin, one answer a line; --gpu
stands in where a line names none.
"""

from __future__ import annotations

import argparse
import json
from contextlib import suppress
from typing import Any

from chip.predictor import operator
from chip.show.cli.lines import answer_stdin
from chip.show.cli.text import duration, si
from chip.types import ChipError

HELP = "time of one operator on a GPU, what bounds it and where the number comes from"
EPILOG = """\
  chip estimate linear m=8 n=4096 k=4096 --gpu h200
  chip estimate attention batch=8 heads=32 kv_heads=8 head_dim=128 q_len=1 kv_len=4096 --gpu a100
  chip estimate rms_norm rows=4096 cols=8192 dtype=fp16 --json
  echo '{"op": "linear", "gpu": "h200", "dtype": "bf16", "m": 8, "n": 4096, "k": 4096}' | chip estimate -
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("op", metavar="OP", help="an operator (`chip list ops`), or - for JSON Lines on stdin")
    parser.add_argument("axes", metavar="axis=value", nargs="*", help="its axes; `chip show OP` lists them")
    parser.add_argument("--gpu", default=operator.DEFAULT_GPU, help="bundled name or file [%(default)s]")


def run(args: argparse.Namespace) -> int:
    if args.op == "-":
        if args.axes:
            raise ChipError(f"with - as OP, operators come from stdin; leave {args.axes[0]!r} out")
        return answer_stdin(lambda question: json.dumps(operator.answer(question, args.gpu), allow_nan=False))
    estimate = operator.answer({"op": args.op, "gpu": args.gpu, **parse_axes(args.axes)})
    print(json.dumps(estimate, indent=1) if args.json else render(estimate))
    return 0


def parse_axes(words: list[str]) -> dict[str, Any]:
    """["m=8", "causal=true", "dtype=bf16"] -> values of their types."""
    out: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name or not value:
            raise ChipError(f"axes are given as axis=value, got {word!r}")
        if name in ("op", "gpu"):
            raise ChipError(f"{name!r} is no axis; " + ("give --gpu" if name == "gpu" else "it is the first argument"))
        if name in out:
            raise ChipError(f"axis {name!r} is given twice")
        out[name] = {"true": True, "false": False}.get(value.lower(), value)
        if isinstance(out[name], str):
            with suppress(ValueError):
                out[name] = int(value)
    return out


def render(a: dict[str, Any]) -> str:
    low, high = a["interval"]
    axes = " ".join(f"{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in a["axes"].items() if v != "")
    seconds = a["us"] / 1e6
    rates = f"{si(a['flops'] / seconds, 'FLOP/s')}, {si(a['bytes'] / seconds, 'B/s')}" if seconds else "(no work)"
    return "\n".join(
        (
            f"{a['op']} {axes} on {a['gpu']}",
            f"  time       {duration(seconds)}  ({duration(low / 1e6)} - {duration(high / 1e6)}, 90 %)",
            f"  bound      {a['bound']}, from {a['source']}",
            f"  work       {si(a['flops'], 'FLOP')}, {si(a['bytes'], 'B')}",
            f"  intensity  {a['intensity']:.4g} FLOP/B; ridge point {a['ridge_flop_per_byte']:g} FLOP/B",
            f"  achieves   {rates}",
            *(f"  note       {note}" for note in a.get("notes", ())),
        )
    )
