"""How wrong a GPU is predicted of which nothing was measured: its points are hidden, and those that others published of
its generation. It is predicted from its datasheet and the other GPUs; then with few of its points, as many as
`chip calibrate` times.

    python benchmarks/blind_gpu.py [h100 b200]

Operators in bf16 are compared with the hidden points at the clock that the GPU settles at, whole models with the
predictions that rest on these points. A calibration is told the settled clock, and products and attention at a few
sizes that lie far apart.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import chip
from chip import stats
from chip.decoders import library
from chip.hardware import gpus, points
from chip.hardware.gpus import Hardware
from chip.hardware.tables import points_csv
from chip.predictor import request, sustained
from chip.question import Question
from chip.units import table

GPUS = ("h100", "b200")
KINDS = {"linear": "products", "attention": "attention", "moe_experts": "experts"}
MODELS = ("llama-3.2-3b", "llama-3.1-8b", "qwen2.5-14b", "qwen3-32b", "qwen3-30b-a3b")
SIZES = [(batch, prompt) for batch in (1, 8, 32) for prompt in (512, 2048, 8192) if batch * prompt < 10**5]
OUTPUT, DTYPE = 128, "bf16"
KNOWN = DATASHEET, CALIBRATION, POINTS = "datasheet", "calibration", "points"
CALIBRATED = {"linear": 56, "attention": 32}  # operators of `chip calibrate`, and at how many sizes it times them


class Errors(NamedTuple):
    """Predicted over what the hidden points or a run say, less 1."""

    gpu: str
    what: str
    known: str
    errors: Sequence[float]


def hardware(gpu: str, known: str, folder: Path) -> Hardware:
    """`folder`: for the points of a calibration."""
    if known == POINTS:
        return replace(gpus.find(gpu), faster="")
    if known == DATASHEET:
        found = gpus.unmeasured(gpu, gpus.spec(gpu))
        return found if found.sibling in gpus.profile_names() else replace(found, sibling="")
    for kind, count in CALIBRATED.items():
        hidden = points_csv.read(gpus.IMPORTED / gpu / f"{kind}{points.SUFFIX}")
        rows = sorted(row for row in hidden.rows if row.dtype == DTYPE)
        few = tuple(rows[:: len(rows) // count])
        points_csv.write(folder / f"{kind}{points.SUFFIX}", replace(hidden, rows=few))
    return gpus.unmeasured(gpu, gpus.spec(gpu), (folder,))


@cache
def _groups(gpu: str, kind: str) -> Sequence[points.PointGroup]:
    found = points.read(gpus.IMPORTED / gpu / f"{kind}{points.SUFFIX}").groups
    return [group for group in found if group.dtype == DTYPE]


@contextmanager
def known_as(gpu: str, known: str) -> Iterator[None]:
    """Answers for a GPU rest on no more than this."""
    bundled, anchors = gpus._bundled, sustained._anchors
    generation = gpus.spec(gpu).compute_capability.partition(".")[0]
    elsewhere = tuple(a for a in anchors() if a.spec.compute_capability.partition(".")[0] != generation)
    with TemporaryDirectory() as folder:
        found = hardware(gpu, known, Path(folder))
        try:
            gpus._bundled = lambda name: found if name == gpu else bundled(name)
            if not found.sibling:
                sustained._anchors = lambda: elsewhere
            gpus.find.cache_clear()
            request.prepared.cache_clear()
            yield
        finally:
            gpus._bundled, sustained._anchors = bundled, anchors
            gpus.find.cache_clear()
            request.prepared.cache_clear()


def operators(gpu: str, known: str) -> Iterator[Errors]:
    for kind, title in KINDS.items():
        own, hidden = (_settled_s(gpu, k, kind) for k in (known, POINTS))
        yield Errors(gpu, title, known, [a / b - 1 for a, b in zip(own, hidden)])


@cache
def _settled_s(gpu: str, known: str, kind: str) -> list[float]:
    """Of all hidden points of a kind: seconds by the kernels that vLLM runs, at the clock that the GPU settles at."""
    with known_as(gpu, known):
        steps = request.setting(Question(library.find(MODELS[0]), gpu, "vllm", DTYPE).with_formats()).steps
        slower = steps.estimator.settling.settled - 1 if steps.estimator.settling else 0.0
        times = [steps.estimator.time(op) for group in _groups(gpu, kind) for op in group.ops]
    return [time.seconds + slower * time.limited_s for time in times]


def models(gpu: str, known: str) -> Iterator[Errors]:
    (ttft, tpot), (hidden_ttft, hidden_tpot) = _answers(gpu, known), _answers(gpu, POINTS)
    yield Errors(gpu, "TTFT", known, [own / hidden - 1 for own, hidden in zip(ttft, hidden_ttft)])
    yield Errors(gpu, "TPOT", known, [own / hidden - 1 for own, hidden in zip(tpot, hidden_tpot)])


@cache
def _answers(gpu: str, known: str) -> tuple[list[float], list[float]]:
    """Seconds to the first token, and of a token."""
    with known_as(gpu, known):
        found = [
            chip.predict(model, gpu=gpu, batch=batch, prompt=prompt, output=OUTPUT)
            for model in MODELS
            for batch, prompt in SIZES
        ]
    return [p.ttft_s for p in found], [p.tpot_s for p in found]


def errors(names: Sequence[str] = GPUS) -> Iterator[Errors]:
    for gpu in names:
        for known in KNOWN[:2]:
            yield from operators(gpu, known)
            yield from models(gpu, known)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gpu", nargs="*", default=GPUS, help=f"GPUs with imported points [{' '.join(GPUS)}]")
    columns = ("gpu", "known", "what", "points", "median", "p90", "bias")
    rows = [
        dict(zip(columns, (e.gpu, e.known, e.what, len(e.errors), *(f"{100 * x:.1f} %" for x in summary(e.errors)))))
        for e in errors(parser.parse_args().gpu)
    ]
    print(table(rows, right=columns[3:]))


def summary(found: Sequence[float]) -> tuple[float, float, float]:
    """Median and 90th percentile of the errors, and their bias."""
    sizes = [abs(e) for e in found]
    return stats.median(sizes), stats.quantile(sizes, 0.9), stats.median(found)


if __name__ == "__main__":
    main()
