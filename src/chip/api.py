"""The Python API: what `import chip` offers. Plain values in, typed results out; nothing here needs torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from chip import catalog
from chip.dtypes import PRECISIONS
from chip.models import describe, library
from chip.models.decoder import Decoder
from chip.predict import operator, request
from chip.predict.prediction import Prediction
from chip.types import ChipError

Model = str | Path | Mapping[str, Any] | Any  # a name, a path, a config as a dict or as transformers has it
AXES = ("gpu", "engine", "batch", "prompt", "output", "dtype", "kv_dtype", "tp", "pp", "ep")  # what a sweep may vary


def predict(
    model: Model,
    *,
    gpu: str = request.DEFAULTS["gpu"],
    engine: str = request.DEFAULTS["engine"],
    batch: int = request.DEFAULTS["batch"],
    prompt: int = request.DEFAULTS["prompt"],
    output: int = request.DEFAULTS["output"],
    dtype: str = request.DEFAULTS["dtype"],
    kv_dtype: str = request.DEFAULTS["kv_dtype"],
    tp: int = request.DEFAULTS["tp"],
    pp: int = request.DEFAULTS["pp"],
    ep: int = request.DEFAULTS["ep"],
    engine_profile: str | Path = "",
    sdpa: str = "",
    launch_ns: float = 0.0,
    host: str | Path = "",
    engine_version: str = "",
    deep_gemm: bool = False,
) -> Prediction:
    """How fast a model runs on a GPU: time to first token, time per output token, throughput, memory and energy.

    `model` is a bundled name (`chip.models()`), a path to a config.json or its folder, a config as a dict, or a
    transformers config object; `gpu` a bundled name (`chip.gpus()`) or a file of `chip calibrate`; `host` a name or a
    file of `chip calibrate --host`.
    """
    sizes = {"batch": batch, "prompt": prompt, "output": output, "tp": tp, "pp": pp, "ep": ep}
    asked = {**sizes, "dtype": dtype, "kv_dtype": kv_dtype}
    options = options_of(engine_profile, sdpa, launch_ns, host, engine_version, deep_gemm)
    return request.predict(decoder_of(model), gpu, engine, request.scenario_of(asked), options)


def options_of(
    engine_profile: str | Path = "",
    sdpa: str = "",
    launch_ns: float = 0.0,
    host: str | Path = "",
    engine_version: str = "",
    deep_gemm: bool = False,
) -> request.Options:
    return request.Options(
        engine_file=str(engine_profile),
        sdpa=sdpa,
        launch_ns=launch_ns,
        host=str(host),
        engine_version=engine_version,
        deep_gemm=deep_gemm,
    )


def sweep(
    model: Model | Iterable[Model],
    *,
    engine_profile: str | Path = "",
    sdpa: str = "",
    launch_ns: float = 0.0,
    host: str | Path = "",
    engine_version: str = "",
    deep_gemm: bool = False,
    **axes: Any,
) -> list[dict[str, Any]]:
    """One row for each combination of the axes: `chip.sweep("llama-3.1-8b", gpu=["h100", "h200"], batch=[1, 8])`.

    Axes are gpu, engine, batch, prompt, output, dtype, kv_dtype, tp, pp and ep; each is a value or a list of them. A
    row holds what was asked and the figures, flat, as pandas and polars take it. What cannot be predicted has an
    `error` instead of figures.
    """
    for name in axes:
        if name not in AXES:
            raise ChipError(f"no axis {name!r} to sweep; choose of {', '.join(AXES)}")
    lists = [v if isinstance(v, (list, tuple, range)) else [v] for v in axes.values()]
    models = list(model) if isinstance(model, (list, tuple)) else [model]
    options = options_of(engine_profile, sdpa, launch_ns, host, engine_version, deep_gemm)
    return [row for m in models for row in _rows(decoder_of(m), list(axes), lists, options)]


def _rows(decoder: Decoder, names: list[str], lists: list[Any], options: request.Options) -> Iterator[dict[str, Any]]:
    for values in product(*lists):
        asked = {"model": decoder.name, **{k: request.DEFAULTS[k] for k in AXES}, **dict(zip(names, values))}
        try:
            found = request.predict(decoder, asked["gpu"], asked["engine"], request.scenario_of(asked), options)
            formats = {"dtype": found.scenario.dtype, "kv_dtype": found.scenario.kv_dtype}  # what auto came to
            yield {**asked, **formats, **found.row()}
        except ChipError as e:
            yield {**asked, "error": str(e)}


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


def decoder_of(model: Model) -> Decoder:
    if isinstance(model, Decoder):
        return model
    if isinstance(model, (str, Path)):
        return library.find(str(model))
    config = model if isinstance(model, Mapping) else getattr(model, "to_dict", lambda: None)()
    if not isinstance(config, Mapping):
        kinds = "a name, a path, a dict, or a transformers config"
        raise ChipError(f"model must be {kinds}, got {type(model).__name__}")
    name = str(config.get("_name_or_path") or config.get("model_type") or "config")
    return describe(dict(config), name[:80], "model")
