"""The runs that predictions were compared with, nearest to a question first, with the errors of their predictions.

The error of a run tells something about an answer only where both rest on the same: the same GPU or one of its kind,
the same number format, the same split over GPUs and the same engine. Where there is no such run there is none to name.

The index, data/validated.csv, is made from validations by `python benchmarks/validated_index.py`. It has a row for each
scenario, with the signed errors of its prediction (predicted over measured, minus 1; the median over hosts). Rows of
our own runs also have the measured times, those of published runs do not.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from functools import lru_cache
from math import log2
from typing import Any, NamedTuple

from chip.decoders.decoder import Decoder
from chip.dtypes import PRECISIONS
from chip.files import artifact
from chip.hardware import gpus as hardware
from chip.predictor import basis
from chip.predictor.kernels import SAME_KERNELS
from chip.types import Scenario

INDEX = hardware.DATA / "validated.csv"
METRICS = ("ttft", "tpot", "e2e")
MEASURED = ("ttft_ms", "tpot_ms")
DTYPE = 7  # its place in a line of a setting
OURS = "our runs"
SHOWN = 3
# The distance of two questions is a sum: for another GPU of the kind; for another model, with the octaves between their
# sizes, and for experts or none; and for each octave between batches, prompts and outputs.
OTHER_GPU, OTHER_MODEL, OTHER_KIND = 4.0, 1.0, 2.0
PER_BATCH, PER_PROMPT, PER_OUTPUT = 0.5, 0.25, 0.125
Sizes = tuple[float, float, float]  # logarithms of batch, prompt and output


class ValidatedSetting(NamedTuple):
    """A model on a GPU and an engine, with the lines of its runs: batch, prompt, output, tp, errors, dtype, measured
    times, source."""

    gpu: str
    engine: str
    version: str
    model: str
    active: float  # parameters that a token uses
    experts: bool
    lines: list[str]
    sizes: dict[tuple[str, int], list[tuple[int, Sizes]]]  # by format and tp: of each line its index and sizes


@lru_cache(maxsize=1)
def settings() -> tuple[ValidatedSetting, ...]:
    """The index. The lines of runs are not parsed: a question needs few of them."""
    found: dict[tuple[str, ...], list[str]] = {}
    start, runs = "\n", list[str]()  # how lines of the same setting begin, most of which follow each other
    for line in artifact.read_text(INDEX).splitlines():
        if not line.startswith(start):
            if line.startswith(("#", "gpu,")):
                continue
            *key, rest = line.split(",", 6)
            start, runs = line[: len(line) - len(rest)], found.setdefault(tuple(key), [])
        runs.append(line[len(start) :])
    return tuple(
        ValidatedSetting(gpu, engine, version, model, float(active), experts == "1", lines, {})
        for (gpu, engine, version, model, active, experts), lines in found.items()
    )


@lru_cache(maxsize=256)
def _is_of_kind(gpu: str, other: str) -> bool:
    """Whether answers for both rest on the same: on a datasheet, or on imported tables, of the same compute capability.
    What was measured on a GPU is of that one alone."""
    mine, theirs = hardware.find(gpu), hardware.find(other)
    if mine.name == other:
        return True
    if mine.profile or theirs.profile or not mine.spec or not theirs.spec or basis.of_gpu(mine) != basis.of_gpu(theirs):
        return False
    return mine.spec.compute_capability == theirs.spec.compute_capability


@lru_cache(maxsize=64)
def _by_distance(decoder: Decoder, gpu: str, engine: str) -> tuple[tuple[float, ValidatedSetting], ...]:
    """Settings of the engine on this kind of GPU, with the distance of their model and GPU, nearest first."""
    name, active, experts = decoder.name, decoder.active_params(), decoder.experts > 0
    found = []
    for held in settings():
        if held.engine != engine or not _is_of_kind(gpu, held.gpu):
            continue
        apart = 0.0 if hardware.find(gpu).name == held.gpu else OTHER_GPU
        if held.model != name:
            apart += OTHER_MODEL + abs(log2(active / held.active)) + (OTHER_KIND if experts != held.experts else 0.0)
        found.append((apart, held))
    return tuple(sorted(found, key=lambda item: item[0]))


def nearest(decoder: Decoder, gpu: str, engine: str, s: Scenario) -> list[dict[str, Any]]:
    """Up to three runs, nearest first: their question, and the known errors of their predictions as fractions
    (ttft_error, tpot_error, e2e_error). None ran with stages, or with its cache in other bits than its activations."""
    if s.gpus != s.tp or s.ep > 1 or s.kv_dtype != PRECISIONS[s.dtype].activation:
        return []
    batch, prompt, output = (log2(n) for n in (s.batch, s.prompt, s.output))
    wanted = (_format(s.dtype), s.tp)
    best: list[tuple[float, int, int, ValidatedSetting]] = []
    for i, (far, held) in enumerate(_by_distance(decoder, gpu, engine)):
        if len(best) == SHOWN and far >= best[-1][0]:
            break
        for j, (b, p, o) in _sizes(held).get(wanted, ()):
            apart = far + PER_BATCH * abs(batch - b) + PER_PROMPT * abs(prompt - p) + PER_OUTPUT * abs(output - o)
            if len(best) < SHOWN or apart < best[-1][0]:
                best = sorted([*best, (apart, i, j, held)])[:SHOWN]
    return [_row(held, held.lines[j].split(",")) for _, _, j, held in best]


def _sizes(held: ValidatedSetting) -> dict[tuple[str, int], list[tuple[int, Sizes]]]:
    """Logarithms of batch, prompt and output of all runs, parsed when first asked for."""
    if not held.sizes:
        for j, words in enumerate(line.split(",") for line in held.lines):
            batch, prompt, output, tp = map(int, words[:4])
            runs = held.sizes.setdefault((_format(words[DTYPE]), tp), [])
            runs.append((j, (log2(batch), log2(prompt), log2(output))))
    return held.sizes


def _format(dtype: str) -> str:
    """As the kernels have it, which are the same for all of 16 bits."""
    return SAME_KERNELS.get(dtype, dtype)


def measured(
    model: str, gpu: str, engine: str, dtype: str, tp: int, prompts: Container[int]
) -> Iterator[dict[str, Any]]:
    """Our own runs of a bundled model with these prompts: batch, prompt, output, the measured ttft_ms and tpot_ms
    (medians over hosts), and the errors of their predictions."""
    for held in settings():
        if (held.model, held.gpu, held.engine) != (model, gpu, engine):
            continue
        for words in (line.split(",") for line in held.lines):
            row = _row(held, words)
            if words[-1] == OURS and words[DTYPE] == dtype and row["tp"] == tp and row["prompt"] in prompts:
                times = {name: float(ms) for name, ms in zip(MEASURED, words[8:-1]) if ms}
                yield {**row, "dtype": dtype, **times}


def _row(held: ValidatedSetting, words: list[str]) -> dict[str, Any]:
    named = {"model": held.model, "gpu": held.gpu, "engine": held.engine, "version": held.version}
    sizes = {name: int(n) for name, n in zip(("batch", "prompt", "output", "tp"), words)}
    errors = {f"{name}_error": round(float(e) / 100, 5) for name, e in zip(METRICS, words[4:7]) if e}
    return {**named, **sizes, **errors, "source": words[-1]}
