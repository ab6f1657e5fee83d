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

from chip.files import output
from chip.show.cli import options
from chip.show.cli.streams import progress
from chip.show.cli.text import Column, number, once, span, table
from chip.show.report.figure_file import PICTURE, output_of
from chip.types import ChipError

HELP = "which GPUs and how many keep an SLO at a request rate, and what they cost"
EPILOG = """\
  chip plan llama-3.1-8b --workload azure-conversation --rate 50 --slo ttft_p99=500ms,tpot_p99=40ms \\
      --gpu h100,h200,l40s --tp 1,2,4,8 --price h100=2.5,h200=3.5,l40s=1 --jobs 2
  chip plan llama-3.1-70b --workload poisson:prompt=800,output=200 --rate 10 --slo ttft_p95=1s --gpu h200 --tp 2,4,8
"""
AXES = ("gpu", "tp", "pp", "ep", "dtype")  # that choices differ in
LEGEND = """\
ordered by "GPUs, sure" (what the low end of the rate takes) or "cost/h, sure"; =: tied, each rate lies within the
other's interval"""
LEGEND_HIGHEST = """\
each at the highest rate of a replica; ordered by what the low end of that rate costs, or gives a GPU; =: tied, each
rate lies within the other's interval"""
SPLIT = "* workers for prompts and for decodes, as 1p1d,2p1d; auto tries several and engines that do both"
FLEET = ("replicas", "GPUs", "GPUs, sure", "cost/h", "cost/h, sure")  # for the asked rate
REPLICA = ("tokens/s a GPU",)  # at its highest
COLUMNS: tuple[Column, ...] = (  # "sure": at the low end of the rate
    ("#", lambda c: f"{c['place']}{'=' if c['tied'] else ''}", str), ("replica", "title", str),
    ("rate a replica", "max_rate_per_s", number), ("90 % interval", "interval", span(number)),
    ("replicas", "replicas", str), ("GPUs", "gpus", str),
    ("GPUs, sure", lambda c: c["sure_gpus"] if c["interval"] else None, number), ("cost/h", "cost_per_hour", number),
    ("cost/h, sure", lambda c: c["sure_cost_per_hour"] if c["interval"] else None, number),
    ("tokens/s a GPU", "tokens_per_s_per_gpu", number), ("cost/M tokens", "cost_per_million_tokens", number),
    ("J/token", "joules_per_output_token", number), ("limited by", "limited_by", str), ("rests on", "rests_on", str),
)  # fmt: skip


def configure(parser: argparse.ArgumentParser) -> None:
    from chip.simulator.plan import REQUESTS
    from chip.simulator.setup import LINK, SEED

    add = parser.add_argument
    add("model", metavar="MODEL", help="bundled name, config.json, its folder, or hub id")
    add("--workload", required=True, help="bundled trace, file of requests, or synthetic traffic (`chip simulate`)")
    add("--rate", type=float, help="requests a second that the fleet must serve [each choice at its own highest]")
    add("--slo", required=True, metavar="GOALS", help="ttft_p99=500ms,tpot_p99=40ms; p50, p90, p95 or p99")
    options.add_question(parser, several=AXES)
    add("--split", default="", metavar="XpYd", help=SPLIT)
    add(
        "--kv-link",
        default=LINK,
        metavar="NAME",
        help="of a split, for keys and values: ib, nvlink or pcie [%(default)s]",
    )
    add("--price", default="", metavar="PRICES", help="of a GPU for an hour: h100=2.5,h200=3.5, a file, or example")
    add("--requests", type=int, default=REQUESTS, help="of each simulation, at least [%(default)s]")
    add("--seed", type=int, default=SEED, help="of synthetic traffic [%(default)s]")
    add("--no-intervals", action="store_true", help="find rates only")
    options.add(parser, "--jobs", "--ray")
    options.add_file(parser, "--plot", help="draw cost or GPUs against the rate that is kept (.svg)")


def outputs(args: argparse.Namespace) -> list[output.Output]:
    return [output_of(args.plot, ".svg")]


def run(args: argparse.Namespace) -> int:
    from chip.show.report import traffic_plot
    from chip.simulator import prices
    from chip.simulator.jobs import pool_of
    from chip.simulator.plan import plan

    if args.plot is not None and args.rate is None:
        raise ChipError("--plot draws fleets for a rate: give --rate")
    system = options.question(args)
    axes = {f"{name}s": system.pop(name) for name in AXES}
    planned = plan(
        args.model,
        workload=args.workload,
        rate=args.rate,
        goals=args.slo,
        splits=args.split.split(","),
        kv_link=args.kv_link,
        prices=prices.parse(args.price),
        requests=args.requests,
        seed=args.seed,
        intervals=not args.no_intervals,
        pool=pool_of(args.jobs, args.ray, progress("choices")),
        **axes,
        **system,
    ).json()
    if args.plot:
        output.write(args.plot, traffic_plot.pareto(planned), PICTURE)
    print(json.dumps(planned, indent=1, allow_nan=False) if args.json else render(planned))
    for note in (*planned["notes"], *_notes_of_choices(planned["choices"])):
        print(f"note: {note}", file=sys.stderr)
    return 0 if any(c["status"] == "ok" for c in planned["choices"]) else 1


def render(a: dict[str, Any]) -> str:
    promised = ", ".join(f"{name} {ms:g} ms" for name, ms in a["slo"].items())
    fleet = a["rate_per_s"] is not None
    rate = f"{a['rate_per_s']:g} requests/s" if fleet else "the highest rate"
    parts = [f"{a['model']}: {rate} of {a['workload']} within {promised}", ""]
    if rows := [c for c in a["choices"] if c["status"] == "ok"]:
        legend = LEGEND if rows[0]["interval"] else "ordered by GPUs, or by cost/h where all prices are known"
        columns = (
            [c for c in COLUMNS if c[0] != "tokens/s a GPU"] if fleet else [c for c in COLUMNS if c[0] not in FLEET]
        )
        parts += [table(rows, columns), "", legend if fleet else LEGEND_HIGHEST]
    for c in a["choices"]:
        if c["reason"]:
            parts.append(": ".join([c["title"], *([c["status"]] if c["status"] != "ok" else []), c["reason"]]))
    return "\n".join(parts)


def _notes_of_choices(choices: list[dict[str, Any]]) -> list[str]:
    """Each note once, with the choices that it is about where it is not about all."""
    about = once((c["title"], note) for c in choices for note in c["notes"])
    answered = sum(bool(c["notes"]) for c in choices)
    return [note if len(titles) == answered else f"{'; '.join(titles)}: {note}" for note, titles in about.items()]
