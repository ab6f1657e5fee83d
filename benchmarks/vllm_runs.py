"""Run models under vLLM on this machine's GPU, with little time spent on anything but measuring: vLLM is imported once,
and every model's worker is a fork of the process that did (benchmarks/forked.py).

    python benchmarks/vllm_runs.py OUT                     every step but `again`, `families`, `unseen`
    python benchmarks/vllm_runs.py OUT warm runs --models llama-3.1-8b,opt-1.3b
    python benchmarks/vllm_runs.py OUT again --caches DIR  on another host, with what the first one compiled

This python must be able to import vLLM: PYTHONPATH and LD_LIBRARY_PATH say where it lies, the CHIP_ENGINE_ variables
come too late here. Steps:

    warm      start all models of the other steps at once, with a small KV cache: what vLLM compiles, it then finds
    runs      `chip bench` of eight models, six points each, with energy and under the profiler
    again     three of them, timed only: for a second, freshly started host
    families  one model of each of twelve families, with a trace of each phase where --traces says
    unseen    three families that nothing was chosen by
    readme    the README's first table
    calibration  `chip calibrate --engine vllm`
    fp8       three models with `--engine-setting quantization=fp8`
    formats   quantised checkpoints: int4 (compressed-tensors, AWQ), fp8 in blocks, int8; random weights, no files
    kept      two quantised models that nothing is fitted on
    traffic   live traffic: four models from light to saturated and all at once, one with shared prefixes and prefix
              caching, one whose KV cache is too small

Files land in OUT, each complete after every point. A step that was stopped resumes: run it again. The README's
table resumes from results/h200/runs, where other engines' rows of it lie. A model that fails costs itself only.
`--dry` prints the commands instead.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from forked import ForkedWorker, Nursery
from h200_runs import go_on
from make_quantised import config_of

from chip.decoders import describe
from chip.decoders.library import locate
from chip.files import artifact, output
from chip.lab.run import Job, vllm
from chip.show import cli
from chip.types import ChipError

if TYPE_CHECKING:
    from chip.lab.measure.device import Device

USUAL = "1x128,1x1024,1x4096,8x512,8x2048,32x512"
POINTS = {
    "phi-3-mini": "1x128,1x1024,8x512,8x2048,32x256,32x512",  # 4096 positions
    "opt-1.3b": "1x128,1x1024,8x512,8x1024,32x256,32x512",  # 2048 positions
    "tinyllama-1.1b": "1x128",
    **dict.fromkeys(("opt-6.7b", "pythia-6.9b", "falcon-7b"), "1x128,1x1024,8x512,32x512,64x768"),  # 2048 positions
}
THREE = ("llama-3.1-8b", "qwen2.5-0.5b", "phi-3-mini")
EIGHT = (*THREE, "qwen3-14b", "opt-1.3b", "gemma-3-1b", "qwen3-30b-a3b", "qwen2.5-32b")
TIMED = "--output 17 --repeats 4"
# One model of each of twelve families, for the ledger of kernels; and three that nothing was chosen by.
FAMILIES = (
    *("llama-3.1-8b", "qwen2.5-7b", "qwen3-8b", "starcoder2-7b", "gemma-2-9b", "opt-6.7b", "pythia-6.9b", "falcon-7b"),
    *("phi-3-mini", "mistral-7b", "smollm2-1.7b", "qwen1.5-moe-a2.7b"),
)
UNSEEN = ("olmo-2-7b", "granite-3.1-8b", "stablelm-2-1.6b")
FP8 = ("llama-3.1-8b", "qwen2.5-7b", "qwen3-14b")
# MODEL+FORMAT of make_quantised.py: its config alone, the weights are random and made in the engine
FORMATS = ("llama-3.1-8b+w4a16", "qwen2.5-7b+awq", "qwen3-14b+w4a16", "qwen3-8b+fp8-block", "llama-3.1-8b+w8a8")
KEPT = ("mistral-small-24b+fp8", "qwen2.5-32b+w4a16")
TERMS = "vllm.json"  # of the engine and its host; the runs they come from lie beside it, in vllm.runs.json
CACHES = {"VLLM_CACHE_ROOT": "vllm", "TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
# No part of the keys of vLLM's caches: a length of -1 is the model's own until a cache is made, and then what fits it.
ROOM = {"max_model_len": "-1", "kv_cache_memory_bytes": str(2**30), "gpu_memory_utilization": "0.01"}
INTERRUPTED = 130  # exit code of `chip` after Ctrl-C
BESIDE_WEIGHTS = 7 * 2**30  # bytes of a start: that cache, activations, graphs and the context


@dataclass(frozen=True)
class Bench:
    file: str
    models: tuple[str, ...]
    words: str
    dtype: str = "bf16"
    settings: tuple[str, ...] = ()  # of the engine, key=value


BENCHES = {
    "runs": Bench("vllm-5.json", EIGHT, f"{TIMED} --energy-seconds 0.5"),
    "again": Bench("vllm-6.json", THREE, f"{TIMED} --energy-seconds 0 --no-profile"),
    "families": Bench("vllm-7.json", FAMILIES, f"{TIMED} --energy-seconds 0"),
    "unseen": Bench("vllm-unseen.json", UNSEEN, f"{TIMED} --energy-seconds 0"),
    "readme": Bench("tinyllama-fp16.json", ("tinyllama-1.1b",), "--output 128 --repeats 5", "fp16"),
    "fp8": Bench("vllm-fp8.json", FP8, f"{TIMED} --energy-seconds 0.5", settings=("quantization=fp8",)),
    "formats": Bench("vllm-formats.json", FORMATS, f"{TIMED} --energy-seconds 0.5"),
    "kept": Bench("vllm-kept.json", KEPT, f"{TIMED} --energy-seconds 0"),
}
CHAT = "poisson:prompt=400~0.9,output=120~0.8"
SHARED = "poisson:prompt=900~0.4,output=60~0.6,shared=768"
LONG = "poisson:prompt=400~0.6,output=300~0.5"
LIVE = "--engine vllm --requests 240 --energy-seconds 0"
# (file, model, workload and rates, settings of the engine); one start of the engine each
TRAFFIC = (
    ("llama-3.1-8b.json", "llama-3.1-8b", f"{CHAT} --rate 6,16,30,0", ("max_model_len=8192",)),
    ("qwen2.5-7b.json", "qwen2.5-7b", f"{CHAT} --rate 6,12,36,0", ("max_model_len=8192",)),
    ("tinyllama-1.1b.json", "tinyllama-1.1b", f"{CHAT} --rate 8,32,96,0", ("max_model_len=2048",)),
    ("mistral-7b.json", "mistral-7b", f"{CHAT} --rate 8,16,36,0", ("max_model_len=8192",)),
    ("prefix.json", "llama-3.1-8b", f"{SHARED} --rate 8,24,0", ("max_model_len=8192", "enable_prefix_caching=true")),
    ("preempts.json", "llama-3.1-8b", f"{LONG} --rate 12,0", ("max_model_len=8192", "num_gpu_blocks_override=1200")),
)
STEPS = ("warm", *BENCHES, "traffic", "calibration")
ON_DEMAND = ("again", "families", "unseen", "fp8", "formats", "kept", "traffic")
USUALLY = [s for s in STEPS if s not in ON_DEMAND]


def main() -> int:
    args = arguments()
    to_warm = [s for s in args.steps if s != "warm"] or USUALLY
    if args.dry:
        for step in args.steps:
            lines = [f"chip {shlex.join(c)}" for c in commands(step, args)]
            print(*lines or [f"at once: what {', '.join(to_warm)} will start"], sep="\n")
        return 0
    try:
        device = prepare(args.caches, args.force)
        worst = 0
        for step in args.steps:
            if step == "warm":
                worst = max(
                    worst, warm([job for s in to_warm for job in jobs(s, args.models, args.out, device)], device)
                )
            for command in commands(step, args):
                worst = max(worst, run(step, command))
    except ChipError as e:
        print(f"vllm_runs: {e}", file=sys.stderr)
        return 2
    return worst


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"{', '.join(STEPS)} [{', '.join(USUALLY)}]")
    parser.add_argument(
        "--models",
        default="",
        help="instead of a step's own, with commas; MODEL+LAYERS: cut to so many layers; traffic: its files; not for "
        "readme, calibration",
    )
    parser.add_argument("--points", default="", help="instead of each model's own: 1x128,8x512; not for calibration")
    parser.add_argument("--output-tokens", default="", help="instead of a step's own, with commas; not for calibration")
    parser.add_argument("--caches", type=Path, help="folder for what is compiled; a copy of it serves another host")
    parser.add_argument("--traces", type=Path, help="folder for a trace of each phase of each point")
    parser.add_argument("--force", action="store_true", help="measure even while another process uses the GPU")
    parser.add_argument("--dry", action="store_true", help="print the commands")
    args = parser.parse_args()
    if unknown := set(args.steps) - set(STEPS):
        parser.error(f"no step {sorted(unknown)[0]}; there are {', '.join(STEPS)}")
    args.steps = args.steps or USUALLY
    return args


def models(step: str, instead: str) -> Sequence[str]:
    return instead.split(",") if instead and step != "readme" else BENCHES[step].models


def commands(step: str, args: argparse.Namespace) -> list[list[str]]:
    """Arguments of `chip`."""
    if step == "calibration":
        return [["calibrate", "--engine", "vllm", "-o", str(args.out / TERMS)]]
    if step == "warm":
        return []
    if step == "traffic":
        return [
            ["bench", model, *f"{LIVE} --workload {words}".split(), *of_engine(settings), "-o", str(args.out / file)]
            for file, model, words, settings in TRAFFIC
            if not args.models or Path(file).stem in args.models.split(",")
        ]
    bench = BENCHES[step]
    made = []
    for model in models(step, args.models):
        points = args.points or POINTS.get(model, USUAL)
        own = bench.words
        if args.output_tokens:
            own = re.sub(r"--output \d+", f"--output {args.output_tokens}", own)
        words = f"--engine vllm --dtype {bench.dtype} --points {points} {own}"
        if args.traces:
            words += f" --traces {args.traces}"
        file = str(args.out / bench.file)
        made.append(["bench", named(model, args.out), *words.split(), *of_engine(bench.settings), "-o", file])
    return made


def of_engine(settings: Sequence[str]) -> list[str]:
    return [word for setting in settings for word in ("--engine-setting", setting)]


def named(model: str, out: Path) -> str:
    """What `chip bench` takes for a model: itself, or for MODEL+FORMAT and MODEL+LAYERS a config that is written into
    OUT/configs."""
    name, plus, form = model.partition("+")
    if not plus:
        return model
    file = out / "configs" / f"{name}-{form}.json"
    if not file.exists():
        path, _ = locate(name)
        cut = {"num_hidden_layers": int(form)} if form.isdigit() else {}
        config = {**artifact.read_json(path), **cut} if cut else config_of(name, form, 0)
        output.write(file, json.dumps(config, indent=1) + "\n", output.ANY)
    return str(file)


def jobs(step: str, instead: str, out: Path, device: Device) -> list[Job]:
    """What a step starts."""
    if step == "calibration":
        from chip.lab.run import calibration

        return [plan.job for plan in calibration.plans("vllm", device, "bf16")]
    if step == "traffic":  # what it compiles depends on the longest context: nothing to warm up
        return []
    bench = BENCHES[step]
    settings = dict(setting.split("=", 1) for setting in bench.settings)
    found = [locate(named(model, out)) for model in models(step, instead)]
    return [
        Job(title, artifact.read_json(path), dtype=bench.dtype, energy_s=0, settings=settings) for path, title in found
    ]


def prepare(caches: Path | None, force: bool) -> Device:
    """vLLM imported, and the device opened meanwhile."""
    if caches:
        os.environ.update({name: str(caches.resolve() / folder) for name, folder in CACHES.items()})
    ForkedWorker.nursery = nursery = Nursery()  # before CUDA is started here
    vllm.VllmWorker = ForkedWorker

    from chip.lab.measure.device import default_device, open_device, refuse_busy

    device = open_device(default_device())
    if not force:
        refuse_busy(device)
    found = nursery.ready()
    say(f"vLLM {found['version']}: imported in {found['seconds']:.0f} s, once for all")
    return device


def run(step: str, command: list[str]) -> int:
    """The exit code; and a line that tells where the time went."""
    if step == "readme":  # whose file other engines are in; runs of several hosts are not mixed
        go_on(Path(command[-1]))
    ForkedWorker.asked_s.clear()
    ForkedWorker.setup_s.clear()
    began = time.monotonic()
    try:
        code = cli.main([*command, "--force"])  # this process is on the GPU, and what just ended seems to be
    except Exception:  # the next one may do better
        traceback.print_exc()
        code = 1
    whole = time.monotonic() - began
    asked = dict(ForkedWorker.asked_s)
    start, points = asked.pop("open", 0.0), sum(asked.values())
    title = f"{step} {command[1]}" if command[0] == "bench" else step
    say(
        f"{title}: exit {code} after {whole:.0f} s: start {start:.1f} ({split(ForkedWorker.setup_s)}), "
        f"points {points:.1f} ({split(asked)}), meter, file and end {whole - start - points:.1f}"
    )
    if code == INTERRUPTED:
        raise SystemExit(code)
    return code


def split(seconds: dict[str, float]) -> str:
    return ", ".join(f"{name} {s:.1f}" for name, s in sorted(seconds.items(), key=lambda i: -i[1])) or "none"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# -- warm -------------------------------------------------------------------------------------------------------------
def warm(asked: list[Job], device: Device) -> int:
    """Start them all, as many at once as fit."""
    worst = 0
    for group in groups(asked, device.free_bytes()):
        with ThreadPoolExecutor(len(group)) as pool:
            for job, (seconds, error) in zip(group, pool.map(start, group)):
                say(f"warm {job.model} {job.dtype}: {error or 'ok'} after {seconds:.0f} s")
                worst |= bool(error)
    return worst


def groups(asked: list[Job], room: int) -> list[list[Job]]:
    """Those that fit on the device together; each once."""
    found: list[list[Job]] = []
    for job in {(j.model, j.dtype, *j.settings): j for j in asked}.values():
        fitting = [g for g in found if sum(map(bytes_of, [*g, job])) <= room]
        if not fitting:
            fitting = [[]]
            found += fitting
        fitting[0].append(job)
    return found


def bytes_of(job: Job) -> int:
    return 2 * describe(job.config, job.model, job.model).params() + BESIDE_WEIGHTS


def start(job: Job) -> tuple[float, str]:
    began, error = time.monotonic(), ""
    try:
        vllm.open(replace(job, settings={**ROOM, **job.settings})).close()
    except ChipError as e:
        error = str(e)
    return time.monotonic() - began, error


if __name__ == "__main__":
    sys.exit(main())
