"""`chip calibrate --from`: a host's terms from what benchmarking clients measured on it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from math import exp
from pathlib import Path
from typing import Any

from chip.files import artifact, codec
from chip.hardware.hosts import LATENCY
from chip.show.cli.text import Column, duration, signed, table
from chip.simulator.machine import DECODES, LOOP, PROMPTS
from chip.types import ChipError, HostProfile
from chip.validate import clients, host_fit
from chip.validate.host_fit import FittedHost

WITHOUT = ("engine", "runs", "python", "engine_setting", "only", "restart", "device", "host")
WORDS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL"}
ERRORS: tuple[Column, ...] = (
    ("fitted to", "title", str),
    *((f"{word} {when}", f"{name}_{when}", signed) for name, word in WORDS.items() for when in ("before", "after")),
)  # fmt: skip


def run(args: argparse.Namespace) -> int:
    strays = [name for name in WITHOUT if getattr(args, name)] + ["full"] * (args.mode == "full")
    if strays:
        raise ChipError(f"--{strays[0].replace('_', '-')} does not go with --from")
    path = args.output or Path("host.json")
    results = [result for file in args.results for result in clients.read(file)]
    if len(results) > host_fit.MOST_RUNS:
        raise ChipError(
            f"--from takes up to {host_fit.MOST_RUNS} runs, these files hold {len(results)}: the others are to judge by"
        )
    system = {name: getattr(args, name) for name in ("model", "gpu") if getattr(args, name)}
    print(f"fitting to {len(results)} runs, some seconds each", file=sys.stderr, flush=True)
    fitted = host_fit.fit(results, system, path.stem)
    inputs = [str(artifact.read(r.path, r.schema).id) for r in results if r.schema]
    made = artifact.new(HostProfile.SCHEMA, codec.to_json(fitted.host), {}, inputs)
    artifact.write(path, made)
    print(artifact.read_text(path).rstrip() if args.json else render(fitted))
    print(f"chip calibrate: wrote {path}; use it with `chip simulate MODEL --server --host {path}`", file=sys.stderr)
    return 0


def render(fitted: FittedHost) -> str:
    terms = fitted.host.terms
    latency, *steps = (terms[name] for name in (LATENCY, DECODES, PROMPTS))
    lines = [
        f"launches a small kernel in {duration(latency.value)} ({duration(latency.low)} to {duration(latency.high)})"
    ]
    for words, term in zip(("steps of decodes", "steps with prompts"), steps):
        lines.append(f"{words} take {term.value:.3f} of what is predicted ({term.low:.3f} to {term.high:.3f})")
    if loop := [(name.replace("_", " "), terms[name]) for name in LOOP if name in terms]:
        lines.append(", ".join(f"{name} {duration(term.value)}" for name, term in loop))
    return "\n".join([*lines, "", table(_rows(fitted), ERRORS)])


def _rows(fitted: FittedHost) -> Iterator[dict[str, Any]]:
    for result, before, after in fitted.errors:
        row: dict[str, Any] = {"title": result.title}
        for when, errors in (("before", before), ("after", after)):
            row |= {f"{name}_{when}": exp(value) - 1 for name, value in errors.items()}
        yield row
