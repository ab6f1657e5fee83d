"""Run real inference and measure it: TTFT, each decode step, memory, energy, and what the device waited for.

MODEL is a bundled name, a config.json, its folder or a hub id. Without weights beside the config they are random and
made on the device. With weights and a tokenizer, --prompt-text sends real text through the chat template. Lists make a
grid; each point is kept when it is done, so the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
from array import array
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from chip.engines.sampling import GREEDY, parts_of
from chip.files import artifact, output
from chip.files.runs import Run
from chip.show.cli import options
from chip.show.cli.bench_text import document, render, render_traffic, traffic_document
from chip.types import ChipError, Scenario

if TYPE_CHECKING:
    from chip.lab.measure.device import Device
    from chip.lab.run import Job
    from chip.lab.run.grid import SessionPlan
    from chip.simulator.workload import Workload

HELP = "run a model for real: TTFT, TPOT, memory, energy, and how long the GPU sat idle, and why"
EPILOG = """\
  chip bench tinyllama-1.1b --engine hf-graph --dtype fp16 --output 128
  chip bench llama-3.1-8b --engine hf-eager --sdpa flash --batch 1,8,32 --prompt 128,1024
  chip bench qwen2.5-7b --engine vllm --python /opt/vllm/bin/python
  chip bench llama-3.1-8b --engine vllm --workload azure-conversation --rate 4,12,0 --requests 300 -o traffic.json
  chip bench llama-3.1-8b --engine vllm --server --workload poisson --rate 4,16,30 --requests 240 -o server.json
  chip bench ./my-model --engine hf-eager --prompt-text "What is a roofline?" --system "Be brief."
  chip bench llama-3.1-8b qwen3-8b --engine hf-eager,hf-graph -o results.json --json
