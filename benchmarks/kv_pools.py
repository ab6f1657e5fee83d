"""Hold vLLM's KV pools, as runs on an H200 recorded them, against those predicted, and fit what no code says.

    python benchmarks/kv_pools.py
    python benchmarks/kv_pools.py --measure pools.json   # on a GPU, with vLLM: what its profile run sees, part by part

The first prints every recorded pool, the error of the predicted one, and the three constants of
src/chip/engines/vllm/memory.py that come from these pools: what vLLM sees grow beside its tensors (the median over
models of its second runner), and what its first runner takes for graphs, a constant and a part for each layer (least
squares). The second starts each model of MEASURED in a process of its own, ends it once vLLM knows its pool, and prints
each term beside its prediction; nothing is captured or generated. Weights are random, tokenizers are not needed.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from chip import engines
from chip.decoders import describe, library
from chip.decoders.decoder import Decoder
from chip.dtypes import Precision
from chip.engines.vllm import memory
from chip.engines.vllm.memory import layout
from chip.files import runs
from chip.hardware import gpus
from chip.predictor import memory as needed
from chip.predictor.request import setting
from chip.question import Question
from chip.types import ChipError, Scenario

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ("runs/vllm-*.json", "runs/tinyllama-fp16.json", "engines/vllm-?.json", "quantised/vllm-*.json")
GPU, ENGINE = "h200", "vllm"
MIB = 2**20
# fp8 with a scale for each output and for each token
CHANNELS = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "dynamic": False, "symmetric": True},
            "input_activations": {
                "num_bits": 8, "type": "float", "strategy": "token", "dynamic": True, "symmetric": True
            },
        }
    },
}  # fmt: skip
# A bundled model, what its config has otherwise, and vLLM's own settings. Models of experts at several depths tell what
# a layer adds to graphs; quantised ones, whether loading them leaves more than the weights.
MEASURED: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("llama-3.1-70b", {"num_hidden_layers": 24, "quantization_config": CHANNELS}, {}),
    ("qwen3-14b", {}, {"quantization": "fp8"}),
    ("qwen3-30b-a3b", {"num_hidden_layers": 24}, {}),
    ("moonlight-16b-a3b", {}, {}),
)
LIMIT_S = 110  # for one model


class Pool(NamedTuple):
    model: str
    dtype: str
    decoder: Decoder  # in the formats that the GPU multiplies
    tokens: int  # recorded
    room: dict[str, Any]  # predicted
    rest_bytes: float  # of the share that vLLM asked for, what neither weights nor pool take


def read_pools() -> Iterator[Pool]:
    """Every pool that was recorded, each once."""
    seen: set[tuple[str, str, int]] = set()
    for path in sorted(p for pattern in RECORDS for p in (ROOT / "results" / GPU).glob(pattern)):
        if path.name.endswith(".terms.json"):
            continue
        read = runs.read(path)[1]
        for run in read.runs:
            tokens, cache = run.memory.get("kv_cache_tokens"), run.settings.get("config", {}).get("cache_config", {})
            key = (run.model, run.scenario.dtype, tokens)
            if run.engine == ENGINE and run.status == "ok" and tokens and key not in seen:
                seen.add(key)
                yield pool_of(describe(read.configs[run.model], run.model, str(path)), run, cache)


def pool_of(asked: Decoder, run: runs.Run, cache: dict[str, Any]) -> Pool:
    """The pool of a run, recorded and predicted. `cache`: its settings, as vLLM resolved them."""
    d, p, s = as_run(asked, run.scenario)
    share, total = cache["gpu_memory_utilization"], gpus.find(GPU).memory_bytes
    fixed = needed.fixed(d, p, s.tp, s.ep)
    block = layout(d, p, s.tp).block_bytes
    rest = share * total - fixed.weight_bytes - cache["num_gpu_blocks"] * block
    told = (
        ("gpu_memory_utilization", share),
        ("max_model_len", run.settings["config"]["model_config"]["max_model_len"]),
    )
    e = engines.get(ENGINE)
    room = needed.needs(d, s, e, p, total, e.options(told, total))
    return Pool(run.model, run.scenario.dtype, d, run.memory["kv_cache_tokens"], room, rest)


def as_run(asked: Decoder, s: Scenario) -> tuple[Decoder, Precision, Scenario]:
    """The model in the formats that the GPU multiplies."""
    q = Question.of(asked, GPU, ENGINE, s).with_formats()
    steps = setting(q).steps
    return steps.operators.decoder, steps.operators.precision, q.scenario(*s.sizes)


def first_runner(d: Decoder) -> bool:
    return d.experts > 0 and d.architecture not in memory.SECOND_RUNNER


def print_pools(pools: list[Pool]) -> None:
    print(f"{'model':24} {'dtype':6} {'recorded':>10} {'predicted':>10}  error  rest, GB  predicted")
    for pool in sorted(pools, key=lambda p: (first_runner(p.decoder), p.model)):
        tokens = pool.room["kv_capacity_tokens"]
        predicted = pool.room["activation_bytes"] + pool.room["context_bytes"]
        error = f"{100 * (tokens / pool.tokens - 1):+.2f} %"
        print(
            f"{pool.model:24} {pool.dtype:6} {pool.tokens:10} {tokens:10} {error:>7}"
            f" {pool.rest_bytes / 1e9:8.3f} {predicted / 1e9:8.3f}"
        )
    errors = [abs(pool.room["kv_capacity_tokens"] / pool.tokens - 1) for pool in pools]
    within = sum(e <= 0.01 for e in errors)
    print(
        f"{len(pools)} pools, {within} within 1 %; median {100 * median(errors):.2f} %, worst {100 * max(errors):.2f} %"
    )


def constants(pools: list[Pool]) -> dict[str, float]:
    """Those of memory.py that meet these pools best."""
    missing = [(pool.decoder, pool.rest_bytes - pool.room["activation_bytes"]) for pool in pools]
    context = median([b for d, b in missing if not first_runner(d)])
    graphs = 2 * (len(memory.GRAPH_TOKENS) - 1)  # of as many sequences as an H200 runs

    def of_layers(d: Decoder, layer_bytes: float) -> float:
        return graphs * max(memory.GRAPH_BYTES, layer_bytes * d.layer_count)

    known = memory.FIRST_RUNNER_BYTES - memory.CONTEXT_BYTES
    first = [(d, b + known + of_layers(d, memory.GRAPH_LAYER_BYTES)) for d, b in missing if first_runner(d)]

    def misses(layer_bytes: float) -> tuple[float, float]:
        left = [b - of_layers(d, layer_bytes) for d, b in first]
        mean = sum(left) / len(left)
        return sum((b - mean) ** 2 for b in left), mean

    layer = min(range(0, 400_000, 1000), key=lambda b: misses(b)[0])
    return {"CONTEXT_BYTES": context, "GRAPH_LAYER_BYTES": layer, "FIRST_RUNNER_BYTES": misses(layer)[1]}


# -- measuring --------------------------------------------------------------------------------------------------------
def config_of(model: str, changes: dict[str, Any]) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads(library.locate(model)[0].read_text(encoding="utf-8"))
    return {**raw, **changes}


def measure(out: Path) -> None:
    answers = []
    for model, changes, settings in MEASURED:
        asked = {"model": model, "changes": changes, "settings": settings}
        try:
            done = subprocess.run(
                [sys.executable, __file__, "--one", json.dumps(asked)],
                capture_output=True, text=True, timeout=LIMIT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            print(f"{model}: not done within {LIMIT_S} s", flush=True)
            continue
        line = next((line for line in done.stdout.splitlines() if line.startswith('{"terms"')), "")
        if not line:
            print(f"{model}: failed\n" + "\n".join(done.stderr.splitlines()[-8:]), flush=True)
            continue
        answers.append({**asked, **json.loads(line)})
        out.write_text(json.dumps(answers, indent=1) + "\n", encoding="utf-8")
        print_terms(answers[-1])


def print_terms(answer: dict[str, Any]) -> None:
    """Each term that was measured beside its prediction, in MiB."""
    dtype = answer["settings"].get("quantization", "auto")
    raw = config_of(answer["model"], answer["changes"])
    d, p, s = as_run(describe(raw, answer["model"], answer["model"]), Scenario(1, 128, 16, dtype))
    room = memory.room(s, engines.get(ENGINE).options((), answer["terms"]["total"]))
    terms = memory.terms(d, p, s, room)
    predicted = {
        "weights": d.weight_bytes(p) + terms["beside_weights"],
        "non_torch": room.context_bytes,
        "torch_peak": max(terms["forward"], terms["sampling"]),
        **terms,
    }
    parts = ("weights", "torch_peak", "non_torch", "graphs")
    predicted["pool"] = room.share * answer["terms"]["total"] - sum(predicted[name] for name in parts)
    print(f"{answer['model']}, {d.layer_count} layers, {dtype}: measured, predicted, MiB")
    for name, value in answer["terms"].items():
        print(f"  {name:12} {value / MIB:10.0f} {predicted[name] / MIB:10.0f}" if name in predicted else
              f"  {name:12} {value / MIB:10.0f}")  # fmt: skip
    for line in answer["said"]:
        print(f"  {line}", flush=True)


def measure_one(asked: dict[str, Any]) -> None:
    """vLLM's start up to its pool; the terms as one line of JSON on stdout."""
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_LOGGING_LEVEL="DEBUG", VLLM_NO_USAGE_STATS="1", HF_HUB_OFFLINE="1"
    )
    if importlib.util.find_spec("flashinfer") is None:
        os.environ["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    vllm = importlib.import_module("vllm")
    torch = importlib.import_module("torch")
    worker = importlib.import_module("vllm.v1.worker.gpu_worker").Worker
    said: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            if "CUDA graph memory" in text or "Memory profiling takes" in text or "Model loading took" in text:
                said.append(text[:300])

    logging.getLogger("vllm").addHandler(Listener())
    inner, peaks = worker.determine_available_memory, {}

    def determine(self: Any) -> None:
        runner, before = self.model_runner, torch.cuda.memory_allocated()
        sample = runner._dummy_sampler_run

        def sampled(*args: Any, **kwargs: Any) -> Any:
            peaks["forward"] = torch.cuda.max_memory_allocated() - before
            torch.cuda.reset_peak_memory_stats()
            sampled_tokens = sample(*args, **kwargs)
            peaks["sampling"] = torch.cuda.max_memory_allocated() - before
            return sampled_tokens

        runner._dummy_sampler_run = sampled
        inner(self)
        terms = {
            "total": self.init_snapshot.total_memory,
            "weights": runner.model_memory_usage,
            **peaks,
            "torch_peak": max(peaks.values()),
            "non_torch": self.non_torch_memory,
            "graphs": self.cudagraph_memory_estimate,
        }
        taken = sum(terms[name] for name in ("weights", "torch_peak", "non_torch", "graphs"))
        terms["pool"] = self.requested_memory - taken
        print(json.dumps({"terms": terms, "said": said, "version": vllm.__version__}), flush=True)
        os._exit(0)  # nothing is to be captured or written

    worker.determine_available_memory = determine
    with tempfile.TemporaryDirectory() as folder:
        text = json.dumps(config_of(asked["model"], asked["changes"]))
        (Path(folder) / "config.json").write_text(text, encoding="utf-8")
        vllm.LLM(
            model=folder,
            load_format="dummy",
            skip_tokenizer_init=True,
            enable_prefix_caching=False,
            **asked["settings"],
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measure", type=Path, metavar="FILE", help="measure on this machine's GPU, into FILE")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        measure_one(json.loads(args.one))
    elif args.measure:
        measure(args.measure)
    else:
        pools = list(read_pools())
        print_pools(pools)
        for name, value in constants(pools).items():
            print(f"{name} {value:.3g}, now {getattr(memory, name):.3g}")


if __name__ == "__main__":
    try:
        main()
    except ChipError as e:
        sys.exit(str(e))
