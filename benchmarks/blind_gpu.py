"""How wrong a GPU is predicted of which nothing was measured: its points are hidden, and it is predicted from its datasheet
and the other GPUs; then with its ceilings besides, as `chip calibrate` would find them.

    python benchmarks/blind_gpu.py [h100 b200]

Operators in bf16 are compared with the hidden points at the clock that the GPU settles at, whole models with the
predictions that rest on these points. The ceilings are read off the hidden points: the rate of long products, and the
rate at which products of one row read their weights, both relative to the same of the GPU that CHIP calibrated.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import chip
from chip import stats
from chip.decoders import library
from chip.hardware import gpus, points
from chip.hardware.gpus import Hardware
from chip.predictor import request
from chip.predictor.estimator import Estimator
from chip.predictor.roof import COPY
from chip.predictor.sustained import METERED, settling_of
from chip.question import Question
from chip.types import Ceiling
from chip.units import table

GPUS = ("h100", "b200")
KINDS = {"linear": "products", "attention": "attention", "moe_experts": "experts"}
MODELS = ("llama-3.2-3b", "llama-3.1-8b", "qwen2.5-14b", "qwen3-32b", "qwen3-30b-a3b")
SIZES = [(batch, prompt) for batch in (1, 8, 32) for prompt in (512, 2048, 8192) if batch * prompt < 10**5]
OUTPUT, DTYPE = 128, "bf16"
KNOWN = ("datasheet", "ceilings", "points")


class Errors(NamedTuple):
    """Predicted over what the hidden points or a run say, less 1."""

    gpu: str
    what: str
    known: str  # of KNOWN
    errors: Sequence[float]


def hardware(gpu: str, known: str) -> Hardware:
    if known == "points":
        return gpus.find(gpu)
    blind = gpus.unmeasured(gpu, gpus.spec(gpu))
    return blind if known == "datasheet" else _with_ceilings(blind)


def _with_ceilings(blind: Hardware) -> Hardware:
    gpu, like, sheet = blind.name, gpus.find(METERED), blind.spec
    own, theirs = settling_of(gpus.find(gpu)), settling_of(like)
    assert own is not None
    assert theirs is not None
    assert like.profile is not None
    arithmetic, memory = own.flop_per_s / theirs.flop_per_s, _read_per_s(gpu) / _read_per_s(METERED)

    def scaled(name: str, ceiling: Ceiling) -> Ceiling:
        by = arithmetic if name.startswith("matmul") else memory if name.startswith("hbm") else 1.0
        by *= (1 - theirs.boost) / (1 - own.boost) if name == "matmul_bf16" else 1.0
        return replace(ceiling, value=by * ceiling.value, low=by * ceiling.low, high=by * ceiling.high)

    ceilings = {name: scaled(name, ceiling) for name, ceiling in like.profile.ceilings.items()}
    profile = replace(like.profile, name=gpu, device=blind.title, spec=gpu, ceilings=ceilings, units=sheet.units.value)
    # `chip calibrate` also finds shares of the roof, of which none are told here
    profile = replace(profile, memory_bytes=blind.memory_bytes, l2_bytes=sheet.l2_bytes.value, shares={COPY: ()})
    return replace(blind, profile=profile, faster="")


def _read_per_s(gpu: str) -> float:
    """B/s at which the largest weights are read."""
    found = [pair for group in _groups(gpu, "linear") for pair in zip(group.ops, group.seconds)]
    return max(op.cost().bytes / seconds for op, seconds in found if op.m == 1)


@cache
def _groups(gpu: str, kind: str) -> Sequence[points.PointGroup]:
    found = points.read(gpus.IMPORTED / gpu / f"{kind}{points.SUFFIX}").groups
    return [group for group in found if group.dtype == DTYPE]


@contextmanager
def known_as(found: Hardware) -> Iterator[None]:
    """Answers for the GPU of this name rest on no more than this."""
    bundled = gpus._bundled
    try:
        gpus._bundled = lambda name: found if name == found.name else bundled(name)
        gpus.find.cache_clear()
        request.prepared.cache_clear()
        yield
    finally:
        gpus._bundled = bundled
        gpus.find.cache_clear()
        request.prepared.cache_clear()


def operators(gpu: str, known: str) -> Iterator[Errors]:
    own, hidden = (_of_engine(gpu, k) for k in (known, "points"))
    for kind, title in KINDS.items():
        shapes = [op for group in _groups(gpu, kind) for op in group.ops]
        yield Errors(gpu, title, known, [_settled_s(own, op) / _settled_s(hidden, op) - 1 for op in shapes])


def _of_engine(gpu: str, known: str) -> Estimator:
    """The times of the kernels that vLLM runs."""
    with known_as(hardware(gpu, known)):
        return request.setting(Question(library.find(MODELS[0]), gpu, "vllm", DTYPE).with_formats()).steps.estimator


def _settled_s(estimator: Estimator, op: Any) -> float:
    time = estimator.time(op)
    return time.seconds + (estimator.settling.settled - 1 if estimator.settling else 0.0) * time.limited_s


def models(gpu: str, known: str) -> Iterator[Errors]:
    (ttft, tpot), (hidden_ttft, hidden_tpot) = _answers(gpu, known), _answers(gpu, "points")
    yield Errors(gpu, "TTFT", known, [own / hidden - 1 for own, hidden in zip(ttft, hidden_ttft)])
    yield Errors(gpu, "TPOT", known, [own / hidden - 1 for own, hidden in zip(tpot, hidden_tpot)])


@cache
def _answers(gpu: str, known: str) -> tuple[list[float], list[float]]:
    """Seconds to the first token, and of a token."""
    with known_as(hardware(gpu, known)):
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
