"""Compare two files of runs: faster, slower or unclear, metric by metric, with the evidence.

RUN is a file that `chip bench` wrote, or a part of one: FILE:ENGINE, or FILE:ENGINE/VARIANT. Points of the same model,
engine, variant and scenario are compared; where an engine stands on one side only, with the one engine of the other.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from chip.explain.compare import RunPair, pairs
from chip.files import codec, runs
from chip.files.runs import Run
from chip.show.cli.text import Column, duration, gib, table
from chip.types import ChipError, Scenario

HELP = "two files of runs: faster, slower or unclear, with the evidence"
EPILOG = """\
  chip compare before.json after.json
  chip compare before.json after.json --fail-over 5%      # exit code 1 when something got more than 5 % worse
  chip compare llm.json:hf-eager llm.json:hf-graph
  chip compare llm.json:hf-eager/ llm.json:hf-eager/sdpa=flash --json
"""
SCHEMA = "chip.comparison/1"
CHANGES = (("change", "ratio"), ("at least", "low"), ("at most", "high"))


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("first", metavar="RUN", help="FILE, FILE:ENGINE or FILE:ENGINE/VARIANT")
    parser.add_argument("second", metavar="RUN", help="what it is compared with")
    parser.add_argument("--fail-over", metavar="PERCENT", default="", help="exit code 1 when worse by more: 5%%")


def run(args: argparse.Namespace) -> int:
    limit = _percent(args.fail_over) if args.fail_over else None
    matched, alone = pairs(select(args.first), select(args.second))
    if not matched:
        raise ChipError(f"{args.first} and {args.second} have no finished point of the same model and scenario")
    worse = [
        (p, line) for p in matched for line in p.lines if limit is not None and line.worse and line.ratio > 1 + limit
    ]
    answer = document(matched, alone)
    print(json.dumps(answer, indent=1) if args.json else render(answer))
    for r in alone:
        print(f"note: {r.title} has no partner", file=sys.stderr)
    for p, line in worse:
        print(f"chip compare: {p.second.title}: {line.metric} is {line.ratio - 1:+.1%}", file=sys.stderr)
    return 1 if worse else 0


def _percent(word: str) -> float:
    try:
        share = float(word.removesuffix("%")) / 100
    except ValueError:
        share = -1.0
    if not 0 <= share < float("inf"):
        raise ChipError(f"--fail-over must be a percentage such as 5%, got {word!r}")
    return share


def select(word: str) -> list[Run]:
    """The runs that a RUN argument stands for."""
    path, colon, part = (word, "", "") if os.path.exists(word) else word.rpartition(":")
    if not colon:
        return _identified(Path(part or path))
    engine, slash, variant = part.partition("/")
    known = _identified(Path(path))
    chosen = [r for r in known if r.engine == engine and (not slash or r.variant == variant)]
    if not chosen:
        there = sorted({f"{r.engine}/{r.variant}" if r.variant else r.engine for r in known})
        raise ChipError(f"{path}: no run of {part}; it has {', '.join(there) or 'none'}")
    return chosen


def _identified(path: Path) -> list[Run]:
    """The runs of a file, older ones with the identity that the config beside them gives."""
    file = runs.read(path)[1]
    return [replace(r, identity=runs.identity_of(r, file.configs)) for r in file.runs]


def document(matched: Sequence[RunPair], alone: Sequence[Run]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "pairs": [
            {"first": _who(p.first), "second": _who(p.second), "metrics": [codec.to_json(line) for line in p.lines]}
            for p in matched
        ],
        "without_partner": [_who(r) for r in alone],
    }


def _who(r: Run) -> dict[str, Any]:
    return {"model": r.model, "engine": r.engine, "variant": r.variant, "scenario": codec.to_json(r.scenario)}


def render(a: dict[str, Any]) -> str:
    rows = [{**pair, **line, "pair": pair} for pair in a["pairs"] for line in pair["metrics"]]
    verdicts = [row["verdict"] for row in rows if row["unit"] == "s"]
    summary = ", ".join(f"{verdicts.count(word)} {word}" for word in ("faster", "slower", "unclear"))
    return f"{table(rows, COLUMNS)}\n\ntimes of the second: {summary}"


def _engines(row: dict[str, Any]) -> str:
    return " -> ".join(dict.fromkeys(f"{r['engine']} {r['variant']}".strip() for r in map(row["pair"].get, SIDES)))


def _quantity(side: str) -> Callable[[dict[str, Any]], str]:
    def shown(row: dict[str, Any]) -> str:
        value, unit = row[side], row["unit"]
        return duration(value) if unit == "s" else gib(value) if unit == "B" else f"{value:.3g} {unit}"

    return shown


SIDES = ("first", "second")
COLUMNS: tuple[Column, ...] = (
    ("model", lambda r: r["pair"]["first"]["model"]), ("engine", _engines),
    ("point", lambda r: Scenario(**r["pair"]["first"]["scenario"]).name), ("metric", "metric", str),
    *((side, _quantity(side), str) for side in SIDES),
    *((title, key, lambda ratio: f"{ratio - 1:+.1%}") for title, key in CHANGES), ("verdict", "verdict", str),
    ("samples", lambda r: "{} / {}".format(*r["samples"])),
)  # fmt: skip
