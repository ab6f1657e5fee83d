"""Run real inference and measure it: TTFT, each decode step, memory, energy, and what the device waited for.

MODEL is a bundled name, a config.json, its folder or a hub id. Without weights beside the config they are random and
made on the device. With weights and a tokenizer, --prompt-text sends real text through the chat template. Lists make a
grid; each point is kept when it is done, so the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from chip import artifact, output
from chip.cli import energy_probe
from chip.cli.bench_text import document, render
from chip.runs import Run
from chip.types import ChipError, Scenario

if TYPE_CHECKING:
    from chip.measure.device import Device
    from chip.run import Job
    from chip.run.grid import SessionPlan

HELP = "run a model for real: TTFT, TPOT, memory, energy, and how long the GPU sat idle, and why"
EPILOG = """\
  chip bench tinyllama-1.1b --engine hf-graph --dtype fp16 --output 128
  chip bench llama-3.1-8b --engine hf-eager --sdpa flash --batch 1,8,32 --prompt 128,1024
  chip bench qwen2.5-7b --engine vllm --python /opt/vllm/bin/python
  chip bench llama-3.1-8b --engine vllm --workload azure-conversation --rate 4,12,0 --requests 300 -o traffic.json
  chip bench ./my-model --engine hf-eager --prompt-text "What is a roofline?" --system "Be brief."
  chip bench llama-3.1-8b qwen3-8b --engine hf-eager,hf-graph -o results.json --json
