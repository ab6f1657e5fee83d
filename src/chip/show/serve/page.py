"""The explorer's page: one file that holds the answers to the question it opens with, so that it shows them at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from chip import catalog
from chip.predictor import operator
from chip.show import webpage
from chip.show.serve import api, ranking, traffic
from chip.show.webpage import Page
from chip.types import ChipError

SCRIPTS = (
    "elements.js", "plots.js", "bars.js", "question.js", "prices.js", "models.js", "controls.js", "rank.js",
    "sure.js", "answer.js", "curves.js", "traffic.js", "perfetto.js", "timeline.js", "operator.js", "explorer.js",
)  # fmt: skip
MEASURED = ("measured", "imported")
OPERATOR = {"op": "linear", "gpu": operator.DEFAULT_GPU, "m": 8, "n": 4096, "k": 4096}  # as operator.js opens


@lru_cache(maxsize=1)
def explorer() -> Page:
    return webpage.assemble("explorer.html", SCRIPTS, data(opening()), "CHIP explorer", connect=True)


def is_made() -> bool:
    return bool(explorer.cache_info().currsize)


def data(answers: Iterable[str], grid: Any = None) -> str:
    """What the scripts start from: the lists, the defaults, and answers as `[path, question, answer]`; `grid` is what
    can be asked where there is no server."""
    lists = ",".join(f'"{what}":{api.listing(what)}' for what in catalog.ROWS)
    return f'{{{lists},"defaults":{api.defaults()},"grid":{json.dumps(grid)},"answers":[{",".join(answers)}]}}'


def opening() -> Iterable[str]:
    """What the page asks for first; a question that it words otherwise is asked of the server."""
    start = ranking.START
    common = {key: start[key] for key in ("model", "engine", "prompt", "output")}
    one = {"gpu": start["gpu"], "tp": start["tp"], "dtype": start["dtype"]}
    yield from kept("/api/compare", {**common, "batch": start["batch"], "configurations": [one]})
    yield from kept("/api/estimate", OPERATOR)


def first_plan(start: dict[str, Any]) -> dict[str, Any]:
    """The ranking by rate that the page asks for first."""
    burst = first_ranking(start, every=True)
    return {key: burst[key] for key in burst if key != "batch"} | {"workload": traffic.GIVEN}


def first_ranking(start: dict[str, Any], every: bool = False) -> dict[str, Any]:
    """GPUs with measured operators: the page shows them before it asks for the rest. `every`: all of them, in the order
    in which it asks."""
    rows = catalog.gpus()
    gpus = [g for basis in MEASURED for g in rows if g["rests_on"] == basis]
    if every:
        gpus += [g for g in rows if g["rests_on"] not in MEASURED]
    return {
        "model": start["model"],
        "engine": start["engine"],
        "prompt": start["prompt"],
        "output": start["output"],
        "gpu": [g["name"] for g in gpus if start["engine"] not in g["too_old_for"]],
        "batch": ranking.LARGEST,
        "tp": list(ranking.SPLITS),
        "prune": True,
        "dtype": start["precisions"].split(","),
        "limits": {f"{key}_ms": start[key] for key in ("ttft", "tpot")},
        "prices": {},
        "by": "throughput",
    }


def kept(path: str, question: Any) -> Iterable[str]:
    """Nothing where there is no answer: the page then asks for itself and shows why."""
    ask: Callable[[Any], str] = api.ASKED[path]
    try:
        yield f"[{json.dumps(path)},{json.dumps(question)},{ask(question)}]"
    except ChipError:
        return
