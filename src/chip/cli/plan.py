"""Plan a fleet: for each choice of GPU, tensor parallelism and dtype the highest rate within the SLO, how many
replicas the asked rate needs, what they cost, and what limits them.

The SLO is one of percentiles: --slo ttft_p99=500ms,tpot_p99=40ms. Prices are your own, for one GPU and hour
(--price h100=2.5,h200=3.5, a file, or `example` for the bundled one); without them the fewest GPUs win. The order goes
by the low end of the 90 % interval of the rate; choices are tied where each rate lies within the other's interval. A
choice that does not fit or cannot meet the SLO says so; the others go on.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from chip import output
from chip.cli import question_options
from chip.cli.text import number, table
from chip.report.figure_file import PICTURE, output_of

HELP = "which GPUs and how many keep an SLO at a request rate, and what they cost"
EPILOG = """\
  chip plan llama-3.1-8b --workload azure-conversation --rate 50 --slo ttft_p99=500ms,tpot_p99=40ms \\
      --gpu h100,h200,l40s --tp 1,2,4,8 --price h100=2.5,h200=3.5,l40s=1 --jobs 2
  chip plan llama-3.1-70b --workload poisson:prompt=800,output=200 --rate 10 --slo ttft_p95=1s --gpu h200 --tp 2,4,8
"""
SURE = ("GPUs, sure", "cost/h, sure")  # at the low end of the rate
AXES = ("gpu", "tp", "pp", "ep", "dtype")  # that choices differ in
LEGEND = """\
ordered by "GPUs, sure" (what the low end of the rate takes) or "cost/h, sure"; =: tied, each rate lies within the
other's interval"""


def configure(parser: argparse.ArgumentParser) -> None:
    from chip.simulate.plan import REQUESTS
    from chip.simulate.setup import SEED

    add = parser.add_argument
    add("model", metavar="MODEL", help="bundled name, config.json, its folder, or hub id")
    add("--workload", required=True, help="bundled trace, file of requests, or synthetic traffic (`chip simulate`)")
    add("--rate", type=float, required=True, help="requests a second that the fleet must serve")
    add("--slo", required=True, metavar="GOALS", help="ttft_p99=500ms,tpot_p99=40ms; p50, p90, p95 or p99")
    question_options.add(parser, several=AXES)
    add("--price", default="", metavar="PRICES", help="of a GPU for an hour: h100=2.5,h200=3.5, a file, or example")
    add("--requests", type=int, default=REQUESTS, help="of each simulation [%(default)s]")
    add("--seed", type=int, default=SEED, help="of synthetic traffic [%(default)s]")
    add("--no-intervals", action="store_true", help="find rates only: about twice as fast")
    add("--jobs", type=int, default=1, help="processes; 0 for one a core [%(default)s]")
    add("--ray", metavar="ADDRESS", default="", help="spread over a Ray cluster instead: local, or its address")
    add("--plot", metavar="FILE", type=output.path, help="draw cost or GPUs against the rate that is kept (.svg)")
    add("--json", action="store_true", help="one JSON document on stdout")


def outputs(args: argparse.Namespace) -> list[output.Output]:
    return [output_of(args.plot, ".svg")]


def run(args: argparse.Namespace) -> int:
    from chip.report import traffic_plot
    from chip.simulate import prices
    from chip.simulate.jobs import pool_of
    from chip.simulate.plan import plan

    system = question_options.values(args)
    axes = {f"{name}s": system.pop(name) for name in AXES}
    found = plan(
        args.model,
        workload=args.workload,
        rate=args.rate,
        goals=args.slo,
        prices=prices.parse(args.price),
        requests=args.requests,
        seed=args.seed,
        intervals=not args.no_intervals,
        pool=pool_of(args.jobs, args.ray, _progress if sys.stderr.isatty() else None),
        **axes,
        **system,
    ).json()
    if args.plot:
        output.write(args.plot, traffic_plot.pareto(found), PICTURE)
    print(json.dumps(found, indent=1, allow_nan=False) if args.json else render(found))
    for note in (*found["notes"], *_notes_of_choices(found["choices"])):
        print(f"note: {note}", file=sys.stderr)
    return 0 if any(c["status"] == "ok" for c in found["choices"]) else 1


def render(a: dict[str, object]) -> str:
    promised = ", ".join(f"{name} {ms:g} ms" for name, ms in a["slo"].items())  # type: ignore[attr-defined]
    head = f"{a['model']}: {a['rate_per_s']:g} requests/s of {a['workload']} within {promised}"
    choices: list[dict[str, object]] = a["choices"]  # type: ignore[assignment]
    rows = [_row(c) for c in choices if c["status"] == "ok"]
    parts = [head, ""]
    if rows:
        right = ("rate a replica", "replicas", "GPUs", *SURE, "cost/h", "cost/M tokens", "J/token")
        legend = LEGEND if SURE[0] in rows[0] else "ordered by GPUs, or by cost/h where all prices are known"
        parts += [table(rows, right=right, keep=tuple(rows[0])), "", legend]
    for c in choices:
        if c["status"] == "ok" and c["reason"]:
            parts.append(f"{c['title']}: {c['reason']}")
        if c["status"] != "ok":
            parts.append(f"{c['title']}: {c['status']}: {c['reason']}")
    return "\n".join(parts)


def _notes_of_choices(choices: list[dict[str, Any]]) -> list[str]:
    """Each note once, with the choices that it is about where it is not about all."""
    about: dict[str, list[str]] = {}
    for c in choices:
        for note in c["notes"]:
            about.setdefault(note, []).append(c["title"])
    answered = sum(bool(c["notes"]) for c in choices)
    return [note if len(titles) == answered else f"{'; '.join(titles)}: {note}" for note, titles in about.items()]


def _row(c: dict[str, Any]) -> dict[str, str]:
    def amount(key: str) -> str:
        return number(float(c[key]), 3) if c[key] is not None else "-"

    row = {
        "#": f"{c['place']}{'=' if c['tied'] else ''}",
        "replica": str(c["title"]),
        "rate a replica": amount("max_rate_per_s"),
    }
    if c["interval"]:
        low, high = c["interval"]
        row["90 % interval"] = f"{number(low, 3)} - {number(high, 3)}"
    row |= {"replicas": str(c["replicas"]), "GPUs": str(c["gpus"])}
    if c["interval"]:
        row[SURE[0]] = amount("sure_gpus")
    row["cost/h"] = amount("cost_per_hour")
    if c["interval"] and c["sure_cost_per_hour"] is not None:
        row[SURE[1]] = amount("sure_cost_per_hour")
    row |= {"cost/M tokens": amount("cost_per_million_tokens"), "J/token": amount("joules_per_output_token")}
    return row | {"limited by": str(c["limited_by"])}


def _progress(done: int, total: int) -> None:
    print(f"\r{done} of {total} choices", end="\n" if done == total else "", file=sys.stderr, flush=True)
