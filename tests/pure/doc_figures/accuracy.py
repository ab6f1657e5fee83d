"""docs/accuracy.md: predictions of whole models held against the runs of an H200.

results/h200/unseen-rounds.txt says what each round of models gave when it was unseen; what its points give today is
predicted anew, as all else here.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from chip import stats
from chip.explain import ledger
from chip.files import runs, traces
from chip.hardware import gpus as hardware
from chip.hardware import points as library
from chip.predictor.phase import BETWEEN_CARDS
from chip.units import percent
from chip.validate import judge
from chip.validate.classes import CLASSES, Class, gpu_bound, host_bound, intervals, repeats
from chip.validate.points import Point

ROOT = Path(__file__).parents[3]
RECORDS = ROOT / "results" / "h200"
CALLED = {  # as the README calls them
    "vLLM TPOT, GPU-bound": "vLLM 0.26, time per output token where the GPU is the limit",
    "vLLM TTFT, >= 4096 tokens": "vLLM 0.26, time to first token from 4096 tokens",
    "hf-graph TPOT and TTFT": "HF transformers as CUDA graphs, both",
    "hf-eager TTFT, >= 8192 tokens": "HF transformers, eager, time to first token from 8192 tokens",
    "energy per token": "energy per token",
}
COLUMNS: dict[str, tuple[tuple[str, Callable[[Point], bool]], ...]] = {
    "vllm": (
        ("TPOT, GPU-bound", lambda p: p.metric == "tpot" and p.bound == "gpu"),
        ("TTFT, >= 4096 tokens", lambda p: p.metric == "ttft" and p.scenario.batch * p.scenario.prompt >= 4096),
    ),
    "hf": (
        ("hf-graph, TPOT and TTFT", lambda p: p.engine == "hf-graph" and p.metric in ("tpot", "ttft")),
        (
            "hf-eager, TTFT >= 8192 tokens",
            lambda p: p.engine == "hf-eager" and p.metric == "ttft" and p.scenario.batch * p.scenario.prompt >= 8192,
        ),
    ),
}
WAYS = ((False, False), (False, True), (True, False), (True, True))  # own terms, latency known


def pair(errors: Iterable[float]) -> str:
    """Median and 90th percentile of errors, whatever their sign."""
    absolute = [abs(e) for e in errors]
    return f"{100 * stats.median(absolute):.1f} %, {100 * stats.quantile(absolute, 0.9):.1f} %" if absolute else ""


# --- whole models
@cache
def judged(latency_known: bool = False) -> judge.Validation:
    return judge.judge(judge.read([RECORDS / "runs"]), "h200", latency_known=latency_known)


def runs_and_models() -> str:
    """What the classes are made of."""
    return f"{len({p.run for p in judged().points})} runs of {len({p.model for p in judged().points})} models"


def errors(title: str, known: str = "") -> str:
    """Median and p90 of a class; `known`: where the launch latency is."""
    points = [p for p in judged(True).points if p.latency_known] if known else judged().points
    return of_class(points, title)


def classes() -> Iterator[str]:
    yield "| what | points | median error, 90th percentile |"
    yield "|---|---|---|"
    for title, name in CALLED.items():
        yield f"| {name} | {sum(class_of(title).has(p) for p in judged().points)} | {errors(title)} |"


def of_limit(metric: str, bound: str) -> str:
    """Of vLLM's runs that the GPU limits, or the host."""
    points = {"gpu": gpu_bound, "host": host_bound}[bound](judged().points)
    return pair(p.error for p in points if (p.engine, p.metric) == ("vllm", metric))


def _of(engine: str, metric: str, words: Iterable[str]) -> list[float]:
    """Signed errors of points in percent, each word being such as model=phi-4 or batch=8."""
    asked = dict(word.split("=") for word in words)
    return [
        100 * p.error
        for p in judged().points
        if (p.engine, p.metric) == (engine, metric)
        and all(str(getattr(p, k, getattr(p.scenario, k, ""))) in value.split(",") for k, value in asked.items())
    ]


def signed(engine: str, metric: str, *words: str) -> str:
    """The least and the greatest."""
    found = _of(engine, metric, words)
    return f"{min(found):+.0f} to {max(found):+.0f} %"


def middle(engine: str, metric: str, *words: str) -> str:
    return f"{stats.median(_of(engine, metric, words)):+.0f} %"


def by_limit() -> Iterator[str]:
    yield "| vLLM | points | TTFT: median, p90 | points | TPOT |"
    yield "|---|---|---|---|---|"
    for name, choose in (("the GPU", gpu_bound), ("the host", host_bound)):
        cells = [name]
        for metric in ("ttft", "tpot"):
            errors = [p.error for p in choose(judged().points) if (p.engine, p.metric) == ("vllm", metric)]
            cells += [str(len(errors)), pair(errors)]
        yield f"| {' | '.join(cells)} |"


def inside() -> Iterator[str]:
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


