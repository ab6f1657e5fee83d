"""The Python API: what `import chip` offers. Plain values in, typed results out; nothing here needs torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from chip import catalog
from chip.decoders.decoder import Decoder
from chip.dtypes import PRECISIONS
from chip.engines.options import Settings
from chip.predictor import operator, request
from chip.predictor.prediction import Prediction
from chip.question import BATCH, DEFAULTS, KEYS, SYSTEM, Model, complete, decoder_of, question_of, scenario_of
from chip.types import ChipError


def predict(
    model: Model,
    *,
    gpu: str = SYSTEM["gpu"],
    engine: str = SYSTEM["engine"],
    batch: int = BATCH["batch"],
    prompt: int = BATCH["prompt"],
    output: int = BATCH["output"],
    dtype: str = SYSTEM["dtype"],
    kv_dtype: str = SYSTEM["kv_dtype"],
    tp: int = SYSTEM["tp"],
    pp: int = SYSTEM["pp"],
    ep: int = SYSTEM["ep"],
    engine_settings: Mapping[str, Any] | Settings = SYSTEM["engine_settings"],
    engine_version: str = SYSTEM["engine_version"],
    engine_profile: str | Path = SYSTEM["engine_profile"],
    host: str | Path = SYSTEM["host"],
    launch_ns: float = SYSTEM["launch_ns"],
    sdpa: str = SYSTEM["sdpa"],
    deep_gemm: bool = SYSTEM["deep_gemm"],
    answer_as: str = SYSTEM["answer_as"],
) -> Prediction:
    """How fast a model runs on a GPU: time to first token, time per output token, throughput, memory and energy.

    `model` is a bundled name (`chip.models()`), a path to a config.json or its folder, a config as a dict, or a
    transformers config object; `gpu` a bundled name (`chip.gpus()`) or a file of `chip calibrate`; `engine_settings`
    what the engine is told, by its own names; `host` a name or a file of `chip calibrate --host`.
    """
    values = dict(locals())
    return _predict(decoder_of(values.pop("model"), answer_as), values)


def _predict(decoder: Decoder, values: Mapping[str, Any]) -> Prediction:
    values = complete({"model": decoder.name, **values})
    q = question_of(values, decoder)
    return request.predict(q, scenario_of(values, q))


def sweep(model: Model | Iterable[Model], **axes: Any) -> list[dict[str, Any]]:
    """One row for each combination of the axes: `chip.sweep("llama-3.1-8b", gpu=["h100", "h200"], batch=[1, 8])`.

    Axes are gpu, engine, batch, prompt, output, dtype, kv_dtype, tp, pp and ep; each is a value or a list of them. All
    else that `chip.predict` takes has one value for all rows. A row holds what was asked and the figures, flat, as
    pandas and polars take it. What cannot be predicted has an `error` instead of figures.
    """
    for name in axes:
        if name not in KEYS:
            raise ChipError(f"no axis {name!r} to sweep; choose of {', '.join(DEFAULTS)}")
    fixed = {name: axes.pop(name) for name in list(axes) if name not in DEFAULTS}
    lists = [v if isinstance(v, (list, tuple, range)) else [v] for v in axes.values()]
    models = list(model) if isinstance(model, (list, tuple)) else [model]
    return [row for m in models for row in _rows(decoder_of(m, fixed.get("answer_as", "")), list(axes), lists, fixed)]


def _rows(decoder: Decoder, names: list[str], lists: list[Any], fixed: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for values in product(*lists):
        asked = {**DEFAULTS, **dict(zip(names, values))}
        row = {"model": decoder.name, **asked}
        try:
            prediction = _predict(decoder, {**asked, **fixed})
            formats = {"dtype": prediction.scenario.dtype, "kv_dtype": prediction.scenario.kv_dtype}
            yield {**row, **formats, **prediction.row()}
        except ChipError as e:
            yield {**row, "error": str(e)}


def estimate(op: str, *, gpu: str = operator.DEFAULT_GPU, **axes: Any) -> dict[str, Any]:
    """Time of one operator: `chip.estimate("linear", m=8, n=4096, k=4096, gpu="h200")`."""
    return operator.answer({"op": op, "gpu": gpu, **axes})


def models() -> list[dict[str, Any]]:
    """The bundled models, one row each."""
    return list(catalog.ROWS["models"]())


def gpus() -> list[dict[str, Any]]:
    """The known GPUs, one row each, with what a prediction for each rests on."""
    return list(catalog.ROWS["gpus"]())


def dtypes() -> tuple[str, ...]:
    return tuple(PRECISIONS)
