"""Simulate live traffic: requests arrive, wait, share steps and compete for memory, as in vLLM's scheduler.

WORKLOAD is a bundled trace (azure-conversation, azure-code, mooncake-conversation), a JSON Lines file of
{"arrival_s", "prompt", "output"[, "blocks": [ids]]}, or synthetic: poisson, gamma (bursty), uniform, closed (a loop of
users) or batch (all at once), as in poisson:prompt=400~0.9,output=120~0.8 (median and spread) or closed:users=16.
TTFT is from the planned arrival to the end of the step that gives the first token; TPOT is (last - first) / (output -
1). The engine runs in the caller's process; requests are admitted between its steps. --server-request-ms and
--server-token-us add a server before it, in figures of your own.
"""

from __future__ import annotations

import argparse
import json
import sys

from chip import output
from chip.cli import question_options
from chip.cli.simulate_text import render, render_sweep
from chip.report.figure_file import PICTURE, output_of
from chip.types import ChipError

HELP = "live traffic on an engine: TTFT, TPOT, queues, goodput and energy at a request rate"
EPILOG = """\
  chip simulate llama-3.1-8b --gpu h200 --workload azure-conversation --rate 12 --slo ttft=500ms,tpot=40ms
  chip simulate llama-3.1-8b --workload poisson:prompt=512,output=128 --rate 5,10,20,40 --plot latency.svg
  chip simulate qwen3-8b --workload mooncake-conversation --rate 2 --replicas 2 --router prefix
  chip simulate llama-3.1-8b --workload my.jsonl --engine-setting max_num_seqs=64,enable_prefix_caching=false --json
"""
SWEEP = "chip.simulations/1"


def configure(parser: argparse.ArgumentParser) -> None:
    from chip.simulate.setup import DRAWS, REQUESTS, SEED

    add = parser.add_argument
    add("model", metavar="MODEL", help="bundled name, config.json, its folder, or hub id")
    add("--workload", required=True, help="bundled trace, file of requests, or synthetic traffic")
    question_options.add(parser)
    add("--server", action="store_true", help="a server before the engine; needs your own figures of it, as follows")
    add("--server-request-ms", type=float, default=0.0, metavar="MS", help="of a request: HTTP, tokenising [none]")
    add("--server-token-us", type=float, default=0.0, metavar="US", help="to pass one output token on [none]")
    add("--rate", default="", help="requests a second, several with commas, 0 for all at once [as in the workload]")
    add("--requests", type=int, default=None, help=f"how many [all of a file, else {REQUESTS}]")
    add("--seed", type=int, default=SEED, help="of synthetic traffic and of intervals [%(default)s]")
    add("--replicas", type=int, default=1, help="engines side by side [%(default)s]")
    add("--router", default="round-robin", help="round-robin, least-loaded or prefix [%(default)s]")
    add("--slo", default="", metavar="GOALS", help="of each request, for goodput: ttft=500ms,tpot=40ms")
    add("--draws", type=int, default=DRAWS, help="simulations for 90 %% intervals, 0 for none [%(default)s]")
    add("--no-intervals", action="store_true", help="the same as --draws 0")
    add("--jobs", type=int, default=1, help="processes for draws and rates; 0 for one a core [%(default)s]")
    add("--ray", metavar="ADDRESS", default="", help="spread over a Ray cluster instead: local, or its address")
    add("--requests-out", metavar="FILE", type=output.path, help="write every request as JSON Lines")
    add("--timeline", metavar="FILE", type=output.path, help="write queue, batch and KV use over time as JSON")
    add(
        "--plot",
        metavar="FILE",
        type=output.path,
        help="draw that, or latency against rate where there are several (.svg)",
    )
    add("--json", action="store_true", help="one JSON document on stdout")


def outputs(args: argparse.Namespace) -> list[output.Output]:
    from chip.simulate.answer import REQUESTS, TIMELINE

    return [(args.requests_out, REQUESTS), (args.timeline, TIMELINE), output_of(args.plot, ".svg")]


def run(args: argparse.Namespace) -> int:
    from chip.report import traffic_plot
    from chip.simulate.answer import REQUESTS, TIMELINE
    from chip.simulate.jobs import pool_of
    from chip.simulate.simulation import sweep

    rates: list[float | None] = [_rate(word) for word in args.rate.split(",")] if args.rate else [None]
    if len(rates) > 1 and (args.requests_out or args.timeline):
        raise ChipError("--requests-out and --timeline are of one rate")
    if args.server and not (args.server_request_ms or args.server_token_us):
        raise ChipError(
            "--server: nobody measured what vLLM's HTTP server takes; give your own figures with --server-request-ms "
            "and --server-token-us"
        )
    pool = pool_of(args.jobs, args.ray, _progress if sys.stderr.isatty() else None)

    found = sweep(
        args.model,
        rates,
        pool,
        workload=args.workload,
        server_request_ms=args.server_request_ms,
        server_token_us=args.server_token_us,
        requests=args.requests,
        seed=args.seed,
        replicas=args.replicas,
        router=args.router,
        goals=args.slo,
        draws=0 if args.no_intervals else args.draws,
        timeline=bool(args.timeline or args.plot) and len(rates) == 1,
        **question_options.values(args),
    )
    if args.requests_out:
        output.write(args.requests_out, "".join(line + "\n" for line in found[0].per_request()), REQUESTS)
    if args.timeline:
        output.write(args.timeline, json.dumps(found[0].timeline_json()) + "\n", TIMELINE)
    if args.plot:
        output.write(args.plot, traffic_plot.svg([s.json() for s in found], found[0].timeline_json()), PICTURE)
    if args.json:
        several = {"schema": SWEEP, "simulations": [s.json() for s in found]}
        print(json.dumps(several if len(found) > 1 else found[0].json(), indent=1, allow_nan=False))
    else:
        print(render(found[0].json()) if len(found) == 1 else render_sweep([s.json() for s in found]))
    for note in dict.fromkeys(note for s in found for note in s.notes):
        print(f"note: {note}", file=sys.stderr)
    return 0 if all(s.completed for s in found) else 1


def _rate(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise ChipError(f"--rate {word[:40]!r}: must be requests a second, as in 5 or 5,10,20") from None


def _progress(done: int, total: int) -> None:
    print(f"\r{done} of {total}", end="\n" if done == total else "", file=sys.stderr, flush=True)
