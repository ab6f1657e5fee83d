"""Replay the silicon sample and keep what docs/field.md shows: results/published/silicon.json, without its points.

    python benchmarks/field.py aiconfigurator_core/systems/silicon_sample.csv --jobs 2
    python benchmarks/field.py aiconfigurator_core/systems/silicon_sample.csv --against aiconfigurator

`--against` needs aiconfigurator 0.12.0 in the same environment. `--every N` takes each N-th row, which is quicker.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from chip.files import output
from chip.simulator.jobs import pool_of
from chip.validate import against, field, silicon
from chip.validate.doubts import doubts
from chip.validate.field_document import document

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "results" / "published" / "silicon.json"
FULL = ROOT / "build" / "silicon.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--against", default="")
    parser.add_argument("--answers", type=Path, help="answers of another predictor that --against gave before, as JSON")
    args = parser.parse_args()
    rows = silicon.read(args.path)[:: args.every]
    theirs = json.loads(args.answers.read_text()) if args.answers else None
    theirs = against.ask(args.against, rows) if args.against else theirs
    replays = field.replay(rows, pool_of(args.jobs, "", lambda done, all_: print(f"{done}/{all_}", file=sys.stderr)))
    made = document(replays, doubts(rows), theirs)
    FULL.parent.mkdir(exist_ok=True)
    FULL.write_text(json.dumps(made))
    kept = {"every": args.every, **{k: v for k, v in made.items() if k != "points"}}
    output.write(RECORD, json.dumps(kept, indent=1) + "\n", output.ANY)


if __name__ == "__main__":
    main()
