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
from chip.show.cli.streams import progress
from chip.show.report import page, sources
from chip.show.report.summary import Summary
from chip.types import ChipError

HELP = "summary files and a page from results; opens from disk, needs no server"
BESIDE = ("headlines", "tallies", "sources")  # tables that are about the others
EPILOG = """\
  chip report results/h200 -o site
  chip report my-gpu.json operators.jsonl runs.json validation.json -o site --title "My GPU"
  chip report results/h200 -o site --explorer --jobs 0       # with the explorer beside it, for a static host
  chip report                                 # all of artifacts/, into site/
"""
SCHEMA = "chip.report/1"
DEFAULT = Path("artifacts")  # where the other commands write


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("results", metavar="RESULTS", nargs="*", type=Path, help=f"files or folders [{DEFAULT}]")
    options.add_file(parser, "-o", "--output", metavar="FOLDER", default=Path("site"), help="[%(default)s]")
    parser.add_argument("--title", default="CHIP report", help="of the page [%(default)s]")
    beside = "beside it the explorer, with answers for the bundled models or for those named; takes minutes"
    parser.add_argument("--explorer", metavar="MODELS", nargs="?", const="", help=beside)
    parser.add_argument("--jobs", type=int, default=1, help="processes for --explorer; 0 for one a core [%(default)s]")


def _site(args: argparse.Namespace, summary: Summary) -> Path:
    """The report and the explorer in one folder that any static host can serve."""
    from chip.decoders import library
    from chip.show.serve import site
    from chip.simulator.jobs import pool_of

    models = [name for name in args.explorer.split(",") if name] or list(library.names())
    for name in models:
        if name not in library.names():
            raise ChipError(f"--explorer {name[:80]!r}: no bundled model; `chip list models` shows them")
    pool = pool_of(args.jobs, "", progress("models", log=True))
    index = page.write_packed(args.output, summary, site.EXPLORER)
    size = site.write(args.output, models, pool)
    print(
        f"explorer: {args.output / site.EXPLORER} ({len(models)} models, {size / 1e6:.1f} MB in all)", file=sys.stderr
    )
    return index


def outputs(args: argparse.Namespace) -> list[output.Output]:
    """Of a site, its answers too are checked when they are written."""
    files = page.FILES
    if args.explorer is not None:
        from chip.show.serve import site

        files = site.FILES
    return [(args.output, output.FOLDER), *((args.output / name, kind) for name, kind in files.items())]


def run(args: argparse.Namespace) -> int:
    if not args.results and not DEFAULT.is_dir():
        raise ChipError(f"nothing to report: there is no folder {DEFAULT}; give files or folders of results")
    summary = sources.gather(args.results or [DEFAULT], args.title)
    troubles = list(sources.troubles(summary))
    read = [row for row in summary.tables["sources"] if row["status"] in ("read", "repeated")]
    if not read:
        why = f": {troubles[0]}" if troubles else ": the folders hold no .json or .jsonl file"
        raise ChipError(f"nothing to report{why}")
    index = page.write(args.output, summary) if args.explorer is None else _site(args, summary)
    for line in troubles:
        print(line, file=sys.stderr)
    rows = {name: len(found) for name, found in summary.tables.items()}
    if args.json:
        print(json.dumps({"schema": SCHEMA, "page": str(index), "files": len(read), "rows": rows}, indent=1))
    else:
        filled = ", ".join(f"{n} {name}" for name, n in rows.items() if n and name not in BESIDE)
        files = "1 file" if len(read) == 1 else f"{len(read)} files"
        print(f"{files}: {filled}\nreport: {index}")
    return 1 if any(row["status"] == "refused" for row in summary.tables["sources"]) else 0
