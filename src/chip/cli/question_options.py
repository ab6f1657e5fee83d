"""The options of a question: what `chip predict`, `chip simulate` and `chip plan` have in common, each told once."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from typing import Any

from chip import engines
from chip.cli.grid import Several
from chip.engines import options
from chip.question import SYSTEM

GPU = "bundled name, file, or sm_90:80GB; then @16GB/s+20us for a link of your own"
DTYPE = (
    "weights and what they are multiplied in: auto (as the model's quantization_config says, else bf16); "
    "bf16, fp16, fp32; fp8, w8a8 (int8), nvfp4 with rounded inputs; weight-only int8, int4, mxfp4"
)
HELP = {
    "gpu": GPU,
    "engine": "one of `chip list engines`",
    "dtype": DTYPE,
    "kv_dtype": "of the KV cache: auto (as the config says), bf16, fp16, fp8",
    "tp": "GPUs that share each layer (tensor parallel)",
    "pp": "stages of a pipeline, each with its layers",
    "ep": "GPUs that the experts lie on, a multiple of --tp: ep / tp replicas of the attention share them (vLLM)",
}
SETTING = "what the engine is told, by its own names: max_num_seqs=64,gpu_memory_utilization=0.9; may be repeated"


def add(parser: argparse.ArgumentParser, several: Collection[str] = ()) -> None:
    """`several`: options that take several values with commas, as a list."""
    for name, text in HELP.items():
        default = SYSTEM[name]
        kind: Any = type(default)
        flag, shown = f"--{name.replace('_', '-')}", f"{text} [{default}]"
        if name in several:
            parser.add_argument(flag, type=Several(kind), default=[default], help=f"* {shown}")
        else:
            parser.add_argument(flag, type=kind, default=default, help=shown)
    more = parser.add_argument_group("engine and host")
    more.add_argument("--engine-setting", metavar="KEY=VALUE", action="append", default=[], help=SETTING)
    for flag, metavar, text in (
        ("--engine-version", "VERSION", "an older vLLM, such as 0.6: as its steps ran [newest]"),
        ("--engine-profile", "FILE", "terms of `chip calibrate --engine` [those of the GPU]"),
        ("--host", "FILE|NAME", "file of `chip calibrate --host` or --engine, or of `chip list hosts` [reference]"),
        ("--sdpa", "BACKEND", "attention backend of hf-eager's prefill: cudnn, flash [cudnn]"),
    ):
        more.add_argument(flag, metavar=metavar, default="", help=text)
    latency = "launch latency of the host, as `chip bench` measures it [that of the engine's reference host]"
    more.add_argument("--launch-ns", metavar="NS", type=float, default=SYSTEM["launch_ns"], help=latency)
    deep_gemm = "fp8 in blocks by DeepGEMM's published times [on an H200: CUTLASS's]"
    more.add_argument("--deep-gemm", action="store_true", help=deep_gemm)


def values(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of the question. Options with several values are lists."""
    given = {name: getattr(args, name) for name in SYSTEM if name != "engine_settings"}
    return given | {"engine_settings": options.parse(args.engine_setting)}


def hint(word: str) -> str:
    """For an option that is an engine's own: how it is given here; "" where no engine has it."""
    name = word.lstrip("-").removeprefix("no-").replace("-", "_")
    for engine in map(engines.get, engines.names()):
        if option := engine.OPTIONS_ELSEWHERE.get(name):
            return f"here it is --{option.replace('_', '-')}"
        if name in engine.OPTIONS:
            value = "false" if word.startswith("--no-") else "..."
            return f"give it as --engine-setting {name}={value}"
    return ""
