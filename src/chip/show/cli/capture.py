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

from chip.dtypes import AUTO
from chip.files import output
from chip.show.cli import options
from chip.show.cli.text import Column, disturbed, percent, table, us
from chip.types import ChipError

if TYPE_CHECKING:
    from chip.files.traces import Trace
    from chip.lab.measure.replay.pool import WorkerPool
    from chip.lab.replay.signatures import KernelWorkload

HELP = "record one step of a model: operators, kernels, times; unique kernels by tier"
EPILOG = """\
  chip capture tinyllama-1.1b --engine hf-graph --batch 8 --prompt 512 --phase decode -o trace.json
  chip capture bloom-560m --engine hf-graph --prompt 5
  chip capture llama-3.1-8b --engine hf-eager --prompt 1024 --chrome perfetto.json
  chip capture my/config.json --device cpu --prompt 16
  chip capture llama-3.1-8b --engine vllm --phase decode --batch 8 -o step.json
"""
SIGNATURES = "kernel_signatures.json"
REPEATS = 4


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="bundled name, config.json, its folder, or hub id")
    add_step(parser)
    options.add_file(parser, "-o", "--output", default=Path("artifacts/trace.json"), help="the trace [%(default)s]")
    options.add_file(parser, "--chrome", help="the profiler's own trace too, for Perfetto")
    options.add(parser, "--python")


def add_step(parser: argparse.ArgumentParser) -> None:
    """What to record: `chip replay MODEL` takes the same."""
    add = parser.add_argument
    engine = "hf-eager; hf-graph: the step as a CUDA graph; native: our own engine; vllm [%(default)s]"
    add("--engine", default="hf-eager", help=engine)
    add("--batch", type=int, default=1, help="sequences [%(default)s]")
    add("--prompt", type=int, default=512, help="tokens of each: computed, or for decode in the cache [%(default)s]")
    add("--phase", choices=("prefill", "decode"), default="prefill", help="which step [%(default)s]")
    add("--no-cache", action="store_true", help="a plain forward without KV cache")
    add("--sdpa", default="", help="flash, cudnn, efficient, math [torch's choice]")
    add("--energy-seconds", type=float, default=0.0, help="work for each energy figure; 0 for none [%(default)s]")
    options.add(parser, "--device", "--dtype", "--energy-probe", "--force")


def check_step(args: argparse.Namespace) -> None:
    options.between(args, ("batch", "prompt"), 1, 2**20, "2^20")
    options.between(args, ("energy_seconds",), 0, 3600)


def outputs(args: argparse.Namespace) -> list[output.Output]:
    from chip.lab.replay.chrome import SCHEMA

    return [*traced(args.output, args.engine), (args.chrome, SCHEMA)]


def traced(path: Path, engine: str) -> list[output.Output]:
    """A trace, and beside it the signatures of those that can be replayed."""
    from chip.files.traces import Trace
    from chip.lab.replay.signatures import KernelWorkload

    beside: list[output.Output] = [(path.parent / SIGNATURES, KernelWorkload.SCHEMA)]
    return [(path, Trace.SCHEMA), *([] if traces_itself(engine) else beside)]


def traces_itself(engine: str) -> bool:
    """Whether an engine records its steps in a process of its own."""
    from chip.lab.run import get, names

    return engine in names() and get(engine).OWN_PROCESS


def run(args: argparse.Namespace) -> int:
    if traces_itself(args.engine):
        return run_traced(args)
    trace, workload = record(args, args.model, args.output, args.chrome)
    answer = document(trace, workload)
    print(json.dumps(answer, indent=1) if args.json else render(answer, workload))
    return 0


def record(
    args: argparse.Namespace, model: str, path: Path, chrome: Path | None = None, others: WorkerPool | None = None
) -> tuple[Trace, KernelWorkload]:
    """Record, write the trace and its signatures. `others`: processes that start while the model is loaded."""
    from chip.files import artifact, traces
    from chip.lab.measure import capture
    from chip.lab.measure.environment import environment
    from chip.lab.replay import signatures
    from chip.lab.run import SDPA, Job
    from chip.lab.run.model import locate
    from chip.lab.run.recording import recordable

    check_step(args)
    if args.sdpa and args.sdpa not in SDPA:
        raise ChipError(f"--sdpa {args.sdpa} is not known; choose of {', '.join(SDPA)}")
    config, title, _ = locate(model, "random")
    device = options.device(args)
    options.choose_energy_probe(args)
    if chrome and device.kind == "cpu":
        raise ChipError("--chrome: the profiler is asked on a GPU only, there is no such trace of a CPU")
    options.refuse_busy(args, device)
    if others is not None:
        others.start()
    dtype = device.dtype(args.dtype)
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


