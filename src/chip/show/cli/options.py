"""Options that several commands have, each told once: of a question, and of what is measured."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from chip import engines
from chip.dtypes import AUTO
from chip.engines import options
from chip.files import output
from chip.question import SYSTEM
from chip.types import ChipError, install

if TYPE_CHECKING:
    from chip.lab.measure.device import Device

GPU = "bundled name, file, or sm_90:80GB; then @16GB/s+20us for a link of your own"
DTYPE = (
    "weights and what they are multiplied in: auto (as the model's quantization_config says, else bf16); "
    "bf16, fp16, fp32; fp8, w8a8 (int8), nvfp4 with rounded inputs; weight-only int8, int4, mxfp4"
)
QUESTION = {
    "gpu": GPU,
    "engine": "one of `chip list engines`",
    "dtype": DTYPE,
    "kv_dtype": "of the KV cache: auto (as the config says), bf16, fp16, fp8",
    "tp": "GPUs that share each layer (tensor parallel)",
    "pp": "stages of a pipeline, each with its layers",
    "ep": "GPUs that the experts lie on, a multiple of --tp: ep / tp replicas of the attention share them (vLLM)",
}
SETTING = "what the engine is told, by its own names: max_num_seqs=64,gpu_memory_utilization=0.9; may be repeated"
METER = "a meter of your own: a class with start and stop, also MODULE:NAME [$CHIP_ENERGY_PROBE, else built in]"
FLAG: dict[str, Any] = {"action": "store_true"}
SHARED: dict[str, dict[str, Any]] = {
    "--device": {"default": "", "help": "cuda:N or cpu [the first GPU, else the CPU]"},
    "--force": {**FLAG, "help": "measure even while another process uses the GPU"},
    "--dtype": {
        "choices": (AUTO, "bf16", "fp16", "fp32"), "default": SYSTEM["dtype"], "help": "[auto: bf16; on a CPU fp32]"
    },
    "--energy-probe": {"metavar": "FILE.py:NAME", "default": "", "help": METER},
    "--engine-setting": {
        "metavar": "KEY=VALUE", "action": "append", "default": [], "help": "for the engine; may be repeated"
    },
    "--python": {"metavar": "FILE", "default": "", "help": "interpreter of the engine's own environment (vllm)"},
    "--weights": {"choices": ("auto", "random", "files"), "default": "auto", "help": "[files where there are any]"},
    "--prompt-text": {"metavar": "TEXT", "default": "", "help": "real text instead of random tokens; needs weights"},
    "--system": {"metavar": "TEXT", "default": "", "help": "system prompt that goes with --prompt-text"},
    "--raw-prompt": {**FLAG, "help": "give prompts as they are, without the chat template"},
    "--trust-remote-code": {**FLAG, "help": "run code that comes with a model or tokenizer"},
    "--profile": {
        "metavar": "FILE", "default": "", "help": "roofs from `chip calibrate` [the device's bundled profile]"
    },
    "--jobs": {"type": int, "default": 1, "help": "processes; 0 for one a core [%(default)s]"},
    "--ray": {"metavar": "ADDRESS", "default": "", "help": "spread over a Ray cluster instead: local, or its address"},
}  # fmt: skip
Parser = argparse.ArgumentParser | argparse._ArgumentGroup


def add(parser: Parser, *names: str) -> None:
    """Options of `SHARED`."""
    for name in names:
        parser.add_argument(name, **SHARED[name])


def add_file(parser: Parser, *flags: str, metavar: str = "FILE", **settings: Any) -> None:
    """An option that names a file or folder to write."""
    parser.add_argument(*flags, metavar=metavar, type=output.path, **settings)


class Several:
    """An argparse type: one value, or several with commas, as a list."""

    once = "several values go into one option, with commas"

    def __init__(self, kind: Callable[[str], Any]) -> None:
        self.kind = kind

    def __call__(self, text: str) -> list[Any]:
        words = [text] if os.path.isfile(text) else text.split(",")  # a file's name may have a comma
        if len(words) > 1 and not all(words):
            raise argparse.ArgumentTypeError(f"an empty value between commas in {text[:80]!r}")
        values = [self._value(word) for word in words]
        if twice := [v for i, v in enumerate(values) if v in values[:i]]:
            raise argparse.ArgumentTypeError(f"{twice[0]} is there twice")
        return values

    def _value(self, word: str) -> Any:
        try:
            return self.kind(word)
        except ValueError:
            raise argparse.ArgumentTypeError(f"invalid {self.kind.__name__} value: {word[:80]!r}") from None


def words_of(text: str) -> list[str]:
    """Those between commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


