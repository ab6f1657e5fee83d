"""Run models under HF transformers on this machine's GPU, in one process: importing torch takes longer than a point.

    python benchmarks/h200_runs.py OUT                     every step but `more`
    python benchmarks/h200_runs.py OUT graph eager         some of them
    python benchmarks/h200_runs.py OUT graph --energy-seconds 1

Files of runs and tables land in OUT. Those that lie in results/h200 are gone on with, and so is a step that was
stopped: run it again. `--dry` prints the commands instead. Everything is timed first and looked at under the profiler
afterwards, since a process that has used it launches more slowly.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
import time
from pathlib import Path

from chip.show import cli

RECORDS = Path(__file__).resolve().parents[1] / "results" / "h200"
RUNS, README = "hf-4.json", "tinyllama-fp16.json"
FEW = "1x128,8x512"  # where compiling is slow
SMALL = "1x128,1x1024,8x512,32x256,64x128,8x2048"  # up to 8B
SHORT = "1x128,1x1024,8x512,32x256,64x128,8x1024"  # 2048 positions, or a window of 2047, whose mask flash does not take
LARGE = "1x128,1x1024,8x128,8x256,32x64,32x128"  # 14B and a mixture of experts
LARGEST = "1x128,1x512,1x1024,8x128,8x256,32x64"  # 32B
GRAPH = "--engine hf-graph --output 9 --repeats 3"
EAGER = "--engine hf-eager --output 9 --repeats 3 --energy-seconds 0"
FLASH = f"{EAGER} --sdpa flash"
BENCH = "bench "
FP16 = "--dtype fp16 --points 1x128 --output 128 --repeats 5"

STEPS: dict[str, tuple[tuple[str, str], ...]] = {  # (file, command)
    "graph": (
        (RUNS, f"bench qwen2.5-0.5b gemma-3-1b phi-3-mini llama-3.1-8b --points {SMALL} {GRAPH}"),
        (RUNS, f"bench opt-1.3b --points {SHORT} {GRAPH}"),
        (RUNS, f"bench qwen3-30b-a3b qwen3-14b --points {LARGE} {GRAPH}"),
        (RUNS, f"bench qwen2.5-32b --points {LARGEST} {GRAPH}"),
    ),
    "eager": (
        (RUNS, f"bench qwen2.5-0.5b --points {SMALL} {FLASH}"),
        (RUNS, f"bench gemma-3-1b --points {SMALL} {EAGER}"),  # its windows need masks, which flash does not take
        (RUNS, f"bench llama-3.1-8b --points {SMALL} {FLASH}"),
        (RUNS, f"bench phi-3-mini opt-1.3b --points {SHORT} {FLASH}"),
        (RUNS, f"bench qwen3-30b-a3b qwen3-14b --points {LARGE} {FLASH}"),
        (RUNS, f"bench qwen2.5-32b --points {LARGEST} {FLASH}"),
    ),
    "readme": (
        (README, f"bench tinyllama-1.1b --engine hf-graph,hf-eager,hf-compile {FP16}"),
        (README, f"bench tinyllama-1.1b --engine hf-eager --sdpa flash {FP16}"),
    ),
    "compile": (
        (
            RUNS,
            f"bench tinyllama-1.1b qwen2.5-0.5b llama-3.2-1b --engine hf-compile --points {FEW} --output 9 --repeats 3 "
            "--energy-seconds 0",
        ),
    ),
    # another Llama, and a window that never fills
    "more": ((RUNS, f"bench tinyllama-1.1b mistral-7b-v0.1 --points {SMALL} {GRAPH}"),),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"{', '.join(STEPS)} [all but more]")
    parser.add_argument("--energy-seconds", default="0", help="of `graph` and `more`; 1 takes three more a point [0]")
    parser.add_argument("--dry", action="store_true", help="print the commands")
    args = parser.parse_args()
    if unknown := set(args.steps) - set(STEPS):
        parser.error(f"no step {sorted(unknown)[0]}; there are {', '.join(STEPS)}")
    worst, forced = 0, list[str]()
    names = args.steps or [s for s in STEPS if s != "more"]
    asked = [(name, file, words) for name in names for file, words in STEPS[name]]
    timed = [(name, file, f"{words} --no-profile" if BENCH in words else words) for name, file, words in asked]
    looked = [(name, file, words) for name, file, words in asked if BENCH in words]
    for name, file, words in [*timed, *looked]:
        energy = f" --energy-seconds {args.energy_seconds}" if GRAPH in words else ""
        command = [*shlex.split(words + energy), "-o", str(args.out / file), *forced]
        if args.dry:
            print("chip", shlex.join(command))
            continue
        go_on(args.out / file)
        began = time.monotonic()
        code = cli.main(command)
        print(f"{name}: exit {code} after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        worst, forced = max(worst, code), ["--force"]  # from now on this process itself is on the GPU
    return worst


def go_on(file: Path) -> None:
    """With what was recorded before, where there is any."""
    file.parent.mkdir(parents=True, exist_ok=True)
    for recorded in (RECORDS / file.name, RECORDS / "runs" / file.name):
        if recorded.is_file() and not file.exists():
            shutil.copyfile(recorded, file)


if __name__ == "__main__":
    sys.exit(main())
