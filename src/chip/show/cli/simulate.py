"""Simulate live traffic: requests arrive, wait, share steps and compete for memory, as in vLLM's scheduler.

WORKLOAD is a bundled trace (azure-conversation, azure-code, mooncake-conversation), a JSON Lines file of
{"arrival_s", "prompt", "output"[, "blocks": [ids]]}, or synthetic: poisson, gamma (bursty), uniform, closed (a loop of
users) or batch (all at once), as in poisson:prompt=400~0.9,output=120~0.8 (median and spread) or closed:users=16.
TTFT is from the planned arrival to the end of the step that gives the first token; TPOT is (last - first) / (output -
1). The engine runs in the caller's process; requests are admitted between its steps. --server puts vLLM's HTTP server
before it, with an engine core in a process of its own; --server-request-ms and --server-token-us one in your figures.
"""

from __future__ import annotations

import argparse
import json
import sys

from chip.files import output
from chip.show.cli import options
from chip.show.cli.simulate_text import render, render_sweep
from chip.show.cli.streams import progress
from chip.show.report.figure_file import PICTURE, output_of
from chip.types import ChipError

HELP = "live traffic on an engine: TTFT, TPOT, queues, goodput and energy at a request rate"
EPILOG = """\
  chip simulate llama-3.1-8b --gpu h200 --workload azure-conversation --rate 12 --slo ttft=500ms,tpot=40ms
  chip simulate llama-3.1-8b --workload poisson:prompt=512,output=128 --rate 5,10,20,40 --plot latency.svg
  chip simulate qwen3-8b --workload mooncake-conversation --rate 2 --replicas 2 --router prefix
  chip simulate llama-3.1-8b --workload my.jsonl --engine-setting max_num_seqs=64,enable_prefix_caching=false --json
"""
SWEEP = "chip.simulations/1"
SPLIT = "workers for prompts and workers for decodes, such as 2p1d, instead of engines that do both"


def configure(parser: argparse.ArgumentParser) -> None:
    from chip.simulator.setup import DRAWS, LINK, REQUESTS, SEED

    add = parser.add_argument
    add("model", metavar="MODEL", help="bundled name, config.json, its folder, or hub id")
    add("--workload", required=True, help="bundled trace, file of requests, or synthetic traffic")
    options.add_question(parser)
    add("--server", action="store_true", help="the engine's HTTP server before it, as measured")
    add(
        "--server-request-ms",
        type=float,
        default=0.0,
        metavar="MS",
        help="of a request, your own figure [none]",
    )
    add("--server-token-us", type=float, default=0.0, metavar="US", help="to pass one output token on [none]")
    add("--rate", default="", help="requests a second, several with commas, 0 for all at once [as in the workload]")
    add("--requests", type=int, default=None, help=f"how many [all of a file, else {REQUESTS}]")
    add("--seed", type=int, default=SEED, help="of synthetic traffic and of intervals [%(default)s]")
    add("--replicas", type=int, default=1, help="engines side by side [%(default)s]")
    add("--split", default="", metavar="XpYd", help=SPLIT)
    add(
        "--kv-link",
        default=LINK,
        metavar="NAME",
        help="of a split, for keys and values: ib, nvlink or pcie [%(default)s]",
    )
    add("--router", default="round-robin", help="round-robin, least-loaded or prefix [%(default)s]")
    add("--slo", default="", metavar="GOALS", help="of each request, for goodput: ttft=500ms,tpot=40ms")
    add("--draws", type=int, default=DRAWS, help="simulations for 90 %% intervals, 0 for none [%(default)s]")
    add("--no-intervals", action="store_true", help="the same as --draws 0")
    options.add(parser, "--jobs", "--ray")
    options.add_file(parser, "--requests-out", help="write every request as JSON Lines")
    options.add_file(parser, "--timeline", help="write queue, batch and KV use over time as JSON")
    options.add_file(parser, "--plot", help="draw that, or latency against rate where there are several (.svg)")


def outputs(args: argparse.Namespace) -> list[output.Output]:
    from chip.simulator.answer import REQUESTS, TIMELINE

    return [(args.requests_out, REQUESTS), (args.timeline, TIMELINE), output_of(args.plot, ".svg")]


def run(args: argparse.Namespace) -> int:
    from chip.show.report import traffic_plot
    from chip.simulator.answer import REQUESTS, TIMELINE
    from chip.simulator.jobs import pool_of
    from chip.simulator.simulation import sweep

    rates = [options.rate(word) for word in args.rate.split(",")]
    if len(rates) > 1 and (args.requests_out or args.timeline):
        raise ChipError("--requests-out and --timeline are of one rate")
    pool = pool_of(args.jobs, args.ray, progress("simulations"))

    simulations = sweep(
        args.model,
        rates,
        pool,
        workload=args.workload,
        server=args.server,
        server_request_ms=args.server_request_ms,
        server_token_us=args.server_token_us,
        requests=args.requests,
        seed=args.seed,
        replicas=args.replicas,
        split=args.split,
        kv_link=args.kv_link,
        router=args.router,
        goals=args.slo,
        draws=0 if args.no_intervals else args.draws,
        timeline=bool(args.timeline or args.plot) and len(rates) == 1,
        **options.question(args),
    )
    first, *others = simulations
    documents = [s.json() for s in simulations]
    if args.requests_out:
        output.write(args.requests_out, "".join(line + "\n" for line in first.per_request()), REQUESTS)
    if args.timeline:
        output.write(args.timeline, json.dumps(first.timeline_json()) + "\n", TIMELINE)
    if args.plot:
        output.write(args.plot, traffic_plot.svg(documents, first.timeline_json()), PICTURE)
    if args.json:
        answer = {"schema": SWEEP, "simulations": documents} if others else documents[0]
        print(json.dumps(answer, indent=1, allow_nan=False))
    else:
        print(render_sweep(documents) if others else render(documents[0]))
    for note in dict.fromkeys(note for s in simulations for note in s.notes):
        print(f"note: {note}", file=sys.stderr)
    return 0 if all(s.completed for s in simulations) else 1