# -- a question: what `chip predict`, `chip simulate` and `chip plan` have in common -----------------------------------
def add_question(parser: argparse.ArgumentParser, several: Collection[str] = ()) -> None:
    """`several`: options that take several values with commas, as a list."""
    for name, text in QUESTION.items():
        default = SYSTEM[name]
        kind: Any = type(default)
        flag, shown = f"--{name.replace('_', '-')}", f"{text} [{default}]"
        if name in several:
            parser.add_argument(flag, type=Several(kind), default=[default], help=f"* {shown}")
        else:
            parser.add_argument(flag, type=kind, default=default, help=shown)
    more = parser.add_argument_group("engine and host")
    more.add_argument("--engine-setting", **{**SHARED["--engine-setting"], "help": SETTING})
    for flag, metavar, text in (
        ("--engine-version", "VERSION", "an older vLLM, such as 0.6: as its steps ran [newest]"),
        ("--engine-profile", "FILE", "terms of `chip calibrate --engine` [those of the GPU]"),
        ("--host", "FILE|NAME", "file of `chip calibrate --host` or --engine, or of `chip list hosts` [reference]"),
        ("--sdpa", "BACKEND", "attention backend of hf-eager's prefill: cudnn, flash [cudnn]"),
    ):
        more.add_argument(flag, metavar=metavar, default="", help=text)
    choice = "how tokens are chosen: greedy, or of temperature, top-k, top-p, penalties, logprobs, joined by + [greedy]"
    more.add_argument("--sampling", metavar="HOW", default=SYSTEM["sampling"], help=choice)
    latency = "launch latency of the host, as `chip bench` measures it [that of the engine's reference host]"
    more.add_argument("--launch-ns", metavar="NS", type=float, default=SYSTEM["launch_ns"], help=latency)
    like = "a known model type whose layers an architecture has that is not known, such as qwen3"
    more.add_argument("--as", dest="answer_as", metavar="TYPE", default="", help=like)
    deep_gemm = "fp8 in blocks by DeepGEMM's published times [on an H200: CUTLASS's]"
    more.add_argument("--deep-gemm", action="store_true", help=deep_gemm)


def question(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of the question. Options with several values are lists."""
    values = {name: getattr(args, name) for name in SYSTEM if name != "engine_settings"}
    return values | {"engine_settings": options.parse(args.engine_setting)}


def hint(word: str) -> str:
    """For an option that is an engine's own: how it is given here; "" where no engine has it."""
    name = word.lstrip("-").removeprefix("no-").replace("-", "_")
    for engine in map(engines.get, engines.names()):
        if option := engine.ELSEWHERE.get(name):
            return f"here it is --{option.replace('_', '-')}"
        if hasattr(engine.defaults(0.0), name) or name in engine.ALIASES:
            value = "false" if word.startswith("--no-") else "..."
            return f"give it as --engine-setting {name}={value}"
    return ""


def rate(word: str) -> float | None:
    """Requests a second; None where none is named."""
    try:
        return float(word) if word else None
    except ValueError:
        raise ChipError(f"--rate {word[:40]!r}: must be requests a second, as in 5 or 5,10,20") from None


# -- what is measured --------------------------------------------------------------------------------------------------
def device(args: argparse.Namespace) -> Device:
    """The one that the command is to measure."""
    from chip.lab.measure.device import default_device, open_device

    return open_device(args.device or default_device())


@contextmanager
def extra(what: str) -> Iterator[None]:
    """For imports of optional libraries: who lacks one is told which brings it."""
    try:
        yield
    except ImportError as e:
        raise ChipError(f"{what} needs {e.name}: {install('measure')}") from None


def refuse_busy(args: argparse.Namespace, device: Device) -> None:
    from chip.lab.measure.device import refuse_busy

    if not args.force:
        refuse_busy(device)


def choose_energy_probe(args: argparse.Namespace) -> None:
    """For this process and its workers; an error before anything is measured if there is no such meter."""
    from chip.lab.measure import energy

    if args.energy_probe:
        os.environ[energy.VARIABLE] = args.energy_probe
    energy.named_probe()
    if args.energy_probe and not getattr(args, "energy_seconds", 1.0):
        raise ChipError("--energy-probe meters nothing without --energy-seconds, such as --energy-seconds 2")


def between(args: argparse.Namespace, names: Collection[str], least: float, most: float, title: str = "") -> None:
    """Refuse options out of bounds."""
    for name in names:
        if not least <= getattr(args, name) <= most:
            bounds = f"between {least:g} and {title or f'{most:g}'}"
            raise ChipError(f"--{name.replace('_', '-')} must be {bounds}, got {getattr(args, name):g}")
