"""A campaign against chip: fuzzers, a fault injector, a physics checker and an edge walker, for as long as asked.

    make campaign MINUTES=10
    python tests/campaign --minutes 10 --only physics --only edges
    python tests/campaign --show results/cpu/campaign.json

Run again with the same record, it goes on where it stopped, and the counts add up. It exits with 1 where anything
failed; failing inputs, made as small as possible, are in the record. --again tries those alone, and counts as mended
what holds now.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "src")]

import record as records  # noqa: E402
import runner  # noqa: E402

WITHOUT_END = 10**12


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tests/campaign", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--minutes", type=float, default=10.0, help="for all of them together [%(default)s]")
    add("--seed", type=int, default=1, help="[%(default)s]")
    add("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once [%(default)s]")
    add("--only", action="append", default=[], choices=runner.FUZZERS, help="one of them; may be repeated")
    add("--record", type=Path, default=Path("build/campaign.json"), help="[%(default)s]")
    add("--cases", type=int, default=WITHOUT_END, help="end a fuzzer where so many were tried in all")
    add("--again", action="store_true", help="try the record's failures again, nothing else")
    add("--show", type=Path, help="print a record's table and failures, run nothing")
    add("--json", action="store_true", help="print the record as JSON")
    for hidden in ("--worker", "--state"):
        add(hidden, default="", help=argparse.SUPPRESS)
    add("--start", type=int, default=0, help=argparse.SUPPRESS)
    add("--seconds", type=float, default=0.0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        runner.work(args.worker, args.seed, args.start, args.seconds, args.cases, Path(args.state))
        return 0
    if args.show:
        held = json.loads(args.show.read_text(encoding="utf-8"))
    else:
        args.record.parent.mkdir(parents=True, exist_ok=True)
        names, path = args.only or list(runner.FUZZERS), args.record.resolve()
        jobs = max(1, args.jobs)
        if args.again:
            held = runner.again(path, args.seed)
        else:
            held = runner.campaign(names, args.minutes * 60, args.seed, jobs, path, args.cases)
    print(json.dumps(held, indent=1) if args.json else records.table(held))
    failed = sum(f["failed"] for f in held["fuzzers"].values())
    for name, f in held["fuzzers"].items():
        for one in f["failures"][:5]:
            print(f"{name} {one['number']}: {one['why'][:300]}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
