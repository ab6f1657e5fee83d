"""The Python API: batches, operators and lists; `chip.live` has traffic. Plain values in, typed results out, no torch.

Times are in seconds. Numbers may be numpy's; an axis of `sweep` may be a list, a range, an array, or a column of pandas
or polars. What a user can mend raises `ChipError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from os import PathLike
from typing import Any, SupportsFloat, SupportsIndex, TypedDict

from chip import catalog
from chip.decoders.decoder import Decoder
from chip.dtypes import PRECISIONS
from chip.engines.options import Settings
from chip.predictor import operator, request
from chip.predictor.operator import Estimate
from chip.predictor.prediction import Prediction
from chip.question import BATCH, DEFAULTS, IMAGE, SYSTEM, Model, complete, decoder_of, question_of, scenario_of
from chip.types import ChipError

File = str | PathLike[str]
Texts = str | Iterable[str]  # one value of an axis, or several
Counts = SupportsIndex | Iterable[SupportsIndex]


class SweepRow(TypedDict, total=False):
    """A row of `sweep`, flat. What cannot be predicted has an `error` in place of figures."""

    model: str
    gpu: str
    engine: str
    batch: int
    prompt: int
    output: int
    dtype: str
    kv_dtype: str
    tp: int
    pp: int
    ep: int
    ttft_s: float
    ttft_low_s: float
    ttft_high_s: float
    tpot_s: float | None
    tpot_low_s: float | None
    tpot_high_s: float | None
    e2e_s: float
    tokens_per_s: float
    energy_j_per_token: float | None
    fits: bool
    memory_bytes: int
    notes: str
    error: str


def predict(
    model: Model,
    *,
    gpu: str = SYSTEM["gpu"],
    engine: str = SYSTEM["engine"],
    batch: SupportsIndex = BATCH["batch"],
    prompt: SupportsIndex = BATCH["prompt"],
    output: SupportsIndex = BATCH["output"],
    dtype: str = SYSTEM["dtype"],
    kv_dtype: str = SYSTEM["kv_dtype"],
    tp: SupportsIndex = SYSTEM["tp"],
    pp: SupportsIndex = SYSTEM["pp"],
    ep: SupportsIndex = SYSTEM["ep"],
    engine_settings: Mapping[str, Any] | Settings = SYSTEM["engine_settings"],
    engine_version: str = SYSTEM["engine_version"],
    engine_profile: File = SYSTEM["engine_profile"],
    host: File = SYSTEM["host"],
    sampling: str = SYSTEM["sampling"],
    launch_s: SupportsFloat = SYSTEM["launch_ns"],
    sdpa: str = SYSTEM["sdpa"],
    deep_gemm: bool = SYSTEM["deep_gemm"],
    answer_as: str = SYSTEM["answer_as"],
    image_tokens: SupportsIndex = IMAGE["image_tokens"],
) -> Prediction:
    """How fast a model runs on a GPU: time to first token, time per output token, throughput, memory and energy.

    `model` is a bundled name (`chip.models()`), a path to a config.json or its folder, a config as a dict, or a
    transformers config object; `gpu` a bundled name (`chip.gpus()`) or a file of `chip calibrate`. A batch of requests
    comes at once, each of `prompt` tokens, and gets `output` tokens. `dtype` is the format of the weights, `kv_dtype`
    that of the cache; `auto` is as the config says. `tp`, `pp` and `ep` split the model over GPUs.

    `engine_settings` is what the engine is told, by its own names; `engine_version` which one it is; `engine_profile` a
    file of `chip calibrate --engine`; `host` a name or a file of `chip calibrate --host`; `sampling` how tokens are
    chosen (greedy, or of temperature, top-k, top-p, penalties, logprobs, joined by +); `launch_s` the host's launch
    latency; `sdpa` the attention backend; `deep_gemm` whether fp8 products run on DeepGEMM; `answer_as` the known model
    type whose layers an unknown architecture has; `image_tokens` how many tokens an image beside each prompt adds.
    """
    values = plain_values(locals())
    return _predict(decoder_of(values.pop("model"), answer_as), values)


def sweep(
    model: Model | Iterable[Model],
    *,
    gpu: Texts = SYSTEM["gpu"],
    engine: Texts = SYSTEM["engine"],
    batch: Counts = BATCH["batch"],
    prompt: Counts = BATCH["prompt"],
    output: Counts = BATCH["output"],
    dtype: Texts = SYSTEM["dtype"],
    kv_dtype: Texts = SYSTEM["kv_dtype"],
    tp: Counts = SYSTEM["tp"],
    pp: Counts = SYSTEM["pp"],
    ep: Counts = SYSTEM["ep"],
    engine_settings: Mapping[str, Any] | Settings = SYSTEM["engine_settings"],
    engine_version: str = SYSTEM["engine_version"],
    engine_profile: File = SYSTEM["engine_profile"],
    host: File = SYSTEM["host"],
    sampling: str = SYSTEM["sampling"],
    launch_s: SupportsFloat = SYSTEM["launch_ns"],
    sdpa: str = SYSTEM["sdpa"],
    deep_gemm: bool = SYSTEM["deep_gemm"],
    answer_as: str = SYSTEM["answer_as"],
) -> list[SweepRow]:
    """One row for each combination: `chip.sweep("llama-3.1-8b", gpu=["h100", "h200"], batch=[1, 8])`.

    `model`, and all from `gpu` to `ep`, take one value or several; the rest is as in `predict`, the same for all rows.
    A row holds what was asked and the figures, as `pandas.DataFrame(rows)` and polars take them.
    """
    values = plain_values(locals())
    models = [decoder_of(m, answer_as) for m in column(values.pop("model"))]
    lists = [[plain(v) for v in column(values.pop(axis))] for axis in DEFAULTS]
    return [row for decoder in models for row in _rows(decoder, lists, values)]


def estimate(op: str, *, gpu: str = operator.DEFAULT_GPU, **axes: SupportsIndex | str | float) -> Estimate:
    """Time of one operator: `chip.estimate("linear", m=8, n=4096, k=4096, gpu="h200")`.

    `axes` are the operator's own; `chip show OP` lists them.
    """
    return operator.estimate({"op": op, "gpu": gpu, **{name: plain(v) for name, v in axes.items()}})


def models() -> list[dict[str, Any]]:
    """The bundled models, one row each."""
    return list(catalog.ROWS["models"]())


def gpus() -> list[dict[str, Any]]:
    """The known GPUs, one row each, with what a prediction for each rests on."""
    return list(catalog.ROWS["gpus"]())


def dtypes() -> tuple[str, ...]:
    return tuple(PRECISIONS)


def _predict(decoder: Decoder, values: Mapping[str, Any]) -> Prediction:
    values = complete({"model": decoder.name, **values})
    return request.predict_batch(values, question_of(values, decoder))


def _rows(decoder: Decoder, lists: Sequence[Sequence[Any]], same: Mapping[str, Any]) -> Iterator[SweepRow]:
    system: dict[str, Any] = {}
    for values in product(*lists):
        asked = dict(zip(DEFAULTS, values))
        row: dict[str, Any] = {"model": decoder.name, **asked}
        try:
            of_system = {name: value for name, value in asked.items() if name not in BATCH}
            if of_system != system:  # a grid mostly varies the batch
                q = question_of(complete({"model": decoder.name, **asked, **same}), decoder).with_formats()
                system = of_system
            prediction = request.predict(q, scenario_of(asked, q))
            formats = {"dtype": prediction.dtype, "kv_dtype": prediction.scenario.kv_dtype}
            row |= {**formats, **prediction.row()}
        except ChipError as e:
            row["error"] = str(e)
        yield SweepRow(**row)  # type: ignore[typeddict-item]


def plain_values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as the layers below take them: Python's numbers, nanoseconds of launch latency, goals as text."""
    values = {name: plain(value) for name, value in given.items()}
    launch_s = values.pop("launch_s")
    if isinstance(launch_s, bool) or not isinstance(launch_s, (int, float)):
        raise ChipError(f"launch_s must be seconds, got {str(launch_s)[:40]!r}")
    values["launch_ns"] = 1e9 * launch_s
    goals = values.get("goals")
    if isinstance(goals, Mapping):
        values["goals"] = ",".join(f"{name}={float(seconds)!r}s" for name, seconds in goals.items())
    return values


def plain(value: Any) -> Any:
    """A number of numpy becomes Python's."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return value.item()
    return value


def column(value: Any) -> list[Any]:
    """The values of an axis: of a list, a range, an array, a column; or the one value that it is."""
    to_list = getattr(value, "tolist", None) or getattr(value, "to_list", None)
    if to_list is not None:
        value = to_list()
    alone = isinstance(value, (str, Mapping, PathLike)) or not isinstance(value, Iterable) or hasattr(value, "to_dict")
    return [value] if alone else list(value)
