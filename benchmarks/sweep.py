"""Distinct scenarios for `chip predict -`, as JSON Lines: `python benchmarks/sweep.py 20000 > sweep.jsonl`."""

import json
import sys

# Models whose context and weights leave room on one H200 for every batch and prompt below.
MODELS = (
    "llama-3.1-8b", "qwen2.5-7b", "mistral-7b", "llama-3.2-1b", "phi-4", "qwen3-0.6b", "qwen2.5-14b", "gemma-2-9b",
)  # fmt: skip
BATCHES = (1, 2, 3, 4, 8, 16, 32, 64)


def scenarios(count):
    """The model changes with every line, and no scenario comes twice."""
    for i in range(count):
        yield {
            "model": MODELS[i % len(MODELS)],
            "gpu": "h200",
            "batch": BATCHES[i // len(MODELS) % len(BATCHES)],
            "prompt": 64 + 11 * (i // (len(MODELS) * len(BATCHES))),
            "output": 128,
        }


def write(count, file):
    for scenario in scenarios(count):
        file.write(json.dumps(scenario) + "\n")


if __name__ == "__main__":
    write(int(sys.argv[1]), sys.stdout)
