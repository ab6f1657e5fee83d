"""Write the tables of models that were predicted before they were measured into docs/accuracy.md.

    python benchmarks/unseen_rounds.py            # after results/h200/validation.json was made anew
    python benchmarks/unseen_rounds.py --check    # exits with 1 where the page says something else

results/h200/unseen-rounds.txt says what each round gave when it was unseen; what the same points give today comes from
validation.json.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from chip import artifact, runs, stats

ROOT = Path(__file__).parents[1]
RECORDS, PAGE = ROOT / "results" / "h200", ROOT / "docs" / "accuracy.md"
BEGIN, END = "<!-- unseen rounds: {} -->\n", "<!-- end of unseen rounds -->\n"
Point = Mapping[str, Any]
COLUMNS: dict[str, tuple[tuple[str, Callable[[Point], bool]], ...]] = {
    "vllm": (
        ("TPOT, GPU-bound", lambda p: p["metric"] == "tpot" and p["bound"] == "gpu"),
        ("TTFT, >= 4096 tokens", lambda p: p["metric"] == "ttft" and p["batch"] * p["prompt"] >= 4096),
    ),
    "hf": (
        ("hf-graph, TPOT and TTFT", lambda p: p["engine"] == "hf-graph" and p["metric"] in ("tpot", "ttft")),
        (
            "hf-eager, TTFT >= 8192 tokens",
            lambda p: p["engine"] == "hf-eager" and p["metric"] == "ttft" and p["batch"] * p["prompt"] >= 8192,
        ),
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    made = written(page)
    if args.check or made == page:
        return int(made != page)
    artifact.write_text(PAGE, made)
    print(f"{PAGE}: written", file=sys.stderr)
    return 0


def written(page: str) -> str:
    """The page with today's tables."""
    by_file = points()
    for engine in COLUMNS:
        begin = page.index(BEGIN.format(engine)) + len(BEGIN.format(engine))
        page = page[:begin] + "\n".join(table(engine, by_file)) + "\n" + page[page.index(END, begin) :]
    return page


def points() -> dict[str, list[Point]]:
    """Of every file of runs, what validation.json says of them."""
    found = json.loads((RECORDS / "validation.json").read_text(encoding="utf-8"))["data"]["points"]
    own: dict[str, list[Point]] = {}
    for point in found:
        if point["who"] == "chip":
            own.setdefault(point["run"], []).append(point)
    files = sorted({row["runs"] for row in rounds()})
    held = {file: runs.read(RECORDS / "runs" / f"{file}.json")[1].runs for file in files}
    return {file: [p for run in held[file] for p in own.get(runs.id_of(run), ())] for file in files}


def rounds() -> Iterator[dict[str, str]]:
    lines = (RECORDS / "unseen-rounds.txt").read_text(encoding="utf-8").splitlines()
    return csv.DictReader([line for line in lines if not line.startswith("#")], delimiter=";")  # type: ignore[return-value]


def table(engine: str, by_file: Mapping[str, list[Point]]) -> Iterator[str]:
    (first, _), (second, _) = COLUMNS[engine]
    yield f"| models (file of runs) | {first}: unseen | today | {second}: unseen | today |"
    yield "|---|---|---|---|---|"
    for row in rounds():
        if row["engine"] != engine:
            continue
        models = row["models"].split()
        mine = [p for p in by_file[row["runs"]] if not models or p["model"] in models]
        cells = [f"{row['title']} (`{row['runs']}`)"]
        for unseen, (_, belongs) in zip((row["first"], row["second"]), COLUMNS[engine]):
            median, p90, count = unseen.split()
            cells += [f"{median} %, {p90} % ({count})", today([abs(p["error"]) for p in mine if belongs(p)])]
        yield f"| {' | '.join(cells)} |"


def today(errors: list[float]) -> str:
    return f"{100 * stats.median(errors):.1f} %, {100 * stats.quantile(errors, 0.9):.1f} %"


if __name__ == "__main__":
    sys.exit(main())
