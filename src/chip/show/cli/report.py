"""Make the report: summary.json, summary.csv and a page that opens from disk, from whatever results there are.

RESULTS are files that chip's commands wrote, or folders of them. Sections without data say which command makes it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from chip.files import output
from chip.show.cli import options
from chip.show.report import page, sources
from chip.types import ChipError

HELP = "summary files and a page from results; opens from disk, needs no server"
BESIDE = ("headlines", "tallies", "sources")  # tables that are about the others
EPILOG = """\
  chip report results/h200 -o site
  chip report my-gpu.json operators.jsonl runs.json validation.json -o site --title "My GPU"
  chip report                                 # all of artifacts/, into site/
"""
SCHEMA = "chip.report/1"
DEFAULT = Path("artifacts")  # where the other commands write


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", metavar="RESULTS", nargs="*", type=Path, help=f"files or folders [{DEFAULT}]")
    options.add_file(parser, "-o", "--output", metavar="FOLDER", default=Path("site"), help="[%(default)s]")
    parser.add_argument("--title", default="CHIP report", help="of the page [%(default)s]")


def outputs(args: argparse.Namespace) -> list[output.Output]:
    return [(args.output, output.FOLDER), *((args.output / name, kind) for name, kind in page.FILES.items())]


def run(args: argparse.Namespace) -> int:
    if not args.results and not DEFAULT.is_dir():
        raise ChipError(f"nothing to report: there is no folder {DEFAULT}; give files or folders of results")
    summary = sources.gather(args.results or [DEFAULT], args.title)
    troubles = list(sources.troubles(summary))
    read = [row for row in summary.tables["sources"] if row["status"] in ("read", "repeated")]
    if not read:
        why = f": {troubles[0]}" if troubles else ": the folders hold no .json or .jsonl file"
        raise ChipError(f"nothing to report{why}")
    index = page.write(args.output, summary)
    for line in troubles:
        print(line, file=sys.stderr)
    rows = {name: len(table) for name, table in summary.tables.items()}
    if args.json:
        print(json.dumps({"schema": SCHEMA, "page": str(index), "files": len(read), "rows": rows}, indent=1))
    else:
        filled = ", ".join(f"{n} {name}" for name, n in rows.items() if n and name not in BESIDE)
        files = "1 file" if len(read) == 1 else f"{len(read)} files"
        print(f"{files}: {filled}\nreport: {index}")
    return 1 if any(row["status"] == "refused" for row in summary.tables["sources"]) else 0
