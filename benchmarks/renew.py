"""Renew every record of predictions and every page after predictions have changed: a few minutes.

    python benchmarks/renew.py All_results.csv LLMServingSim/bench/examples

docs/public-truth.md says where these files of others are from. In the order of who reads whom: predictions held against
the runs of an H200, against what others published, the index of both, the scales of intervals, pages and notebooks.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def steps(argonne: str, llmservingsim: str) -> list[list[str]]:
    record, published = "results/h200/validation.json", ["benchmarks/published.py"]
    peers, picture = ["--peers", "benchmarks/peers/answers.json"], ["--plot", "docs/img/validate-h200.png"]
    return [
        ["-m", "chip", "validate", "results/h200/runs", "--ablate", *peers, *picture, "-o", record],
        [*published, "argonne", argonne],
        [*published, "llmservingsim", llmservingsim],
        ["benchmarks/validated_index.py", record, "build/argonne.json"],
        ["benchmarks/interval_classes.py"],
        ["tests/pure/test_docs.py"],
        ["tests/pure/test_examples.py"],
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("argonne", type=Path, metavar="All_results.csv")
    parser.add_argument("llmservingsim", type=Path, metavar="EXAMPLES")
    args = parser.parse_args()
    for step in steps(str(args.argonne.resolve()), str(args.llmservingsim.resolve())):
        print(" ".join(step), file=sys.stderr)
        subprocess.run([sys.executable, *step], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