def run_traced(args: argparse.Namespace) -> int:
    """A step of an engine in a process of its own: timed first, then every launch of it under the profiler. The trace
    has no operators and cannot be replayed; the ledger reads it."""
    import tempfile

    from chip.explain.ledger import OUTPUT, ledger
    from chip.files import artifact, traces
    from chip.hardware.gpus import match_device
    from chip.lab.run import Job, get
    from chip.lab.run.model import locate
    from chip.show.cli.ledger import render as render_ledger
    from chip.types import Scenario

    check_step(args)
    path = args.output
    if args.chrome or args.no_cache or args.sdpa:
        raise ChipError(f"--chrome, --no-cache and --sdpa are not for {args.engine}, which has a process of its own")
    config, title, _ = locate(args.model, "random")
    with tempfile.TemporaryDirectory() as folder:
        job = Job(
            title, artifact.read_json(config), dtype=args.dtype.replace(AUTO, "bf16"), device=args.device or "cuda:0",
            max_context=args.prompt + OUTPUT, python=args.python, energy_s=0.0, traces=Path(folder),
        )  # fmt: skip
        print(f"capture: starting {args.engine} with {title}, random weights", file=sys.stderr)
        with get(args.engine).open(job) as session:
            session.look(session.measure(Scenario(args.batch, args.prompt, OUTPUT, job.dtype), REPEATS))
        file = next(Path(folder).glob(f"*-{args.phase}-*.json"), None)
        if file is None:
            raise ChipError(f"the profiler saw no kernels of a {args.phase} step: may it be used here?")
        source, trace = traces.read(file)
    traces.write(path, trace, dict(source.environment))
    print(f"capture: wrote {path}", file=sys.stderr)
    gpu = match_device(trace.device)
    if args.json:
        shown = {"schema": "chip.capture/1", "title": trace.title, "device": trace.device, "source": trace.source}
        print(json.dumps({**shown, "launches": len(trace.events), "gpu_us": trace.gpu_ns / 1e3}, indent=1))
    elif gpu:
        print(render_ledger([ledger(trace, gpu)]))
    return 0


def document(trace: Trace, workload: KernelWorkload) -> dict[str, Any]:
    from chip import stats
    from chip.files import codec
    from chip.lab.replay import signatures

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


TIERS: tuple[Column, ...] = (
    ("tier", "tier", str), ("launches", "launches", str), ("unique", "unique", str),
    ("time", lambda t: t["total_ns"] / 1e3, us), ("of launches", "launch_share", percent),
    ("of time", "time_share", percent),
)  # fmt: skip
LONGEST: tuple[Column, ...] = (
    ("kernel", lambda s: short(s.kernel.name), str), ("tier", lambda s: s.tier or "-", str),
    ("launches", lambda s: s.launches, str), ("median", lambda s: s.median_ns / 1e3, us),
    ("total", lambda s: s.total_ns / 1e3, us),
)  # fmt: skip


def render(a: dict[str, Any], workload: KernelWorkload, top: int = 10) -> str:
    walls = ", ".join(f"{name} {us(t)}" for name, t in a["timings_us"].items())
    launches = f"{a['launches']} launches of {a['unique_kernels']} kernels"
    head = f"{a['title']} on {a['device']}: {launches}, {us(a['gpu_us'])} in kernels; whole step: {walls}"
    tiers = table([{"tier": name, **tier} for name, tier in a["tiers"].items()], TIERS)
    notes = [
        f"not classified: {short(s.kernel.name)} ({s.launches} launches)" for s in workload.signatures if not s.tier
    ]
    notes += [f"{what}: {why}" for what, why in a["missing"].items()]
    shown = [disturbed(a["disturbed"], "capture")] if a["disturbed"] else []
    shown += [head, tiers, "\n".join([table(workload.signatures[:top], LONGEST), *notes])]
    return "\n\n".join(shown)


def short(name: str, width: int = 60) -> str:
    """The telling part of a kernel's name."""
    bare = name.removeprefix("void ").replace("at::native::", "").replace("(anonymous namespace)::", "")
    return bare if len(bare) <= width else bare[: width - 3] + "..."
