"""Measure the norms of HF's modules among the other kernels of a layer, over rows and columns of models.

    python benchmarks/norm_shapes.py OUT.jsonl --profile my-gpu.json

Other options go to `chip profile`, which resumes a file that is there.
"""

from __future__ import annotations

import random
import sys

from chip import ops
from chip.lab.measure import suites
from chip.show import cli

ROWS = (1, 2, 4, 8, 16, 32, 64, 256, 1024, 4096, 16384)
COLUMNS = (768, 1024, 1536, 2048, 2560, 3072, 4096, 4608, 5120, 6144, 8192, 12288)
OF_HEADS = [(rows, cols) for rows in (8, 64, 512, 4096, 65536) for cols in (64, 128, 256)]
COUNTS = {  # shapes of each, drawn at random
    "rms_norm_composed": 75, "layer_norm": 65, "rms_norm_fp32": 40, "rms_norm_plus_one": 45, "layer_norm_composed": 35,
}  # fmt: skip


def main(out: str, *rest: str) -> int:
    draw = random.Random(2)
    shapes = [(rows, cols) for rows in ROWS for cols in COLUMNS] + OF_HEADS
    cases = [
        suites.SuiteCase(ops.get(kind)(*shape), "torch", "layer")
        for kind, count in COUNTS.items()
        for shape in draw.sample(shapes, count)
    ]
    draw.shuffle(cases)  # a run cut short has some of each
    suites.SUITES["between"] = lambda dtype: iter(cases)  # in its place, to be measured as it is
    return cli.main(["profile", "--suite", "between", "-o", out, *rest])


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