"""
FILE = Path("artifacts/llm.json")


def configure(parser: argparse.ArgumentParser) -> None:
    from chip.lab import run  # names and defaults alone: torch comes with the first session

    add = parser.add_argument
    add("models", metavar="MODEL", nargs="+", help="bundled name, config.json, its folder, or hub id")
    add("--engine", required=True, help=f"{', '.join(run.names())}, or several with commas")
    add("--batch", default="1", help="requests submitted at once; several with commas [%(default)s]")
    add("--prompt", default="1024", help="tokens of each prompt; several with commas [%(default)s]")
    add("--output", default="128", help="tokens generated for each; several with commas [%(default)s]")
    add("--points", default="", help="batch x prompt pairs instead of a grid: 1x128,8x512")
    add("--repeats", type=int, default=5, help="requests timed at each point [%(default)s]")
    for name, default, text in (
        ("--max-seconds", run.MAX_SECONDS, "stop repeating a point after this long"),
        ("--timeout", run.TIMEOUT_S, "give a point up after this many seconds"),
        ("--energy-seconds", run.ENERGY_S, "work for each energy figure, 0 for none"),
    ):
        add(name, type=float, default=default, help=f"{text} [%(default)g]")
    add("--no-profile", action="store_true", help="only time: no look at the GPU's idle share under the profiler")
    add("--sdpa", choices=run.SDPA, default="", help="attention backend of the HF engines [torch's choice]")
    options.add(
        parser, "--device", "--dtype", "--energy-probe", "--weights", "--prompt-text", "--system", "--raw-prompt",
        "--trust-remote-code", "--python", "--engine-setting", "--force",
    )  # fmt: skip
    add("--workload", default="", help="live traffic instead of batches (vllm), as in `chip simulate`")
    add("--rate", default="", help="of --workload: requests a second, several with commas, 0 for all at once")
    add("--requests", type=int, default=None, help="of --workload: how many [all of a file, else 1000]")
    add("--server", action="store_true", help="of --workload: through vLLM's HTTP server, streamed over loopback")
    add("--concurrency", type=int, default=0, metavar="N", help="of --server: N users who wait for their answers")
    choice = "of --server: how tokens are chosen, as in `chip predict` [greedy]"
    add("--sampling", default=GREEDY, metavar="HOW", help=choice)
    add("--seed", type=int, default=0, help="of a synthetic --workload [%(default)s]")
    options.add_file(parser, "-o", "--out", dest="file", default=FILE, help="file of runs [%(default)s]")
    options.add_file(
        parser, "--traces", metavar="DIR", help="vllm: also keep every launch of a step of each point, as a trace"
    )


def outputs(args: argparse.Namespace) -> list[output.Output]:
    from chip.simulator.recorded import TrafficRun

    return [(args.file, TrafficRun.SCHEMA if args.workload else Run.SCHEMA), (args.traces, output.FOLDER)]


def run(args: argparse.Namespace) -> int:
    points = _points(args)
    if parts_of(args.sampling) and not args.server:
        raise ChipError("--sampling is of --server, whose requests ask for it; all else is greedy")
    if args.workload:
        return _traffic(args)
    if args.rate or args.requests or args.server or args.concurrency:
        raise ChipError("--rate, --requests, --server and --concurrency are of traffic; give --workload too")
    from chip.lab.run import grid

    device = options.device(args)
    options.choose_energy_probe(args)
    plans = _plans(args, points, device)
    options.refuse_busy(args, device)
    with output.locked(args.file):
        ledger = grid.RunsFile(args.file, device)
        measured = grid.measure(plans, ledger, args.repeats, _tell, look=not args.no_profile)
    print(json.dumps(document(measured, str(args.file)), indent=1) if args.json else render(measured))
    print(f"wrote {args.file}", file=sys.stderr)
    return 1 if any(r.status == "failed" for r in measured) else 0


def _tell(text: str) -> None:
    print(f"chip bench: {text}", file=sys.stderr)


def _traffic(args: argparse.Namespace) -> int:
    """The workload for real; see chip.lab.run.traffic."""
    from chip.lab.run import able, check
    from chip.simulator.simulation import traffic

    check(args.engine)
    if args.engine not in (serving := able("traffic")):
        raise ChipError(f"--workload: {args.engine} serves no live traffic here; {' and '.join(serving)} can")
    if args.prompt_text:
        raise ChipError("--workload has lengths of its own; --prompt-text does not go with it")
    workloads = [traffic(args.workload, args.requests, options.rate(word), args.seed) for word in args.rate.split(",")]
    if args.concurrency:
        workloads = [_closed(w, args) for w in workloads]
    if any(w.users for w in workloads) and not args.server:
        raise ChipError("a closed loop of users runs through --server; without it take poisson, gamma or a trace")
    from chip.lab.run.traffic import measure

    device = options.device(args)
    jobs = [_job(args, model, [(1, max(max(w.prompt) for w in workloads))], device) for model in args.models]
    options.refuse_busy(args, device)
    planned = [(w.rate_per_s, w) for w in workloads]
    measured = measure(jobs, planned, args.seed, args.file, device, _tell, args.engine, args.server)
    print(json.dumps(traffic_document(measured, str(args.file)), indent=1) if args.json else render_traffic(measured))
    print(f"wrote {args.file}", file=sys.stderr)
    return 1 if any(r.status != "ok" for r in measured) else 0


def _closed(w: Workload, args: argparse.Namespace) -> Workload:
    """The same requests, asked by users who wait for their answers."""
    if args.rate or not args.server or not 1 <= args.concurrency <= 100_000:
        raise ChipError("--concurrency is of --server, from 1 to 100000, and takes the place of --rate")
    return replace(w, users=args.concurrency, arrival_s=array("d", bytes(8 * len(w))))


def _points(args: argparse.Namespace) -> list[tuple[int, int]]:
    """(batch, prompt) pairs, checked before anything is loaded."""
    for name, least in (("repeats", 2), ("max_seconds", 0), ("timeout", 1), ("energy_seconds", 0)):
        options.between(args, [name], least, 1e6, "1e6")
    numbers(args.output, "output")
    if (args.system or args.raw_prompt) and not args.prompt_text:
        raise ChipError("--system and --raw-prompt go with --prompt-text")
    if args.points:
        pairs = [word.split("x") for word in args.points.split(",")]
        if any(len(p) != 2 for p in pairs):
            raise ChipError(f"--points must be pairs like 1x128,8x512, got {args.points!r}")
        return [(whole(b, "points"), whole(p, "points")) for b, p in pairs]
    return list(product(numbers(args.batch, "batch"), numbers(args.prompt, "prompt")))


def numbers(words: str, option: str) -> list[int]:
    return [whole(word, option) for word in words.split(",")]


def whole(word: str, option: str) -> int:
    if not word.strip().isdecimal() or not 1 <= int(word) <= 2**24:
        raise ChipError(f"--{option}: {word!r} is not a whole number between 1 and 2^24")
    return int(word)


def settings(words: list[str]) -> dict[str, str]:
    pairs = [word.partition("=") for word in words]
    for key, equals, _ in pairs:
        if not key or not equals:
            raise ChipError(f"--engine-setting {key!r}: must be key=value")
    return {key: value for key, _, value in pairs}


def _plans(args: argparse.Namespace, points: list[tuple[int, int]], device: Device) -> list[SessionPlan]:
    from chip.lab.run import get, grid

    engines = args.engine.split(",")
    for name in engines:
        get(name)  # before the first model is loaded
    jobs = [_job(args, model, points, device) for model in args.models]
    outputs = numbers(args.output, "output")
    return [
        grid.SessionPlan(engine, job, _scenarios(job, engine, points, outputs)) for job in jobs for engine in engines
    ]


def _job(args: argparse.Namespace, model: str, points: list[tuple[int, int]], device: Device) -> Job:
    from chip.lab.run import Job, text
    from chip.lab.run.model import locate

    path, title, folder = locate(model, args.weights)
    ids: tuple[int, ...] = ()
    if args.prompt_text:
        if folder is None:
            raise ChipError(f"{model}: --prompt-text needs a folder with weights and tokenizer, not a config alone")
        ids = text.encode(folder, args.prompt_text, args.system, args.raw_prompt, args.trust_remote_code)
    longest = (len(ids) or max(prompt for _, prompt in points)) + max(numbers(args.output, "output"))
    return Job(
        model=title,
        config=artifact.read_json(path),
        folder=folder,
        dtype=device.dtype(args.dtype),
        device=device.name,
        max_context=longest,
        sdpa=args.sdpa,
        prompt_ids=ids,
        python=args.python,
        sampling=args.sampling,
        settings=settings(args.engine_setting),
        max_seconds=args.max_seconds,
        timeout_s=args.timeout,
        energy_s=args.energy_seconds,
        trust_remote_code=args.trust_remote_code,
        traces=args.traces,
    )


def _scenarios(job: Job, engine: str, points: list[tuple[int, int]], outputs: list[int]) -> tuple[Scenario, ...]:
    from chip.lab.run import get

    of_engine = getattr(get(engine), "formats", None)
    dtype, kv_dtype = of_engine(job) if of_engine else job.formats
    scenarios = (
        Scenario(batch, len(job.prompt_ids) or prompt, output, dtype, kv_dtype=kv_dtype)
        for (batch, prompt), output in product(points, outputs)
    )
    return tuple(dict.fromkeys(scenarios))