"""
FILE = Path("artifacts/llm.json")
DTYPES = ("bf16", "fp16", "fp32")


def configure(parser: argparse.ArgumentParser) -> None:
    from chip import run  # names and defaults alone: torch comes with the first session

    add = parser.add_argument
    add("models", metavar="MODEL", nargs="+", help="bundled name, config.json, its folder, or hub id")
    add("--engine", required=True, help=f"{', '.join(run.names())}, or several with commas")
    add("--device", default="", help="cuda:N or cpu [the first GPU, else the CPU]")
    add("--batch", default="1", help="requests submitted at once; several with commas [%(default)s]")
    add("--prompt", default="1024", help="tokens of each prompt; several with commas [%(default)s]")
    add("--output", default="128", help="tokens generated for each; several with commas [%(default)s]")
    add("--points", default="", help="batch x prompt pairs instead of a grid: 1x128,8x512")
    add("--dtype", choices=DTYPES, default="", help="[bf16; on a CPU fp32]")
    add("--repeats", type=int, default=5, help="requests timed at each point [%(default)s]")
    add(
        "--max-seconds",
        type=float,
        default=run.MAX_SECONDS,
        help="stop repeating a point after this long [%(default)g]",
    )
    add("--timeout", type=float, default=run.TIMEOUT_S, help="give a point up after this many seconds [%(default)g]")
    add(
        "--energy-seconds",
        type=float,
        default=run.ENERGY_S,
        help="work for each energy figure, 0 for none [%(default)g]",
    )
    energy_probe.add_option(parser)
    add(
        "--no-profile",
        action="store_true",
        help="only time; without it the same command looks under the profiler afterwards, for the GPU's idle share",
    )
    add("--sdpa", choices=run.SDPA, default="", help="attention backend of the HF engines [torch's choice]")
    add("--weights", choices=("auto", "random", "files"), default="auto", help="[files where there are any]")
    add("--prompt-text", metavar="TEXT", default="", help="real text instead of random tokens; needs weights")
    add("--system", metavar="TEXT", default="", help="system prompt that goes with --prompt-text")
    add("--raw-prompt", action="store_true", help="give --prompt-text as it is, without the chat template")
    add("--trust-remote-code", action="store_true", help="run code that comes with a model")
    add("--python", metavar="FILE", default="", help="interpreter of the engine's own environment (vllm)")
    add("--engine-setting", metavar="KEY=VALUE", action="append", default=[], help="for the engine; may be repeated")
    add("--workload", default="", help="live traffic instead of batches (vllm), as in `chip simulate`")
    add("--rate", default="", help="of --workload: requests a second, several with commas, 0 for all at once")
    add("--requests", type=int, default=None, help="of --workload: how many [all of a file, else 1000]")
    add("--seed", type=int, default=0, help="of a synthetic --workload [%(default)s]")
    add("-o", "--out", dest="file", metavar="FILE", type=output.path, default=FILE, help="file of runs [%(default)s]")
    add(
        "--traces",
        metavar="DIR",
        type=output.path,
        help="vllm: also keep every launch of a step of each point, as a trace",
    )
    add("--force", action="store_true", help="measure even while another process uses the GPU")
    add("--json", action="store_true", help="one JSON document on stdout")


def outputs(args: argparse.Namespace) -> list[output.Output]:
    from chip.simulate.recorded import TrafficRun

    return [(args.file, TrafficRun.SCHEMA if args.workload else Run.SCHEMA), (args.traces, output.FOLDER)]


def run(args: argparse.Namespace) -> int:
    points = _points(args)
    if args.workload:
        return _traffic(args)
    if args.rate or args.requests:
        raise ChipError("--rate and --requests are of traffic; give --workload too")
    from chip.measure.device import default_device, open_device, refuse_busy
    from chip.run import grid

    device = open_device(args.device or default_device())
    energy_probe.choose(args)
    plans = _plans(args, points, device)
    if not args.force:
        refuse_busy(device)

    def tell(text: str) -> None:
        print(f"chip bench: {text}", file=sys.stderr)

    with output.locked(args.file):
        ledger = grid.RunsFile(args.file, device)
        found = grid.measure(plans, ledger, args.repeats, tell, look=not args.no_profile)
    print(json.dumps(document(found, str(args.file)), indent=1) if args.json else render(found))
    print(f"wrote {args.file}", file=sys.stderr)
    return 1 if any(r.status == "failed" for r in found) else 0


def _traffic(args: argparse.Namespace) -> int:
    """The workload for real; see chip.run.traffic."""
    from chip.cli.bench_traffic_text import document, render
    from chip.simulate.simulation import traffic

    if args.engine != "vllm":
        raise ChipError(f"--workload runs on vllm, whose scheduler serves live traffic; not on {args.engine}")
    if args.prompt_text:
        raise ChipError("--workload has lengths of its own; --prompt-text does not go with it")
    words = args.rate.split(",") if args.rate else [""]
    made = [traffic(args.workload, args.requests, _rate(word), args.seed) for word in words]
    if any(w.users for w in made):
        raise ChipError("--workload closed:...: only planned arrivals can be run; take poisson, gamma or a trace")
    from chip.measure.device import default_device, open_device, refuse_busy
    from chip.run.traffic import measure

    device = open_device(args.device or default_device())
    longest = [(1, max(max(w.prompt) for w in made))]
    jobs = [_job(args, model, longest, device) for model in args.models]
    if not args.force:
        refuse_busy(device)

    def tell(text: str) -> None:
        print(f"chip bench: {text}", file=sys.stderr)

    found = measure(jobs, [(w.rate_per_s, w) for w in made], args.seed, args.file, device, tell)
    print(json.dumps(document(found, str(args.file)), indent=1) if args.json else render(found))
    print(f"wrote {args.file}", file=sys.stderr)
    return 1 if any(r.status != "ok" for r in found) else 0


def _rate(word: str) -> float | None:
    try:
        return float(word) if word else None
    except ValueError:
        raise ChipError(f"--rate {word[:40]!r}: must be requests a second, as in 5 or 5,10,20") from None


def _points(args: argparse.Namespace) -> list[tuple[int, int]]:
    """(batch, prompt) pairs, checked before anything is loaded."""
    for name, least in (("repeats", 2), ("max_seconds", 0), ("timeout", 1), ("energy_seconds", 0)):
        if not least <= getattr(args, name) <= 1e6:
            raise ChipError(f"--{name.replace('_', '-')} must be between {least} and 1e6, got {getattr(args, name)}")
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
    from chip.run import get, grid

    engines = args.engine.split(",")
    for name in engines:
        get(name)  # before the first model is loaded
    jobs = [_job(args, model, points, device) for model in args.models]
    outputs = numbers(args.output, "output")
    return [
        grid.SessionPlan(engine, job, _scenarios(job, engine, points, outputs)) for job in jobs for engine in engines
    ]


def _job(args: argparse.Namespace, model: str, points: list[tuple[int, int]], device: Device) -> Job:
    from chip.run import Job, text
    from chip.run.model import locate

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
        dtype=args.dtype or ("fp32" if device.kind == "cpu" else "bf16"),
        device=device.name,
        max_context=longest,
        sdpa=args.sdpa,
        prompt_ids=ids,
        python=args.python,
        settings=settings(args.engine_setting),
        max_seconds=args.max_seconds,
        timeout_s=args.timeout,
        energy_s=args.energy_seconds,
        trust_remote_code=args.trust_remote_code,
        traces=args.traces,
    )


def _scenarios(job: Job, engine: str, points: list[tuple[int, int]], outputs: list[int]) -> tuple[Scenario, ...]:
    from chip.run.precision import of_run

    dtype, kv_dtype = of_run(job, engine)
    made = (
        Scenario(batch, len(job.prompt_ids) or prompt, output, dtype, kv_dtype=kv_dtype)
        for (batch, prompt), output in product(points, outputs)
    )
    return tuple(dict.fromkeys(made))
