"""The runs that predictions were compared with, nearest to a question first, with the errors of their predictions.

The index, data/validated.csv, is made from validations by `python benchmarks/validated_index.py`. It has a row for each
scenario, with the signed errors of its prediction (predicted over measured, minus 1; the median over hosts). Rows of
our own runs also have their dtype and the measured times, those of published runs do not.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from functools import lru_cache
from math import log2
from typing import Any, NamedTuple

from chip import artifact, hardware
from chip.models.decoder import Decoder
from chip.types import Scenario

INDEX = hardware.DATA / "validated.csv"
METRICS = ("ttft", "tpot", "e2e")
MEASURED = ("ttft_ms", "tpot_ms")
OURS = "our runs"
SHOWN = 3
# The distance of two questions is a sum: for another GPU of the same architecture, of another architecture, or of
# another vendor; for another engine; for another model, with the octaves between their sizes, and for experts or none;
# and for each octave between batches, prompts, outputs and numbers of GPUs.
OTHER_GPU, OTHER_ARCHITECTURE, OTHER_VENDOR, OTHER_ENGINE, OTHER_MODEL, OTHER_KIND = 4.0, 8.0, 16.0, 12.0, 1.0, 2.0
PER_BATCH, PER_PROMPT, PER_OUTPUT, PER_GPUS = 0.5, 0.25, 0.125, 2.0


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
    sizes: list[tuple[float, ...]]  # for each line, filled in when first asked for


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
        ValidatedSetting(gpu, engine, version, model, float(active), experts == "1", lines, [])
        for (gpu, engine, version, model, active, experts), lines in found.items()
    )


@lru_cache(maxsize=256)
def _between_gpus(gpu: str, other: str) -> float:
    if gpu == other:
        return 0.0
    mine, theirs = hardware.find(gpu).spec, hardware.spec(other)
    if mine is None or mine.vendor != theirs.vendor:
        return OTHER_VENDOR
    return OTHER_GPU if mine.architecture == theirs.architecture else OTHER_ARCHITECTURE


@lru_cache(maxsize=64)
def _by_distance(decoder: Decoder, gpu: str, engine: str) -> tuple[tuple[float, ValidatedSetting], ...]:
    """All settings with the distance of their model, GPU and engine, nearest first."""
    name, active, experts = decoder.name, decoder.active_params(), decoder.experts > 0
    gpu = hardware.find(gpu).name if hardware.is_known(gpu) else gpu
    found = []
    for held in settings():
        apart = _between_gpus(gpu, held.gpu) + (OTHER_ENGINE if engine != held.engine else 0.0)
        if held.model != name:
            apart += OTHER_MODEL + abs(log2(active / held.active)) + (OTHER_KIND if experts != held.experts else 0.0)
        found.append((apart, held))
    return tuple(sorted(found, key=lambda item: item[0]))


def nearest(decoder: Decoder, gpu: str, engine: str, s: Scenario) -> list[dict[str, Any]]:
    """Up to three runs, nearest first: their question, and the known errors of their predictions as fractions
    (ttft_error, tpot_error, e2e_error)."""
    batch, prompt, output, gpus = (log2(n) for n in (s.batch, s.prompt, s.output, s.gpus))
    best: list[tuple[float, int, int, ValidatedSetting]] = []
    for i, (far, held) in enumerate(_by_distance(decoder, gpu, engine)):
        if len(best) == SHOWN and far >= best[-1][0]:
            break
        for j, (b, p, o, g) in enumerate(_sizes(held)):
            apart = far + PER_BATCH * abs(batch - b) + PER_PROMPT * abs(prompt - p)
            apart += PER_OUTPUT * abs(output - o) + PER_GPUS * abs(gpus - g)
            if len(best) < SHOWN or apart < best[-1][0]:
                best = sorted([*best, (apart, i, j, held)])[:SHOWN]
    return [_row(held, held.lines[j].split(",")) for _, _, j, held in best]


def _sizes(held: ValidatedSetting) -> list[tuple[float, ...]]:
    """For each run: the logarithms of batch, prompt, output and GPUs, parsed once."""
    if not held.sizes:
        held.sizes.extend([tuple([log2(int(n)) for n in line.split(",", 4)[:4]]) for line in held.lines])
    return held.sizes


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
            if words[-1] == OURS and words[7] == dtype and row["tp"] == tp and row["prompt"] in prompts:
                times = {name: float(ms) for name, ms in zip(MEASURED, words[8:-1]) if ms}
                yield {**row, "dtype": dtype, **times}


def _row(held: ValidatedSetting, words: list[str]) -> dict[str, Any]:
    named = {"model": held.model, "gpu": held.gpu, "engine": held.engine, "version": held.version}
    sizes = {name: int(n) for name, n in zip(("batch", "prompt", "output", "tp"), words)}
    errors = {f"{name}_error": round(float(e) / 100, 5) for name, e in zip(METRICS, words[4:7]) if e}
    return {**named, **sizes, **errors, "source": words[-1]}
