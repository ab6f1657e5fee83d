"""Our vLLM runs of an H200 predicted from imported operator times alone: how far the GPUs that have no others can be
trusted. Ceilings, clocks and terms of engine and host stay ours.

    python benchmarks/imported_only.py [RUNS ...]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from chip import stats
from chip.hardware import gpus
from chip.hardware.gpus import Hardware
from chip.validate import judge
from chip.validate.points import Point

GPU = "h200"
RUNS = Path(__file__).parents[1] / "results" / "h200" / "runs"


def judged(files: Sequence[Path] = (RUNS,)) -> Sequence[Point]:
    """Points of runs, predicted from the imported points of the GPU."""
    bundled = gpus._bundled

    def imported(name: str) -> Hardware:
        found = bundled(name)
        return replace(found, points=(gpus.IMPORTED / GPU,)) if name == GPU else found

    try:
        gpus._bundled = imported
        gpus.find.cache_clear()
        return judge.judge(judge.read(files), GPU, "vllm").points
    finally:
        gpus._bundled = bundled
        gpus.find.cache_clear()


def main() -> None:
    found = judged([Path(f) for f in sys.argv[1:]] or [RUNS])
    for title in ("GPU-bound", "all"):
        errors = [p.error for p in found if p.metric == "tpot" and (title == "all" or p.bound == "gpu")]
        sizes = [abs(e) for e in errors]
        print(
            f"TPOT, {title}: {len(errors)} points, median {100 * stats.median(sizes):.1f} %, "
            f"p90 {100 * stats.quantile(sizes, 0.9):.1f} %, bias {100 * stats.median(errors):+.1f} %"
        )


if __name__ == "__main__":
    main()
