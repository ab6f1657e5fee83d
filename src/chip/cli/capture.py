"""Record one step of a real model: its operators, the kernels they launch, and the time of the whole.

The model runs with random weights. The trace holds names, shapes and times, neither weights nor code. Beside it goes
kernel_signatures.json: each unique kernel once, with its tier and count, which `chip replay` takes as well.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chip import output
from chip.cli import energy_probe
from chip.cli.text import duration, percent, table
from chip.types import ChipError

if TYPE_CHECKING:
    from chip.measure.replay.pool import WorkerPool
    from chip.replay.signatures import KernelWorkload
    from chip.traces import Trace

HELP = "record one step of a model: operators, kernels, times; unique kernels by tier"
EPILOG = """\
  chip capture tinyllama-1.1b --engine hf-graph --batch 8 --prompt 512 --phase decode -o trace.json
  chip capture bloom-560m --engine hf-graph --prompt 5
  chip capture llama-3.1-8b --engine hf-eager --prompt 1024 --chrome perfetto.json
  chip capture my/config.json --device cpu --prompt 16
  chip capture llama-3.1-8b --engine vllm --phase decode --batch 8 -o step.json
"""
SIGNATURES = "kernel_signatures.json"
VLLM_REPEATS = 4


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="bundled name, config.json, its folder, or hub id")
    add_step(parser)
    add(
        "-o",
        "--output",
        metavar="FILE",
        type=output.path,
        default=Path("artifacts/trace.json"),
        help="the trace [%(default)s]",
    )
    add("--chrome", metavar="FILE", type=output.path, help="the profiler's own trace too, for Perfetto")
    add("--python", metavar="FILE", default="", help="interpreter of the engine's own environment (vllm)")
    add("--json", action="store_true", help="one JSON document on stdout")


def add_step(parser: argparse.ArgumentParser) -> None:
    """What to record: `chip replay MODEL` takes the same."""
    add = parser.add_argument
    add(
        "--engine",
        default="hf-eager",
        help="hf-eager; hf-graph: the step as a CUDA graph; native: our own engine; vllm [%(default)s]",
    )
    add("--batch", type=int, default=1, help="sequences [%(default)s]")
    add("--prompt", type=int, default=512, help="tokens of each: computed, or for decode in the cache [%(default)s]")
    add("--phase", choices=("prefill", "decode"), default="prefill", help="which step [%(default)s]")
    add("--no-cache", action="store_true", help="a plain forward without KV cache")
    add("--dtype", default="", help="bf16, fp16, fp32 [bf16; on a CPU fp32]")
    add("--sdpa", default="", help="flash, cudnn, efficient, math [torch's choice]")
    add("--device", default="", help="cuda:N or cpu [the first GPU, else the CPU]")
    add("--energy-seconds", type=float, default=0.0, help="work for each energy figure; 0 for none [%(default)s]")
    energy_probe.add_option(parser)
    add("--force", action="store_true", help="measure even while another process uses the GPU")


def check_step(args: argparse.Namespace) -> None:
    for name in ("batch", "prompt"):
        if not 1 <= getattr(args, name) <= 2**20:
            raise ChipError(f"--{name} must be between 1 and 2^20, got {getattr(args, name)}")
    if not 0 <= args.energy_seconds <= 3600:
        raise ChipError(f"--energy-seconds must be between 0 and 3600, got {args.energy_seconds:g}")


def outputs(args: argparse.Namespace) -> list[output.Output]:
    from chip.replay.chrome import SCHEMA

    return [*traced(args.output, args.engine), (args.chrome, SCHEMA)]


def traced(path: Path, engine: str) -> list[output.Output]:
    """A trace, and beside it the signatures of those that can be replayed."""
    from chip.replay.signatures import KernelWorkload
    from chip.traces import Trace

    beside: list[output.Output] = [(path.parent / SIGNATURES, KernelWorkload.SCHEMA)]
    return [(path, Trace.SCHEMA), *(beside if engine != "vllm" else [])]


def run(args: argparse.Namespace) -> int:
    if args.engine == "vllm":
        return run_vllm(args)
    trace, workload = record(args, args.model, args.output, args.chrome)
    if args.json:
        print(json.dumps(document(trace, workload), indent=1))
    else:
        print(render(trace, workload))
    return 0


def record(
    args: argparse.Namespace, model: str, path: Path, chrome: Path | None = None, others: WorkerPool | None = None
) -> tuple[Trace, KernelWorkload]:
    """Record, write the trace and its signatures. `others`: processes that start while the model is loaded."""
    from chip import artifact, traces
    from chip.measure import capture
    from chip.measure.device import default_device, open_device, refuse_busy
    from chip.measure.environment import environment
    from chip.replay import signatures
    from chip.run import SDPA, Job
    from chip.run.model import locate
    from chip.run.recording import recordable

    check_step(args)
    if args.sdpa and args.sdpa not in SDPA:
        raise ChipError(f"--sdpa {args.sdpa} is not known; choose of {', '.join(SDPA)}")
    config, title, _ = locate(model, "random")
    device = open_device(args.device or default_device())
    energy_probe.choose(args)
    if chrome and device.kind == "cpu":
        raise ChipError("--chrome: the profiler is asked on a GPU only, there is no such trace of a CPU")
    if not args.force:
        refuse_busy(device)
    if others is not None:
        others.start()
    dtype = args.dtype or ("fp32" if device.kind == "cpu" else "bf16")
    job = Job(title, artifact.read_json(config), dtype=dtype, device=device.name, sdpa=args.sdpa)
    print(f"capture: loading {title} with random weights", file=sys.stderr)
    with recordable(job, args.engine, args.phase, args.batch, args.prompt, args.no_cache) as step:
        blank = traces.Trace(
            title, args.engine, args.phase, args.batch, args.prompt, dtype, device.title, "", (), (), (),
            missing={"cache": step.note} if step.note else {}, config=dict(job.config),
        )  # fmt: skip
        if others is not None:
            others.wait()  # nobody else may begin on the device while a step is timed
        settings = capture.CaptureSettings(chrome=chrome, energy_s=args.energy_seconds)
        print(f"capture: recording {blank.title}", file=sys.stderr)
        trace = capture.capture(capture.CaptureSubject(step.run, step.prepare, step.graph), device, blank, settings)
    del step
    gc.collect()
    device.empty_cache()  # the model is done with: room for the replay
    about = environment(device)
    ident = traces.write(path, trace, about)
    workload = signatures.workload_of(trace)
    signatures.write(path.parent / SIGNATURES, workload, about, (ident,))
    print(f"capture: wrote {path} and {path.parent / SIGNATURES}", file=sys.stderr)
    return trace, workload


def run_vllm(args: argparse.Namespace) -> int:
    """A step of vLLM: timed first, then every launch of it under the profiler, in the worker's own process. Its kernels
    come from a compiled graph, so the trace has no operators and cannot be replayed; the ledger reads it."""
    import tempfile

    from chip import artifact, traces
    from chip.cli.ledger_text import render as render_ledger
    from chip.hardware import match_device
    from chip.ledger import OUTPUT, ledger
    from chip.run import Job
    from chip.run.model import locate
    from chip.run.vllm import open as open_vllm
    from chip.types import Scenario

    check_step(args)
    path = args.output
    if args.chrome or args.no_cache or args.sdpa:
        raise ChipError("--chrome, --no-cache and --sdpa are for the hf engines")
    config, title, _ = locate(args.model, "random")
    with tempfile.TemporaryDirectory() as folder:
        job = Job(title, artifact.read_json(config), dtype=args.dtype or "bf16", device=args.device or "cuda:0",
                  max_context=args.prompt + OUTPUT, python=args.python, energy_s=0.0, traces=Path(folder))  # fmt: skip
        print(f"capture: starting vLLM with {title}, random weights", file=sys.stderr)
        with open_vllm(job) as session:
            session.look(session.measure(Scenario(args.batch, args.prompt, OUTPUT, job.dtype), VLLM_REPEATS))
        found = next(Path(folder).glob(f"*-{args.phase}-*.json"), None)
        if found is None:
            raise ChipError(f"the profiler saw no kernels of a {args.phase} step: may it be used here?")
        held, trace = traces.read(found)
    traces.write(path, trace, dict(held.environment))
    print(f"capture: wrote {path}", file=sys.stderr)
    gpu = match_device(trace.device)
    if args.json:
        shown = {"schema": "chip.capture/1", "title": trace.title, "device": trace.device, "source": trace.source}
        print(json.dumps({**shown, "launches": len(trace.events), "gpu_us": trace.gpu_ns / 1e3}, indent=1))
    elif gpu:
        print(render_ledger([ledger(trace, gpu)]))
    return 0


def document(trace: Trace, workload: KernelWorkload) -> dict[str, Any]:
    from chip import codec, stats
    from chip.replay import signatures

    return {
        "schema": "chip.capture/1",
        "title": trace.title,
        "device": trace.device,
        "source": trace.source,
        "launches": len(trace.events),
        "unique_kernels": len(workload.signatures),
        "gpu_us": trace.gpu_ns / 1e3,
        "busy_us": trace.busy_ns / 1e3,
        "timings_us": {name: stats.median(t.samples_ns) / 1e3 for name, t in trace.timings.items()},
        "tiers": codec.to_json(signatures.shares(workload)),
        "unclassified": [s.kernel.name for s in workload.signatures if s.tier is None],
        "missing": trace.missing,
        "disturbed": trace.disturbed,
    }


def render(trace: Trace, workload: KernelWorkload, top: int = 10) -> str:
    from chip import stats
    from chip.replay import signatures

    walls = ", ".join(f"{name} {duration(stats.median(t.samples_ns) * 1e-9)}" for name, t in trace.timings.items())
    head = (
        f"{trace.title} on {trace.device}: {len(trace.events)} launches of {len(workload.signatures)} kernels, "
        f"{duration(trace.gpu_ns * 1e-9)} in kernels; whole step: {walls}"
    )
    by_tier = [
        {
            "tier": name,
            "launches": share.launches,
            "unique": share.unique,
            "time": duration(share.total_ns * 1e-9),
            "of launches": percent(share.launch_share),
            "of time": percent(share.time_share),
        }
        for name, share in signatures.shares(workload).items()
    ]
    longest = [
        {
            "kernel": short(s.kernel.name),
            "tier": s.tier or "-",
            "launches": s.launches,
            "median": duration(s.median_ns * 1e-9),
            "total": duration(s.total_ns * 1e-9),
        }
        for s in workload.signatures[:top]
    ]
    right = ("launches", "unique", "time", "of launches", "of time", "median", "total")
    lost = [
        f"not classified: {short(s.kernel.name)} ({s.launches} launches)" for s in workload.signatures if not s.tier
    ]
    notes = [f"{what}: {why}" for what, why in trace.missing.items()]
    parts = [head, table(by_tier, right, ("tier",)), table(longest, right, ("kernel", "tier")), *lost, *notes]
    shown = "\n\n".join(parts[:3]) + "".join(f"\n{line}" for line in parts[3:])
    return warned(trace.disturbed, "capture") + shown


def warned(disturbed: str, again: str) -> str:
    """The first line of what a disturbed machine gave, "" of any other. `again`: the command to repeat."""
    return f"DISTURBED: {disturbed}; {again} again when the machine is idle\n\n" if disturbed else ""


def short(name: str, width: int = 60) -> str:
    """The telling part of a kernel's name."""
    bare = name.removeprefix("void ").replace("at::native::", "").replace("(anonymous namespace)::", "")
    return bare if len(bare) <= width else bare[: width - 3] + "..."
