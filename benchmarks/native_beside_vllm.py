"""native and vLLM on one GPU at the same time, measured in turn: the same model, points and clock for both.

    PYTHONPATH=src:/opt/vllm python benchmarks/native_beside_vllm.py OUT.json

Each round measures every point with one engine, then with the other, and each round begins with the other one. Both
keep their weights on the GPU throughout; while one is measured the other waits. TPOT is the median over rounds of each
round's own median; the ratio is of the two.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import environment

from chip import stats
from chip.decoders import library
from chip.files import artifact, output
from chip.lab.run import Job, get
from chip.lab.run.grid import without_home
from chip.types import Scenario

SCHEMA = "chip.benchmark_native_beside_vllm/1"
SETTINGS = {"vllm": {"gpu_memory_utilization": "0.35"}, "native": {}}


def job_of(engine: str, model: str, points: list[tuple[int, int]], output: int) -> Job:
    path, title = library.locate(model)
    longest = max(prompt for _, prompt in points) + output
    settings = SETTINGS[engine]
    return Job(title, artifact.read_json(path), max_context=longest, energy_s=0.0, max_seconds=20.0, settings=settings)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--model", default="llama-3.1-8b")
    parser.add_argument("--points", default="1x512,8x512,32x512", help="batch x prompt [%(default)s]")
    parser.add_argument("--output", type=int, default=33, help="tokens [%(default)s]")
    parser.add_argument("--rounds", type=int, default=4)
    args = parser.parse_args()
    points = [(int(b), int(p)) for b, p in (word.split("x") for word in args.points.split(","))]
    taken: dict[tuple[str, int, int], list[Any]] = {}
    with (
        get("vllm").open(job_of("vllm", args.model, points, args.output)) as vllm,
        get("native").open(job_of("native", args.model, points, args.output)) as native,
    ):
        sessions = {"vllm": vllm, "native": native}
        for round_ in range(args.rounds):
            for engine in sorted(sessions, reverse=bool(round_ % 2)):
                for batch, prompt in points:
                    run = sessions[engine].measure(Scenario(batch, prompt, args.output, "bf16"), 2)
                    taken.setdefault((engine, batch, prompt), []).append(run)
                    print(f"{engine} {batch}x{prompt}: {1e3 * run.tpot_s:.3f} ms", file=sys.stderr)
    rows = []
    for batch, prompt in points:
        row: dict[str, Any] = {"batch": batch, "prompt": prompt}
        for what in ("ttft_s", "tpot_s"):
            for engine in SETTINGS:
                each = [getattr(run, what) for run in taken[engine, batch, prompt]]
                row[f"{engine}_{what}"], row[f"{engine}_{what}_rounds"] = stats.median(each), each
            row[f"{what}_native_over_vllm"] = row[f"native_{what}"] / row[f"vllm_{what}"]
        rows.append(row)
    first = {engine: taken[engine, *points[0]][0] for engine in SETTINGS}
    about = {**environment.describe(), "model": args.model, "output": args.output, "rounds": args.rounds}
    about["engines"] = {
        engine: {"version": run.engine_version, "settings": without_home(run.settings), "method": run.method}
        for engine, run in first.items()
    }
    output.write(args.file, json.dumps({"schema": SCHEMA, "made": about, "rows": rows}, indent=1) + "\n", SCHEMA)
    for row in rows:
        ttft, tpot = ([1e3 * row[f"{engine}_{what}"] for engine in ("native", "vllm")] for what in ("ttft_s", "tpot_s"))
        point = f"{row['batch']}x{row['prompt']}"
        print(f"{point}: TPOT {tpot[0]:.3f} / {tpot[1]:.3f} ms, TTFT {ttft[0]:.2f} / {ttft[1]:.2f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
