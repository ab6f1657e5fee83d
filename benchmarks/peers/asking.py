"""What every tool is asked, and the three ways of asking it: once, in a stream, or many times over."""

import argparse
import json
import pathlib
import sys
import time

QUESTION = {"model": "llama-3.1-8b", "gpu": "h200", "engine": "vllm", "batch": 8, "prompt": 1024, "output": 128}

CONFIGS = pathlib.Path(__file__).parents[2] / "src" / "chip" / "data" / "models"
GATED = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
)  # dense, an MLP of 3 matrices

# Data-sheet numbers (SXM, dense bf16), for tools that take a GPU by its numbers.
GPUS = {
    "h200": {"tflops": 989, "memory_gb": 141, "bandwidth_gb_s": 4800, "nvlink_gb_s": 450},
    "h100": {"tflops": 989, "memory_gb": 80, "bandwidth_gb_s": 3350, "nvlink_gb_s": 450},
}


def config_of(model):
    """The config.json that CHIP has of a model; all of them run in bf16 here."""
    return json.loads((CONFIGS / f"{model}.json").read_text())


def gated_config_of(model):
    """The same, for tools that are given sizes instead of a config: refused where these would not describe it."""
    config = config_of(model)
    heads = config["num_attention_heads"]
    if config["architectures"][0] not in GATED or config.get("head_dim") not in (None, config["hidden_size"] // heads):
        raise ValueError(f"{model} is not of the one shape that this tool is asked about")
    return {"num_key_value_heads": heads, **config}


def serve(load):
    """Run the command line of one tool; load() gives its function from a scenario to (TTFT, TPOT) in ms."""
    parser = argparse.ArgumentParser()
    ways = parser.add_mutually_exclusive_group(required=True)
    ways.add_argument("--cold", action="store_true", help="answer the one question and exit")
    ways.add_argument("--jsonl", action="store_true", help="answer each JSON line of standard input in order")
    ways.add_argument("--warm", type=int, metavar="N", help="answer N distinct points, print seconds a point")
    way = parser.parse_args()

    out, sys.stdout = sys.stdout, sys.stderr  # whatever a tool prints must not mix with its answers
    answer = load()
    if way.cold:
        print(json.dumps(_reply(answer, QUESTION)), file=out)
    elif way.jsonl:
        for line in filter(str.strip, sys.stdin):
            print(json.dumps(_attempt(answer, json.loads(line))), file=out, flush=True)
    else:
        print(json.dumps({"seconds_per_point": seconds_per_point(answer, way.warm)}), file=out)


def _reply(answer, scenario):
    ttft_ms, tpot_ms = answer(scenario)
    return {"ttft_ms": float(ttft_ms), "tpot_ms": float(tpot_ms)}


def _attempt(answer, scenario):
    try:
        return _reply(answer, scenario)
    except Exception as error:  # one scenario a tool cannot take must not cost the others
        return {"ttft_ms": None, "tpot_ms": None, "error": f"{type(error).__name__}: {error}"}


def seconds_per_point(answer, points):
    """Mean wall time of one answer in a process that has answered before, over distinct prompts."""
    answer(QUESTION)  # loading tables is the cold time's part
    scenarios = [{**QUESTION, "prompt": QUESTION["prompt"] + 1 + i} for i in range(points)]
    start = time.perf_counter()
    for scenario in scenarios:
        answer(scenario)
    return (time.perf_counter() - start) / points
