"""docs/public-truth.md and docs/accuracy.md: what `chip validate --suite` printed, as results/published keeps it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import takewhile

from doc_figures import scripts

ARGONNE = "chip validate --suite argonne All_results.csv"
NAMED = {"a100-40gb": "A100 40 GB", "h100": "H100", "gh200": "GH200", "mi250x": "MI250X", "mi300x": "MI300X"}
ONE_GPU = ("a100-40gb", "gh200", "h100")
SERVED = {  # GPU and model: how the page calls them
    ("rtx-pro-6000-server", "llama-3.1-8b"): "RTX PRO 6000, Llama-3.1-8B",
    ("2 x rtx-pro-6000-server", "qwen3-30b-a3b"): "2 x RTX PRO 6000, Qwen3-30B-A3B (ep 2)",
    ("2 x rtx-pro-6000-server", "qwen3-32b"): "2 x RTX PRO 6000, Qwen3-32B (tp 2)",
    ("rtx-4090", "llama-3.1-8b"): "RTX 4090 (datasheet), Llama-3.1-8B",
}


def lines(suite: str) -> list[str]:
    return scripts.load("published").read(suite)[1]


def by_gpu() -> Iterator[str]:
    found = lines("argonne")
    yield from ("```text", f"$ {ARGONNE}", *found[: found.index("by batch") - 1], "```")


def by_batch() -> Iterator[str]:
    """Of one GPU of NVIDIA's."""
    found = lines("argonne")
    start = found.index("by batch") + 1
    rows = takewhile(str.strip, found[start + 2 :])
    shown = [row for row in rows if row.split()[:2] in ([name, "1"] for name in ONE_GPU)]
    yield from ("```text", *found[start : start + 2], *shown, "```")


def row_of(gpu: str, tp: str) -> list[str]:
    """The columns of the first table: gpu, tp, metric, points, models, median, p90, worst, bias, inside."""
    return next(
        cells for line in lines("argonne") if (cells := re.split(r"\s{2,}| (?=\d+ {2})", line))[:2] == [gpu, tp]
    )


def medians() -> str:
    """Of one GPU each, in whole percent."""
    said = [f"{float(row_of(gpu, '1')[5].removesuffix(' %')):.0f} % ({name})" for gpu, name in NAMED.items()]
    return f"{', '.join(said[:-1])} and {said[-1]}"


def over_several(gpu: str, *tps: str) -> str:
    medians = [float(row_of(gpu, tp)[5].removesuffix(" %")) for tp in tps]
    return " and ".join(f"{median:.0f}" for median in medians) + " %"


@cache
def served() -> dict[tuple[str, str], dict[str, tuple[str, str]]]:
    """GPU and model -> metric -> its error, and the error by request where that is told."""
    found: dict[tuple[str, str], dict[str, tuple[str, str]]] = {}
    for line in lines("llmservingsim"):
        cells = re.split(r"\s{2,}", line)
        if len(cells) >= 7 and tuple(cells[:2]) in SERVED:
            found.setdefault((cells[0], cells[1]), {})[cells[2]] = cells[5], cells[7] if len(cells) > 7 else ""
    return found


def traffic() -> Iterator[str]:
    yield "| GPU, model | TTFT | TPOT | output rate | TPOT by request |"
    yield "|---|---|---|---|---|"
    for key, title in SERVED.items():
        own = served()[key]
        by_request = own["tpot mean"][1]
        yield f"| {title} | {own['ttft mean'][0]} | {own['tpot mean'][0]} | {own['tok/s'][0]} | {by_request} |"


def tpots() -> str:
    """Of the RTX PRO 6000, without their signs."""
    one, experts, tensor = (served()[key]["tpot mean"][0].lstrip("+-") for key in list(SERVED)[:3])
    return f"{one} on one; {experts} (ep 2) and {tensor} (tp 2) over two"
