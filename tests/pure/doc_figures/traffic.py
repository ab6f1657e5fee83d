"""docs/simulate.md: simulations held against live traffic on H200s, and what the simulator itself takes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from chip.show.cli import client_text
from chip.stats import median
from chip.validate import client_errors, clients, traffic
from chip.validate.traffic import JudgedTraffic
from doc_figures.accuracy import RECORDS, ROOT

TITLES = {  # file of results/h200/traffic: how the page calls it
    "llama-3.1-8b": "Llama-3.1-8B",
    "reference-llama-3.1-8b": "Llama-3.1-8B, another script",
    "qwen2.5-7b": "Qwen2.5-7B",
    "qwen2.5-7b-2": "Qwen2.5-7B, another H200",
    "mistral-7b": "Mistral-7B, kept back",
    "tinyllama-1.1b": "TinyLlama-1.1B",
    "prefix": "Llama-3.1-8B, shared prefixes",
    "preempts": "Llama-3.1-8B, preempting",
}
SERVERS = {  # file of results/h200/traffic/server
    "reference-llama-3.1-8b.json": "Llama-3.1-8B, another host and script, kept back",
    "llama-3.1-8b.json.gz": "Llama-3.1-8B",
    "qwen3-30b-a3b.json.gz": "Qwen3-30B-A3B",
    "llama-3.2-1b.json.gz": "Llama-3.2-1B, which the terms were fitted to",
}
SERVER_AIMS = {
    "ttft_ms.mean": 0.10, "ttft_ms.p99": 0.20, "tpot_ms.mean": 0.04, "tpot_ms.p99": 0.10, "output_tokens_per_s": 0.03,
}  # fmt: skip
COLUMNS = {
    "TTFT mean": "ttft_ms.mean",
    "TTFT p99": "ttft_ms.p99",
    "TPOT mean": "tpot_ms.mean",
    "output rate": "output_tokens_per_s",
}


@cache
def judged() -> Mapping[str, Sequence[JudgedTraffic]]:
    """Points of each recording, by name."""
    found = {name: traffic.judge([RECORDS / "traffic" / f"{name}.json"], draws=0) for name in TITLES}
    assert not [left_out for _, left_out in found.values() if left_out]
    return {name: points for name, (points, _) in found.items()}


def medians(points: Sequence[JudgedTraffic]) -> dict[str, Mapping[str, Any]]:
    rows = {m["metric"]: m for m in traffic.document(points, [])["metrics"]}
    return {metric: rows[metric] for metric in COLUMNS.values()}


def runs() -> str:
    return f"{len({id(p.run) for points in judged().values() for p in points})} runs"


def errors() -> Iterator[str]:
    yield f"| model | requests a second | {' | '.join(COLUMNS)} |"
    yield f"|---|---|{'---|' * len(COLUMNS)}"
    for name, title in TITLES.items():
        for served in {id(p.run): p.run for p in judged()[name]}.values():
            own = {p.metric: p.error for p in judged()[name] if p.run is served}
            rate = f"{served.rate_per_s:.0f}" if served.rate_per_s else "at once"
            yield f"| {title} | {rate} | " + " | ".join(f"{100 * own[m]:+.1f} %" for m in COLUMNS.values()) + " |"
    everything = [p for points in judged().values() for p in points]
    for title, points in (("kept back", judged()["mistral-7b"]), ("all", everything)):
        texts = [f"**{100 * row['median_error']:.1f} %**" for row in medians(points).values()]
        yield f"| **median, {title}** | | {' | '.join(texts)} |"
    aims = [f"{100 * row['target']:.0f} %" for row in medians(everything).values()]
    yield f"| aim | | {' | '.join(aims)} |"


def server() -> Iterator[str]:
    yield "| model | runs | TTFT mean | TTFT p99 | TPOT mean | TPOT p99 | output rate |"
    yield f"|---|---|{'---|' * len(SERVER_AIMS)}"
    for file, title in SERVERS.items():
        points, left_out = traffic.judge([RECORDS / "traffic" / "server" / file], draws=0)
        assert not left_out
        by_the_clock = [p for p in points if not p.run.users]  # the aims are medians over rates
        rows = {m["metric"]: m for m in traffic.document(by_the_clock, [])["metrics"]}
        texts = [f"{100 * rows[metric]['median_error']:.1f} %" for metric in SERVER_AIMS]
        yield f"| {title} | {rows['ttft_ms.mean']['runs']} | {' | '.join(texts)} |"
    yield f"| aim | | {' | '.join(f'{100 * aim:.0f} %' for aim in SERVER_AIMS.values())} |"


def fitted() -> Iterator[str]:
    """From the record of benchmarks/fitted_hosts.py, which takes minutes."""
    rows = json.loads((RECORDS.parent / "validated" / "fitted_hosts.json").read_text())
    titles = {
        "mean_ttft_ms": "TTFT mean",
        "p99_ttft_ms": "TTFT p99",
        "mean_tpot_ms": "TPOT mean",
        "p99_tpot_ms": "TPOT p99",
    }
    yield f"| record | {' | '.join(f'{title}, before, after' for title in titles.values())} | means inside |"
    yield f"|---|{'---|' * len(titles)}---|"
    for file, title in SERVERS.items():
        own = [r for r in rows if r["record"] == file]
        cells = []
        for name in titles:
            of = [r for r in own if r["metric"] == name]
            cells.append(", ".join(f"{100 * median([abs(r[when]) for r in of]):.1f} %" for when in ("before", "after")))
        means = [r["inside"] for r in own if r["metric"].startswith("mean")]
        name = title.removesuffix(", which the terms were fitted to")
        yield f"| {name} | {' | '.join(cells)} | {100 * sum(means) / len(means):.0f} % |"


def client() -> Iterator[str]:
    (result,) = clients.read(ROOT / "tests" / "data" / "clients" / "vllm-bench-detailed.json")
    yield "```text"
    yield from client_text.render(client_errors.document([client_errors.judge(result, {"gpu": "h200"})])).splitlines()
    yield "```"


def worst(name: str, metric: str) -> str:
    """From the least to the largest error of a recording, whatever the sign."""
    found = sorted(100 * abs(p.error) for p in judged()[name] if p.metric == metric)
    return f"{found[0]:.0f} to {found[-1]:.0f} %"


def of_script(metric: str, kind: str, *rates: str) -> str:
    """`kind`: predicted or measured; at these rates of the other script."""
    points = {f"{p.run.rate_per_s:.0f}": p for p in judged()["reference-llama-3.1-8b"] if p.metric == metric}
    *first, last = [f"{getattr(points[rate], kind):.3g}" for rate in rates]
    return f"{', '.join(first)} and {last}"


@cache
def _speed() -> Mapping[str, Any]:
    return json.loads((ROOT / "results" / "cpu" / "simulate.json").read_text())


def ten_thousand() -> str:
    return f"{_speed()['ten_thousand']['ratio']:.1f}"


def plan_s() -> str:
    return f"{_speed()['plan_of_12_choices']['1']['cpu_s']:.0f} s"


def million() -> str:
    return f"{_speed()['million']['peak_mb']:.0f} MB"
