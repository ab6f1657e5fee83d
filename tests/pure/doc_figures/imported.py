"""docs/import.md: imported operator times of an H200 beside our own records of one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import exp
from pathlib import Path

from chip.hardware import gpus, links
from doc_figures import scripts
from doc_figures.accuracy import RECORDS, pair

FP8 = RECORDS / "quantised" / "vllm-fp8-2.json"
ROWS = {
    ("linear", ""): "products, bf16",
    ("attention", "prefill"): "attention, prefill",
    ("attention", "decode"): "attention, decode",
    ("moe_experts", ""): "experts, bf16",
}


def over_ours() -> Iterator[str]:
    """Medians, by how long our own time is."""
    script = scripts.load("imported_h200")
    rows = script.rows_of(list(script.ratios(gpus.IMPORTED / "h200", exact=False)))
    by = {(row["operator"], row["phase"], row["ours"]): row for row in rows}
    spans = [f"{low:g} - {high:g} us" for low, high in zip(script.EDGES_US, script.EDGES_US[1:])]
    yield "| operator | under 10 us | 10 to 50 us | 50 to 200 us | 200 us to 1 ms | over 1 ms | all | shapes |"
    yield f"|---|{'---|' * (len(spans) + 2)}"
    for (kind, phase), name in ROWS.items():
        cells = [f"{by[kind, phase, s]['median']:.2f}" if (kind, phase, s) in by else "" for s in (*spans, "all")]
        yield f"| {name} | {' | '.join(cells)} | {by[kind, phase, 'all']['points']} |".replace("|  |", "| |")


@cache
def judged(*files: Path):
    script = scripts.load("imported_only")
    return script.judged(files or (script.RUNS,))


def tpot(bound: str = "") -> str:
    """Errors of vLLM's runs of an H200, of those whose step the GPU limits or of all."""
    return pair(p.error for p in judged() if p.metric == "tpot" and bound in ("", p.bound))


def runs() -> str:
    return str(len({p.run for p in judged()}))


def fp8() -> str:
    return pair(p.error for p in judged(FP8) if p.metric == "tpot")


def over_ring(link: str) -> str:
    least, _, most = {"nvlink": links.NVLINK_KEPT, "pcie": links.PCIE_KEPT}[link]
    return f"{least:.2g} to {most:.2g} times"


def same_chip() -> str:
    """Errors of operators of an H100, carried over from an H200."""
    return pair(exp(error) - 1 for *_, error in scripts.load("same_chip").errors())


def reduced(gpu: str) -> str:
    """Rates at which two, four and eight GPUs reduce a large tensor, as predictions take it."""
    found = [2**28 / links.collective("all_reduce", 2**28, ranks, gpu, "vllm").seconds / 1e9 for ranks in (2, 4, 8)]
    return "{:.2g}, {:.2g} and {:.2g} GB/s".format(*found)
