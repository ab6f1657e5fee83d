"""3,000 mixed lines of `chip predict -`, start-up included, over a plain loop of ten million additions; and how much
longer than `python -c pass` one cold answer takes: `python benchmarks/mixed.py`. Exits with 1 if a bar is missed."""

import json
import random
import statistics
import sys
import tempfile

from processes import run
from speed import QUESTION, in_turn

MODELS = ("llama-3.1-8b", "qwen2.5-7b", "mistral-7b", "llama-3.2-1b", "phi-4", "qwen3-0.6b", "gemma-2-9b")
GPUS, ENGINES, LINES = ("h200", "h100"), ("vllm", "hf-eager"), 3000
LOOP = "def add():\n    total = 0\n    for i in range(10_000_000):\n        total += i\nadd()"
TIMES_LOOP, COLD_ABOVE_S = 2.5, 0.2


def scenarios(count=LINES):
    """Models, GPUs and engines in turn; every prompt has a length of its own."""
    draw = random.Random(3)
    for i in range(count):
        yield {
            "model": MODELS[i % 7], "gpu": GPUS[i // 7 % 2], "engine": ENGINES[i // 14 % 2],
            "batch": draw.randint(1, 32), "prompt": 64 + i, "output": draw.randint(16, 256),
        }  # fmt: skip


def sweep_over_loop(pairs=3):
    ratios = []
    with tempfile.TemporaryFile("w+") as questions:
        questions.writelines(json.dumps(s) + "\n" for s in scenarios())
        for _ in range(pairs):
            loop = run([sys.executable, "-c", LOOP]).seconds
            questions.flush()
            questions.seek(0)
            ratios.append(run([sys.executable, "-m", "chip", "predict", "-"], questions).seconds / loop)
    return statistics.median(ratios)


def cold_above_s(rounds=9):
    chip = [sys.executable, "-m", "chip", "predict", *QUESTION]
    run(chip)  # byte code and file caches are warm for both
    found = in_turn({"pass": [sys.executable, "-c", "pass"], "chip": chip}, rounds)
    medians = {name: statistics.median(r.seconds for r in runs) for name, runs in found.items()}
    return medians["chip"] - medians["pass"]


def main():
    ratio, above_s = sweep_over_loop(), cold_above_s()
    print(f"{LINES} mixed lines: {ratio:.2f} times ten million additions (bar {TIMES_LOOP})")
    print(f"cold answer: {above_s:.3f} s above python -c pass (bar {COLD_ABOVE_S})")
    return 0 if ratio <= TIMES_LOOP and above_s <= COLD_ABOVE_S else 1


if __name__ == "__main__":
    sys.exit(main())
