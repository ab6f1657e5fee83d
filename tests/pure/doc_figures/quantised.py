"""docs/quantisation.md: quantised models that no point was made from, as an H200 ran them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache

import pytest

from chip import stats
from chip.predictor.clock import Settling
from chip.validate import judge
from chip.validate.points import Point
from doc_figures.accuracy import RECORDS, pair

FILES = ("kept", "fp8-2", "formats-2")
TITLES = {  # model and dtype of its runs: how the page calls them
    ("mistral-small-24b-fp8", "fp8"): "Mistral-Small-24B fp8",
    ("qwen2.5-32b-w4a16", "int4"): "Qwen2.5-32B int4",
    ("qwen3-14b", "fp8"): "Qwen3-14B fp8",
    ("qwen3-14b-w4a16", "int4"): "Qwen3-14B int4",
    ("qwen3-8b-fp8-block", "fp8"): "Qwen3-8B fp8 in blocks",
    ("llama-3.1-8b-w8a8", "w8a8"): "Llama-3.1-8B int8",
}
COLUMNS: dict[str, Callable[[Point], bool]] = {
    "tpot": lambda p: p.metric == "tpot",
    "tpot of the GPU": lambda p: p.metric == "tpot" and p.bound == "gpu",
    "ttft": lambda p: p.metric == "ttft" and p.scenario.batch * p.scenario.prompt >= 4096,
    "kv": lambda p: p.metric == "kv_cache_tokens",
    "energy": lambda p: p.metric == "joules_per_token",
}


@cache
def judged(*files: str) -> Sequence[Point]:
    folder = RECORDS / "quantised"
    return judge.judge(judge.read(folder / f"vllm-{name}.json" for name in files or FILES), "h200").points


def errors(column: str, *files: str) -> str:
    return pair(p.error for p in judged(*files) if COLUMNS[column](p))


def median(column: str) -> str:
    return errors(column).partition(",")[0]


@cache
def late_steps() -> str:
    """TPOT of the steps after which the clock has recovered, the 9th to the last but one, predicted without it."""
    sources = judge.read(RECORDS / "quantised" / f"vllm-{name}.json" for name in FILES)
    late_s = {
        (run.model, run.scenario): stats.median([stats.median(steps[8:-1]) for steps in run.step_ns]) * 1e-9
        for source in sources
        for run in source.ok
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Settling, "recovery", lambda *_: 0.0)
        points = [p for p in judge.judge(sources, "h200").points if p.metric == "tpot"]
    return pair(p.predicted / late_s[p.model, p.scenario] - 1 for p in points)


def kept() -> Iterator[str]:
    yield "| model, six points each | TPOT: median, p90 | TTFT of 4096 tokens and more |"
    yield "|---|---|---|"
    for (model, dtype), title in TITLES.items():
        own = [p for p in judged() if (p.model, p.scenario.dtype) == (model, dtype)]
        cells = [pair(p.error for p in own if COLUMNS[column](p)) for column in ("tpot", "ttft")]
        yield f"| {title} | {' | '.join(cells)} |"
    yield f"| all six, {sum(map(COLUMNS['tpot'], judged()))} points | **{errors('tpot')}** | **{errors('ttft')}** |"
    yield "| asked | 3 %, 7 % | 4 %, 9 % |"
