"""The explorer's page: one file that holds the answers to the question it opens with, so that it shows them at once."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from chip import catalog
from chip.predictor import operator
from chip.show import webpage
from chip.show.serve import api, ranking, traffic
from chip.show.webpage import Page
from chip.simulator import prices
from chip.types import ChipError

SCRIPTS = (
    "elements.js", "plots.js", "bars.js", "question.js", "local.js", "prices.js", "models.js", "controls.js", "rank.js",
    "picture.js", "frontier.js", "sure.js", "answer.js", "curves.js", "traffic.js", "perfetto.js", "timeline.js",
    "operator.js", "explorer.js",
)  # fmt: skip
MEASURED = ("measured", "imported")
OPERATOR = {"op": "linear", "gpu": operator.DEFAULT_GPU, "m": 8, "n": 4096, "k": 4096}  # as operator.js opens


DIGITS = 5  # of a number in a row of many: the page shows four at most
TIMES = ("tokens_per_s_per_gpu", "ttft_ms", "tpot_ms", "energy_j_per_token")
RANKED = (
    "gpu", "tp", "gpus", "dtype", "batch", *TIMES, "tokens_per_s_per_user", "cost_per_million_tokens", "bound",
    "price_per_gpu_hour", "rests_on", "missed", "place", "tie", "may_lead", "nearest_validated", "error",
)  # fmt: skip
CURVE = ("gpu", "tp", "dtype", "batch", *TIMES, "tokens_per_s_per_user", "error")
MEMORY = ("fits", "share", "max_batch")


@lru_cache(maxsize=1)
def explorer() -> Page:
    """Of a server, which it asks."""
    return webpage.assemble("explorer.html", SCRIPTS, data(opening()), "CHIP explorer", connect=True)


def is_made() -> bool:
    return bool(explorer.cache_info().currsize)


def without_server(runtime: Mapping[str, Any], address: str = "", title: str = "CHIP explorer") -> Page:
    """Of a static host: it comes with all that it shows at first, and computes the rest itself. `runtime`: `wheel`, a
    file in runtime/ beside it, and the `bytes` of all that is loaded. `address` of its folder: for link previews."""
    answers = list(everything())
    about = html.escape(_sentence(next(rows for path, _, rows in map(json.loads, answers) if path == "/api/rank")))
    picture = f'<meta property="og:image" content="{html.escape(address)}preview.png">'
    head = f"""<meta name="description" content="{about}">
<meta property="og:type" content="website">
<meta property="og:title" content="Which GPU for your language model? CHIP predicts">
<meta property="og:description" content="{about}">
{picture}
<meta name="twitter:card" content="summary_large_image">"""
    return webpage.assemble("explorer.html", SCRIPTS, data(answers, runtime), title, worker=True, head=head)


def _sentence(ranked: Mapping[str, Any]) -> str:
    """The opening answer in words, for previews of links."""
    start, best = ranking.START, ranked["rows"][0]
    asked = f"{start['model']}, {start['prompt']} tokens in, {start['output']} out"
    low, high = best["interval"]["cost_per_million_tokens"]
    cost = f"{best['cost_per_million_tokens']:.2g} ({low:.2g} to {high:.2g}) {prices.about()['currency']}"
    return f"{asked}: {best['tp']} x {best['gpu']} in {best['dtype']}, {cost} a million tokens. Ask for your own model."


def data(answers: Iterable[str], runtime: Mapping[str, Any] | None = None) -> str:
    """What the scripts start from: the lists, the defaults, and answers as `[path, question, answer]`; `runtime` is
    what answers where there is no server."""
    lists = ",".join(f'"{what}":{api.listing(what)}' for what in catalog.ROWS)
    return f'{{{lists},"defaults":{api.defaults()},"runtime":{json.dumps(runtime)},"answers":[{",".join(answers)}]}}'


def opening() -> Iterable[str]:
    """What the page asks for first; a question that it words otherwise is asked of the server."""
    yield from kept("/api/compare", {**_common("prompt", "output", "batch"), "configurations": [_one()]})
    yield from kept("/api/estimate", OPERATOR)


def everything() -> Iterable[str]:
    """All that the page shows before a visitor changes the question."""
    start = ranking.opening()
    yield from opening()
    yield _trimmed("/api/rank", first_ranking(start, every=True), RANKED)
    lengths = {**_common("prompt", "output"), **_one()}
    yield _trimmed("/api/sweep", {**lengths, "batch": list(ranking.BATCHES)}, CURVE)
    yield from kept("/api/timeline", {**lengths, "batch": start["batch"], "phase": "decode"})
    yield from kept("/api/traffic", {**lengths, "workload": traffic.GIVEN, "limits": limits_of(start)})


def _common(*sizes: str) -> dict[str, Any]:
    return {key: ranking.START[key] for key in ("model", "engine", *sizes)}


def _one() -> dict[str, Any]:
    return {key: ranking.START[key] for key in ("gpu", "tp", "dtype")}


def limits_of(start: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{key}_ms": start[key] for key in ("ttft", "tpot") if start[key]}


def _trimmed(path: str, question: dict[str, Any], shown: Sequence[str]) -> str:
    """An answer of many rows, each with what the page shows of it."""
    found = json.loads(api.ASKED[path](question))
    answer = {**found, "rows": [_shown(row, shown) for row in found["rows"]]}
    return json.dumps([path, question, answer], separators=(",", ":"))


def _shown(row: Mapping[str, Any], shown: Sequence[str]) -> dict[str, Any]:
    found = {key: row[key] for key in shown if row.get(key) is not None}
    if "error" not in row:
        found["memory"] = {key: row["memory"][key] for key in MEMORY}
        found["interval"] = {key: row["interval"][key] for key in shown if row["interval"].get(key)}
    shorter: dict[str, Any] = webpage.rounded(found, DIGITS)
    return shorter


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
        "limits": limits_of(start),
        "prices": prices.of_text(start["prices"]),
        "by": start["by"],
    }


def kept(path: str, question: Any) -> Iterable[str]:
    """Nothing where there is no answer: the page then asks for itself and shows why."""
    ask: Callable[[Any], str] = api.ASKED[path]
    try:
        yield f"[{json.dumps(path)},{json.dumps(question)},{ask(question)}]"
    except ChipError:
        return
