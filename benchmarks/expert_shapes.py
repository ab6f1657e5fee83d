"""Measure layers of experts, as models are served, in bf16 under vLLM: shapes that it tuned its tiles for and others.

    PYTHONPATH=src:/opt/vllm python benchmarks/expert_shapes.py OUT.jsonl --runs 12

Other options go to `chip profile`, which resumes a file that is there.
"""

from __future__ import annotations

import sys

from chip import ops
from chip.lab.measure import suites
from chip.show import cli

EXPERTS = (  # hidden, intermediate, experts, experts of a token
    (6144, 16384, 8, 2), (4096, 14336, 8, 2), (4096, 14336, 16, 2), (4096, 6400, 16, 2), (6144, 10752, 16, 4),
    (5120, 8192, 16, 1), (4096, 1536, 128, 8), (4096, 1408, 128, 8), (2048, 768, 128, 8), (2048, 1408, 64, 6),
    (2048, 1408, 60, 4), (2048, 1024, 64, 8), (2560, 1536, 64, 6), (4096, 3072, 64, 8), (1536, 512, 40, 8),
    (2048, 512, 512, 10), (2880, 2880, 32, 4), (3584, 2560, 64, 8),
)  # fmt: skip
TOKENS = (4096, 1, 16384, 64, 1536, 8, 9600, 24, 600, 200)


def main(out: str, *rest: str) -> int:
    experts = ops.get("moe_experts")
    cases = [suites.SuiteCase(experts(t, *shape), "vllm", "cold") for t in TOKENS for shape in EXPERTS]
    suites.SUITES["between"] = lambda dtype: iter(cases)  # in its place, to be measured as it is
    return cli.main(["profile", "--suite", "between", "-o", out, *rest])


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
