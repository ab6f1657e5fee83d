"""Hold predictions against what others published, and keep what `chip validate` prints: results/published/*.txt.

    python benchmarks/published.py argonne All_results.csv
    python benchmarks/published.py llmservingsim LLMServingSim/bench/examples

docs/public-truth.md says where the files are from; none of them is kept. A record begins with some of the predictions
that it was made with: tests/pure/test_doc_figures.py predicts them again, and fails where the record is stale. The
document of `chip validate -o` goes to build/SUITE.json, for benchmarks/validated_index.py.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chip
from chip.files import output

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "results" / "published"
BATCH, PROMPT, OUTPUT = 16, 1024, 128
ASKED = {  # of a suite: some of what it predicts; gpu, model, engine's version, GPUs of tensor and expert parallelism
    "argonne": [
        *((gpu, "llama-2-7b", "0.6", 1, 1) for gpu in ("a100-40gb", "gh200", "h100", "mi250x", "mi300x")),
        *((gpu, "llama-2-70b", "0.6", 4, 1) for gpu in ("a100-40gb", "h100", "mi250x", "mi300x")),
    ],
    "llmservingsim": [
        ("rtx-4090", "llama-3.1-8b", "0.19", 1, 1),
        ("rtx-pro-6000-server", "llama-3.1-8b", "0.19", 1, 1),
        ("rtx-pro-6000-server", "qwen3-30b-a3b", "0.19", 1, 2),
        ("rtx-pro-6000-server", "qwen3-32b", "0.19", 2, 1),
    ],
}
HEAD = "# gpu model version tp ep -> ms to the first token and a token, of 16 x (1024 in, 128 out)"


def predictions(suite: str) -> Iterator[tuple[str, float, float]]:
    """(what is asked, TTFT and TPOT in ms)."""
    for gpu, model, version, tp, ep in ASKED[suite]:
        asked: dict[str, Any] = {"batch": BATCH, "prompt": PROMPT, "output": OUTPUT, "tp": tp, "ep": ep}
        found = chip.predict(model, gpu=gpu, dtype="bf16", engine_version=version, **asked)
        yield f"{gpu} {model} {version} {tp} {ep}", 1e3 * found.ttft_s, 1e3 * found.tpot_s


def record(suite: str, printed: str) -> str:
    made = (f"# {what} -> {ttft_ms:.6g} {tpot_ms:.6g}" for what, ttft_ms, tpot_ms in predictions(suite))
    return "\n".join([HEAD, *made, "", printed])


def read(suite: str) -> tuple[dict[str, tuple[float, float]], list[str]]:
    """The predictions that a record was made with, and what was printed then."""
    lines = (FOLDER / f"{suite}.txt").read_text(encoding="utf-8").splitlines()
    made = {}
    for line in lines[1 : lines.index("")]:
        what, _, times = line.removeprefix("# ").partition(" -> ")
        ttft_ms, tpot_ms = map(float, times.split())
        made[what] = ttft_ms, tpot_ms
    return made, lines[lines.index("") + 1 :]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=list(ASKED))
    parser.add_argument("source", type=Path)
    args = parser.parse_args()
    document = ROOT / "build" / f"{args.suite}.json"
    words = ["validate", "--suite", args.suite, args.source, "-o", document]
    done = subprocess.run(
        [sys.executable, "-m", "chip", *map(str, words)], stdout=subprocess.PIPE, text=True, check=True
    )
    output.write(FOLDER / f"{args.suite}.txt", record(args.suite, done.stdout), output.ANY)
    return 0


if __name__ == "__main__":
    sys.exit(main())
