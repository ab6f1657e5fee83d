"""The explorer without a server: answers for the bundled models, worked out beforehand.

`explorer.html` opens from disk or from any static host. Beside it, `answers/MODEL.js` holds what may be asked of one
model, compressed, and is loaded when the model is chosen. What lies outside the grid is said on the page, with the
command that answers it. Everything stands in the form in which the server would have answered.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from chip import catalog
from chip.decoders import library
from chip.files import output
from chip.show import webpage
from chip.show.serve import page, ranking, sweep
from chip.simulator.jobs import Pool, spread_out
from chip.types import ChipError

SCHEMA = "chip.site/1"
FOLDER = "answers"
RECORD = "site.json"
EXPLORER = "explorer.html"
FILES: dict[str, output.Kind | str] = {"index.html": webpage.KIND, EXPLORER: webpage.KIND, RECORD: SCHEMA}
ANSWERS = output.Kind("answers of the explorer", re.compile(rb'"use strict";\nSite\.take\('))
WORKLOADS = ((1024, 128), (4096, 512))  # prompt and output; GPUs are ranked for all, the first has the rest as well
BATCHES = (1, 8, 64)
LARGEST_BYTES = 10_000_000  # of the whole site
TIMES = ("tokens_per_s_per_gpu", "ttft_ms", "tpot_ms", "energy_j_per_token")
RANKED = ("gpu", "tp", "dtype", "batch", *TIMES, "bound", "rests_on", "missed", "place", "tie", "may_lead", "error")
CURVE = ("gpu", "tp", "dtype", "batch", *TIMES, "tokens_per_s_per_user", "error")
MEMORY = ("fits", "share", "max_batch")
DIGITS = 5  # of a number in a row of many: the page shows four at most
SCRIPTS = (
    "packed.js",
    *(name for script in page.SCRIPTS for name in ((script, "site.js") if script == "question.js" else (script,))),
)
Answer = tuple[str, Any, Any]  # path, question, what the server says
Question = dict[str, Any]


def grid(models: Sequence[str]) -> dict[str, Any]:
    """What the page can be asked; it states this."""
    start = ranking.START
    return {
        "models": list(models),
        "workloads": [list(w) for w in WORKLOADS],
        "engine": start["engine"],
        "gpus": _gpus(),
        "detailed_gpus": page.first_ranking(start)["gpu"],
        "splits": list(ranking.SPLITS),
        "precisions": start["precisions"].split(","),
        "batches": list(BATCHES),
        "limits": {f"{key}_ms": start[key] for key in ("ttft", "tpot")},
    }


def write(folder: Path, models: Sequence[str], pool: Pool | None = None, title: str = "CHIP explorer") -> int:
    """Bytes of what was written; a ChipError where the whole folder would be too large."""
    texts = spread_out(answers_of, list(models), pool)
    held = {**grid(models), "answers": FOLDER}
    made = webpage.assemble("explorer.html", SCRIPTS, page.data([], held), title, beside=True)
    for model, answers in zip(models, texts):
        output.write(folder / FOLDER / f"{model}.js", answers, ANSWERS)
    output.write(folder / EXPLORER, made.text, webpage.KIND)
    output.write(folder / RECORD, json.dumps({"schema": SCHEMA, "grid": grid(models)}, indent=1) + "\n", SCHEMA)
    size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    if size > LARGEST_BYTES:
        raise ChipError(f"{folder}: {size} bytes, over the {LARGEST_BYTES} of a site; name fewer models")
    return size


def answers_of(model: str) -> str:
    """A script that hands over what is known of one model, gzip in base64: pages from disk may load nothing else."""
    packed = webpage.pack([list(answer) for answer in _answered(model)])
    return f'"use strict";\nSite.take({json.dumps(model)}, "{packed}");\n'


def _gpus() -> list[str]:
    """All that the engine runs on; those with measured tables first."""
    first = page.first_ranking(ranking.START)["gpu"]
    able = [g["name"] for g in catalog.gpus() if ranking.START["engine"] not in g["too_old_for"]]
    return [*first, *(name for name in able if name not in first)]


def _answered(model: str) -> Iterator[Answer]:
    for i, (prompt, tokens) in enumerate(WORKLOADS):
        start = {**ranking.START, "model": model, "prompt": prompt, "output": tokens}
        first = page.first_ranking(start)
        every = {**first, "gpu": _gpus()}
        ranked = ranking.rank(every)
        yield _held("/api/rank", every, ranked, RANKED)
        if i == 0:
            common = {key: start[key] for key in ("model", "engine", "prompt", "output")}
            yield from _detailed(common, _configurations(model, ranked["rows"], first["gpu"]))
            yield from _once(common, {key: start[key] for key in ("gpu", "tp", "dtype")}, start)


def _detailed(common: Question, configurations: Iterable[tuple[Question, Sequence[int]]]) -> Iterator[Answer]:
    """Those of one batch follow each other: much of them is the same, and so is packed once."""
    one_by_one = list(configurations)
    for batch, one in sorted(((b, one) for one, batches in one_by_one for b in batches), key=lambda pair: pair[0]):
        yield from _whole("/api/compare", {**common, "batch": batch, "configurations": [one]})
    for one, _ in one_by_one:
        asked = {**common, **one, "batch": list(ranking.BATCHES)}
        yield _held("/api/sweep", asked, sweep.sweep(asked), CURVE)


def _once(common: Question, one: Question, start: Mapping[str, Any]) -> Iterator[Answer]:
    """The timeline of a step and live traffic, on the GPU that the page opens with."""
    yield from _whole("/api/timeline", {**common, **one, "batch": start["batch"], "phase": "decode"})
    limits = {f"{key}_ms": start[key] for key in ("ttft", "tpot")}
    yield from _whole("/api/traffic", {**common, **one, "workload": "poisson", "limits": limits})


def _whole(path: str, question: Question) -> Iterator[Answer]:
    yield from (tuple(json.loads(text)) for text in page.kept(path, question))


def _configurations(
    model: str, rows: Sequence[Mapping[str, Any]], gpus: Sequence[str]
) -> Iterator[tuple[Question, Sequence[int]]]:
    """Of each GPU: the smallest split that fits, as the config says, at a few batches; and the best row of its own."""
    for gpu in gpus:
        own = [r for r in rows if r["gpu"] == gpu and "error" not in r and r["memory"]["fits"]]
        plain = [r for r in own if r["dtype"] == library.find(model).dtype]
        if plain:
            yield {"gpu": gpu, "tp": min(r["tp"] for r in plain), "dtype": "auto"}, BATCHES
        if own:
            yield {"gpu": gpu, "tp": own[0]["tp"], "dtype": own[0]["dtype"]}, (own[0]["batch"],)


def _held(path: str, question: Question, answer: Mapping[str, Any], shown: Sequence[str]) -> Answer:
    """An answer of many rows, each with what the page shows of it."""
    return path, question, {**answer, "rows": [_shown(row, shown) for row in answer["rows"]]}


def _shown(row: Mapping[str, Any], shown: Sequence[str]) -> dict[str, Any]:
    kept = {key: row[key] for key in shown if row.get(key) is not None}
    if "error" not in row:
        kept["memory"] = {key: row["memory"][key] for key in MEMORY}
        kept["interval"] = {key: row["interval"][key] for key in shown if row["interval"].get(key)}
    shorter: dict[str, Any] = webpage.rounded(kept, DIGITS)
    return shorter
