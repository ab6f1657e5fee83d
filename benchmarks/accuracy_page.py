"""Write the tables of docs/accuracy.md that no other command writes.

    python benchmarks/accuracy_page.py            # after results/h200/validation.json was made anew; half a minute
    python benchmarks/accuracy_page.py --quick    # only rounds of unseen models, which need no prediction

A table stands between `<!-- table: NAME -->` and `<!-- end of table -->`. The output of `chip validate --by-operator`
and `--suite` stands below its command. results/h200/unseen-rounds.txt says what each round of models gave when it was
unseen; what the same points give today comes from validation.json.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from chip import hardware, runs, stats
from chip import points as library
from chip.output import ANY, write
from chip.units import percent
from chip.validate import judge
from chip.validate.classes import CLASSES, Class, gpu_bound, host_bound, intervals
from chip.validate.points import Point as Judged
from chip.validate.repeats import repeats

ROOT = Path(__file__).parents[1]
RECORDS, PAGE = ROOT / "results" / "h200", ROOT / "docs" / "accuracy.md"
TABLE = re.compile(r"(?<=<!-- table: )(?P<name>[^\n]*?) -->\n(?P<rows>.*?)(?=<!-- end of table -->)", re.S)
OUTPUT = re.compile(r"```text\n\$ (?P<command>chip validate --(?:by-operator|suite) [^\n]*)\n(?P<shown>.*?)```", re.S)
PUBLISHED = ROOT / "build" / "All_results.csv"  # of Argonne's suite; without it what it gave stays as it is
PUBLISHED_GPUS = ("a100-40gb", "gh200", "h100")
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
    parser.add_argument("--quick", action="store_true", help="only rounds of unseen models")
    args = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    made = written(page, QUICK if args.quick else TABLES)
    if not args.quick:
        made = OUTPUT.sub(output, made)
    if made != page:
        write(PAGE, made, ANY)
        print(f"{PAGE}: written", file=sys.stderr)
    return 0


def written(page: str, tables: Mapping[str, Callable[[], Iterable[str]]]) -> str:
    """The page with these tables as they are today."""

    def fresh(found: re.Match[str]) -> str:
        name = found["name"]
        rows = "".join(f"{row}\n" for row in tables[name]()) if name in tables else found["rows"]
        return f"{name} -->\n{rows}"

    return TABLE.sub(fresh, page)


def output(found: re.Match[str]) -> str:
    """A command and what it prints; of a block that was cut short as many lines."""
    words = shlex.split(found["command"])
    where = PUBLISHED.parent if "--suite" in words else ROOT
    if "--suite" in words and not PUBLISHED.exists():
        return found[0]
    lines = printed(*words, where=where)
    wanted = found["shown"].splitlines()
    if "--suite" in words:
        lines = lines[: len(wanted)]
    return "\n".join(["```text", f"$ {found['command']}", *lines, "```"])


@cache
def printed(*words: str, where: Path = ROOT) -> list[str]:
    done = subprocess.run([sys.executable, "-m", *words], cwd=where, capture_output=True, text=True, check=True)
    return done.stdout.rstrip().splitlines()


def pair(errors: Iterable[float]) -> str:
    """Median and 90th percentile of errors, whatever their sign."""
    absolute = [abs(e) for e in errors]
    return f"{100 * stats.median(absolute):.1f} %, {100 * stats.quantile(absolute, 0.9):.1f} %" if absolute else ""


# --- whole models
@cache
def judged(latency_known: bool = False) -> judge.Validation:
    return judge.judge(judge.read([RECORDS / "runs"]), "h200", latency_known=latency_known)


def limits() -> Iterator[str]:
    yield "| vLLM | points | TTFT: median, p90 | points | TPOT |"
    yield "|---|---|---|---|---|"
    for name, choose in (("the GPU", gpu_bound), ("the host", host_bound)):
        cells = [name]
        for metric in ("ttft", "tpot"):
            errors = [p.error for p in choose(judged().points) if (p.engine, p.metric) == ("vllm", metric)]
            cells += [str(len(errors)), pair(errors)]
        yield f"| {' | '.join(cells)} |"


def coverage() -> Iterator[str]:
    points = judged().points
    found, on_host, others = intervals(points), host_bound(points), gpu_bound(points)
    yield "| 90 % intervals | points | inside |"
    yield "|---|---|---|"
    for metric, said in found["metrics"].items():
        yield f"| {metric} | {said['points']} | {percent(said['coverage'])} |"
    graph = [p.inside for p in points if p.engine == "hf-graph" and p.metric in ("ttft", "tpot")]
    yield f"| ttft and tpot of hf-graph | {len(graph)} | {percent(sum(map(bool, graph)) / len(graph))} |"
    yield ""
    called, also = (sum(p.called == "host" for p in those) for those in (on_host, others))
    width = percent(found["gpu_bound_half_width"])
    yield f"Where the GPU is the limit intervals are {width} wide to each side."
    yield f"At {len(on_host)} points the GPU waited for the host for more than 5 % of the time:"
    yield f"{called} are predicted as host-bound, and {also} of the {len(others)} others."


def other_hosts() -> Iterator[str]:
    yield "| what | points | another host's measurement: median, p90 | CHIP, all points |"
    yield "|---|---|---|---|"
    for row in repeats(judged()):
        said = f"{percent(row['median'])}, {percent(row['p90'])}"
        yield f"| {row['class']} | {row['points']} | {said} | {of_class(judged().points, row['class'])} |"


def latency_known() -> Iterator[str]:
    points = [p for p in judged(True).points if p.latency_known]
    yield f"| what | points of {len({p.run for p in points})} runs | latency known |"
    yield "|---|---|---|"
    for wanted in CLASSES:
        if not wanted.latency_known:
            known = [p for p in points if wanted.has(p)]
            yield f"| {wanted.title} | {len(known)} | {pair(p.error for p in known)} |"


def own_terms() -> Iterator[str]:
    """Runs of hosts that were calibrated themselves: the host unknown, its latency known, its own terms, and both."""
    eager, first = ("hf-eager TPOT, flash", ["hf-4", "hf-10", "hf-11", "hf-12"]), ["vllm-5", "vllm-6"]
    yield "| runs | what | points | host unknown | latency known | own terms | both |"
    yield "|---|---|---|---|---|---|---|"
    for title, files in (eager, ("vLLM TTFT, all", first), ("vLLM TTFT, >= 4096 tokens", first)):
        found = [of_class(with_terms(files, own, known), title) for own, known in WAYS]
        count = sum(class_of(title).has(p) for p in with_terms(files))
        yield f"| {', '.join(f'`{f}`' for f in files)} | {title} | {count} | {' | '.join(found)} |"
    title, files = eager
    for name, those in (("the first row", files), ("its host 15", files[:1]), ("its host 30", files[1:])):
        members = [[p.error for p in with_terms(those, *way) if class_of(title).has(p)] for way in WAYS]
        biases = [f"{100 * stats.median(errors):+.1f} %" for errors in members]
        yield f"| {name} | its bias | {len(members[0])} | {' | '.join(biases)} |"


WAYS = ((False, False), (False, True), (True, False), (True, True))  # own terms, latency known


def with_terms(files: Sequence[str], own: bool = False, known: bool = False) -> Sequence[Judged]:
    sources = judge.read(RECORDS / "runs" / f"{file}.json" for file in files)
    engine = {"hf": "hf-eager", "vllm": "vllm"}[files[0].partition("-")[0]]
    terms = {(file, engine): str(RECORDS / "engines" / f"{file}.terms.json") for file in files}
    return judge.judge(sources, "h200", engine, terms=terms if own else None, latency_known=known).points


def class_of(title: str) -> Class:
    return next(c for c in CLASSES if c.title == title)


def of_class(points: Sequence[Judged], title: str) -> str:
    return pair(p.error for p in points if class_of(title).has(p))


# --- single operators
def operators() -> Iterator[str]:
    """The operators that take most of the time of most models."""
    yield "| operator | kernel | points | median error | p90 |"
    yield "|---|---|---|---|---|"
    shown = ("linear", "torch"), ("attention", "fa3"), ("attention", "flash"), ("masked_attention", "torch")
    folder = hardware.find("h200").points[0]
    for kind, kernel in shown:
        group = next(g for g in library.read(folder / f"{kind}{library.SUFFIX}").groups if g.kernel == kernel)
        median, p90 = pair(group.loo).split(", ")
        yield f"| {kind} | {kernel} | {len(group.loo)} | {median} | {p90} |"


# --- other GPUs
def by_batch() -> Iterator[str]:
    """What others published of one NVIDIA GPU, batch by batch."""
    lines = printed("chip", "validate", "--suite", "argonne", PUBLISHED.name, where=PUBLISHED.parent)
    start = next(i for i, line in enumerate(lines) if line.split()[:4] == ["gpu", "tp", "metric", "batch"])
    rows = takewhile(str.strip, lines[start + 2 :])
    shown = [row for row in rows if row.split()[:2] in ([name, "1"] for name in PUBLISHED_GPUS)]
    yield from ("```text", *lines[start : start + 2], *shown, "```")


def scales() -> Iterator[str]:
    yield "| what operators rest on | GPUs | scale | runs | inside before | inside |"
    yield "|---|---|---|---|---|---|"
    lines = (ROOT / "src" / "chip" / "data" / "interval_classes.csv").read_text(encoding="utf-8").splitlines()
    for row in csv.DictReader([line for line in lines if not line.startswith("#")], delimiter=";"):
        before, inside = (f"{100 * float(row[column]):.0f} %" for column in ("inside unscaled", "inside"))
        yield f"| {row['kind']} | {row['gpus']} | {row['scale']} | {row['runs']} | {before} | {inside} |"


# --- models that were predicted before they were measured
@cache
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


def unseen(engine: str) -> Iterator[str]:
    by_file = points()
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
            cells += [f"{median} %, {p90} % ({count})", pair(p["error"] for p in mine if belongs(p))]
        yield f"| {' | '.join(cells)} |"


QUICK: dict[str, Callable[[], Iterable[str]]] = {
    "unseen models, vLLM": lambda: unseen("vllm"), "unseen models, HF": lambda: unseen("hf"),
}  # fmt: skip
TABLES = {
    **QUICK, "by what limits": limits, "intervals": coverage, "other hosts": other_hosts,
    "latency known": latency_known, "own terms": own_terms, "operators": operators,
    "scales of intervals": scales,
}  # fmt: skip

if PUBLISHED.exists():
    TABLES["published runs by batch"] = by_batch

if __name__ == "__main__":
    sys.exit(main())