def inside_of_steps() -> str:
    found = intervals(judged().points)
    return f"{percent(found['coverage'])} of {found['points']}"


def between_cards() -> str:
    return f"{100 * (BETWEEN_CARDS - 1):.0f} %"


def other_hosts() -> Iterator[str]:
    yield "| what | points | another host's measurement: median, p90 | CHIP, all points |"
    yield "|---|---|---|---|"
    for row in repeats(judged()):
        said = f"{percent(row['median'])}, {percent(row['p90'])}"
        yield f"| {row['class']} | {row['points']} | {said} | {of_class(judged().points, row['class'])} |"


def another_host(title: str) -> str:
    row = next(row for row in repeats(judged()) if row["class"] == title)
    return f"{percent(row['median'])}, {percent(row['p90'])}"


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
    eager, first = ("hf-eager TPOT, flash", ("hf-4", "hf-10", "hf-11", "hf-12")), ("vllm-5", "vllm-6")
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


def with_terms(files: Sequence[str], own: bool = False, known: bool = False) -> list[Point]:
    return [point for file in files for point in of_file(file, own, known)]


@cache
def of_file(file: str, own: bool, known: bool) -> Sequence[Point]:
    """The points of a file of runs of one engine, predicted with the terms of its own host or the usual ones."""
    engine = {"hf": "hf-eager", "vllm": "vllm"}[file.partition("-")[0]]
    if not own:
        return [p for p in judged(known).points if p.engine == engine and p.run in ids(file)]
    terms = {(file, engine): str(RECORDS / "engines" / f"{file}.terms.json")}
    sources = judge.read([RECORDS / "runs" / f"{file}.json"])
    return judge.judge(sources, "h200", engine, terms=terms, latency_known=known).points


@cache
def ids(file: str) -> set[str]:
    return {runs.id_of(run) for run in runs.read(RECORDS / "runs" / f"{file}.json")[1].runs}


def class_of(title: str) -> Class:
    return next(c for c in CLASSES if c.title == title)


def of_class(points: Sequence[Point], title: str) -> str:
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


def of_steps(folder: str, phase: str) -> str:
    """From the fastest to the slowest prediction of captured steps, by their kernels alone."""
    off = [100 * (step.predicted_s / step.measured_s - 1) for step in ledgers(folder) if step.phase == phase]
    return f"{min(off):+.1f} and {max(off):+.1f} %"


@cache
def ledgers(folder: str) -> list[ledger.Ledger]:
    return [ledger.ledger(traces.read(path)[1], "h200") for path in sorted((RECORDS / "traces" / folder).iterdir())]


# --- other GPUs
def _table(path: Path) -> list[dict[str, str]]:
    """Rows between semicolons, without comments."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader([line for line in lines if not line.startswith("#")], delimiter=";"))


KINDS = ROOT / "src" / "chip" / "data" / "interval_classes.csv"


def inside_by_kind() -> str:
    shares = [100 * float(row["inside"]) for row in _table(KINDS)]
    return f"{min(shares):.0f} to {max(shares):.0f} %"


def scales() -> Iterator[str]:
    yield "| what operators rest on | GPUs | scale | runs | inside before | inside |"
    yield "|---|---|---|---|---|---|"
    for row in _table(KINDS):
        before, inside = (f"{100 * float(row[column]):.0f} %" for column in ("inside unscaled", "inside"))
        yield f"| {row['kind']} | {row['gpus']} | {row['scale']} | {row['runs']} | {before} | {inside} |"


# --- models that were predicted before they were measured
def rounds() -> list[dict[str, str]]:
    return _table(RECORDS / "unseen-rounds.txt")


def of_round(row: Mapping[str, str]) -> list[Point]:
    models = row["models"].split()
    return [p for p in judged().points if p.run in ids(row["runs"]) and (not models or p.model in models)]


def unseen(engine: str) -> Iterator[str]:
    (first, _), (second, _) = COLUMNS[engine]
    yield f"| models (file of runs) | {first}: unseen | today | {second}: unseen | today |"
    yield "|---|---|---|---|---|"
    for row in rounds():
        if row["engine"] != engine:
            continue
        cells = [f"{row['title']} (`{row['runs']}`)"]
        for unseen, (_, belongs) in zip((row["first"], row["second"]), COLUMNS[engine]):
            median, p90, count = unseen.split()
            cells += [f"{median} %, {p90} % ({count})", pair(p.error for p in of_round(row) if belongs(p))]
        yield f"| {' | '.join(cells)} |"


def unseen_tpot() -> str:
    """The least and the largest median of a round under vLLM; the first mixture of experts apart."""
    medians = {row["title"]: float(row["first"].split()[0]) for row in rounds() if row["engine"] == "vllm"}
    moe = medians.pop("DeepSeek-V2-Lite (MoE)")
    least, most = min(medians.values()), max(medians.values())
    return f"{least:.1f} to {most:.1f} % in the median, but for the first mixture of experts ({moe:.1f} %)"
