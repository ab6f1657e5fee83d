"""Published measurements of other people's systems against predictions: by GPU, engine, version and batch.

They judge and are never fitted to. A published run has what its authors wrote down, often one number, so it is not a
`Run` with its samples; what cannot be predicted is left out and counted by reason.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from chip.decoders import library
from chip.dtypes import BYTES, precision
from chip.hardware import gpus
from chip.predictor.request import predict
from chip.question import Question
from chip.types import ChipError, Scenario
from chip.validate.document import point_json
from chip.validate.points import CHIP, METRICS, UNKNOWN, Point, summarise

SCHEMA = "chip.public_validation/1"
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class Published:
    """One number of one run, in SI units."""

    gpu: str  # as CHIP calls it
    engine: str
    version: str  # of the engine; "" where it is not stated
    model: str
    scenario: Scenario
    metric: str  # one of chip.validate.points.METRICS
    value: float


class LeftOut(NamedTuple):
    """Rows that cannot be predicted."""

    rows: int
    reason: str


@dataclass(frozen=True, slots=True)
class Suite:
    """What a reader found, and what it had to leave out."""

    name: str
    source: str
    licence: str
    caution: str  # what the comparison cannot tell
    runs: tuple[Published, ...]
    left_out: tuple[LeftOut, ...] = ()


class JudgedRun(NamedTuple):
    run: Published
    point: Point
    fits: bool  # whether the KV cache of the whole batch fits at once: else requests wait for each other


@dataclass(frozen=True, slots=True)
class PublishedErrors:
    suite: Suite
    judged: tuple[JudgedRun, ...]
    left_out: tuple[LeftOut, ...]


def judge(suite: Suite, gpu: str = "") -> PublishedErrors:
    """Every run against today's prediction. `gpu`: only those of this GPU, by CHIP's name."""
    wanted = [r for r in suite.runs if gpu in ("", r.gpu)]
    if not wanted:
        known = sorted({r.gpu for r in suite.runs})
        raise ChipError(f"{suite.name} has no run of {gpu or 'any GPU'}; it has {', '.join(known) or 'none'}")
    judged, refused = [], Counter[str]()
    for run in wanted:
        try:
            model, version = library.find(run.model), run.version
            q = Question.of(model, run.gpu, run.engine, run.scenario, engine_version=version)
            answer = predict(q, run.scenario).figures()
        except ChipError as e:
            refused[f"{run.gpu}, {run.model}: {e}"] += 1
            continue
        if impossible(run):
            refused[f"{run.gpu}, {run.model}: faster than its weights can be read, so fewer tokens were generated"] += 1
            continue
        predicted = METRICS[run.metric].predicted(answer)
        assert predicted
        point = Point(
            CHIP, run.model, run.engine, run.version, run.scenario, run.metric, *predicted, run.value, UNKNOWN
        )  # fmt: skip
        judged.append(JudgedRun(run, point, bool(answer["memory"]["fits"])))
    left = [LeftOut(n, why) for why, n in refused.most_common()]
    return PublishedErrors(suite, tuple(judged), (*suite.left_out, *left))


def impossible(run: Published) -> bool:
    """Whether an end-to-end time is shorter than reading the active weights from memory for each token takes."""
    sheet = gpus.find(run.gpu).spec
    if run.metric != "e2e" or sheet is None:
        return False
    weight_bytes = (
        library.find(run.model).active_params() * BYTES[precision(run.scenario.dtype).weight] / run.scenario.tp
    )
    return run.value < (run.scenario.output - 1) * weight_bytes / sheet.ceilings["hbm"].value


def batch_class(batch: int) -> str:
    """The batch itself where it is a power of two up to 256, else the span of powers that it lies in."""
    if batch in BATCHES:
        return str(batch)
    above = next((b for b in BATCHES if b > batch), None)
    return f"{above // 2} - {above}" if above else f"over {BATCHES[-1]}"


def grouped(judged: Iterable[JudgedRun], by_batch: bool = False) -> list[dict[str, Any]]:
    """Errors by GPU, number of GPUs, engine, version and metric, and by batch where asked."""
    groups: dict[tuple[Any, ...], list[JudgedRun]] = defaultdict(list)
    for one in judged:
        run = one.run
        key = (run.gpu, run.scenario.tp, run.engine, run.version, run.metric)
        groups[(*key, run.scenario.batch) if by_batch else key].append(one)
    merged: dict[tuple[Any, ...], list[JudgedRun]] = defaultdict(list)
    for key in sorted(groups):
        merged[(*key[:5], *map(batch_class, key[5:]))] += groups[key]
    names = ("gpu", "tp", "engine", "version", "metric", "batch")
    return [dict(zip(names, key)) | asdict(summarise([j.point for j in runs])) for key, runs in merged.items()]


def fitting(judged: Iterable[JudgedRun]) -> list[JudgedRun]:
    return [j for j in judged if j.fits]


def document(answer: PublishedErrors) -> dict[str, Any]:
    """The answer as JSON. Groups are of runs whose KV cache fits; those that wait for memory stand apart."""
    suite = answer.suite
    whole = fitting(answer.judged)
    waiting = [j for j in answer.judged if not j.fits]
    return {
        "schema": SCHEMA,
        "suite": suite.name,
        "source": suite.source,
        "licence": suite.licence,
        "caution": suite.caution,
        "groups": grouped(whole),
        "by_batch": grouped(whole, by_batch=True),
        "does_not_fit": grouped(waiting),
        "left_out": [o._asdict() for o in answer.left_out],
        "points": [{"gpu": j.run.gpu, "version": j.run.version, "fits": j.fits} | point_json(j.point)
                   for j in answer.judged],
    }  # fmt: skip
