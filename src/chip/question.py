"""What is asked: a model that an engine serves on GPUs. Every default of a question stands here, once.

Predict, simulate, plan, serve, validate and the Python API make a `Question` and pass it on. Beside it comes the work:
a batch of equal requests (`Scenario`), or traffic (`chip.simulate`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from chip import engines
from chip.decoders import describe, library
from chip.decoders.decoder import Decoder
from chip.dtypes import AUTO
from chip.engines.options import Settings, settings_of
from chip.engines.sampling import GREEDY
from chip.types import ChipError, Scenario

Model = str | Path | Mapping[str, Any] | Any  # a name, a path, a config as a dict or as transformers has it


@dataclass(frozen=True, slots=True)
class Question:
    """A model, the GPUs and the engine that serve it, and the host they stand in."""

    model: Decoder
    gpu: str = "h200"
    engine: str = "vllm"
    dtype: str = AUTO  # of the weights and what they are multiplied in; auto: as the model's config says, else bf16
    kv_dtype: str = AUTO  # of the KV cache; auto: as the config says, else as the activations
    tp: int = 1  # GPUs that share each layer
    pp: int = 1  # stages of a pipeline
    ep: int = 1  # GPUs that the experts lie on
    engine_settings: Settings = ()  # by the engine's own names
    engine_version: str = ""  # "" for the one that the engine's terms were measured with
    engine_profile: str = ""  # file of the asker's own engine terms, instead of those bundled for the GPU
    host: str = ""  # by name or file; "" for the reference host
    sampling: str = GREEDY  # how tokens are chosen: top-p+penalties, ...
    launch_ns: float = 0.0  # launch latency of the host; 0 for the one that the terms were measured at

    @classmethod
    def of(cls, model: Decoder, gpu: str, engine: str, s: Scenario, **more: Any) -> Question:
        """What a scenario is asked of, whose formats and split it takes."""
        return cls(model, gpu, engine, s.dtype, s.kv_dtype, s.tp, s.pp, s.ep, **more)

    @property
    def replicas(self) -> int:
        """Of the attention, each on `tp` GPUs, over one set of experts."""
        return self.scenario(1, 1, 1).replicas

    @property
    def gpus(self) -> int:
        return self.scenario(1, 1, 1).gpus

    def scenario(self, batch: int, prompt: int, output: int) -> Scenario:
        return Scenario(batch, prompt, output, self.dtype, self.tp, self.kv_dtype, self.pp, self.ep)

    def with_formats(self) -> Question:
        """The same with `auto` replaced by what the model's config says. `kv_dtype` becomes "" for a cache in the
        format of the activations."""
        dtype = self.model.dtype if self.dtype == AUTO else self.dtype
        kv = self.kv_dtype
        if kv == AUTO:  # a config's cache format belongs to its quantisation
            as_config = dtype == self.model.dtype and engines.get(self.engine).QUANTISED_CACHE
            kv = self.model.kv_dtype if as_config else ""
        return self if (dtype, kv) == (self.dtype, self.kv_dtype) else replace(self, dtype=dtype, kv_dtype=kv)


# Engine settings that are keys of a question as well: the attention backend of a prefill, DeepGEMM's fp8 products
SETTINGS: dict[str, Any] = {"sdpa": "", "deep_gemm": False}
FIELDS: dict[str, Any] = {f.name: f.default for f in fields(Question) if f.name != "model"}
IMAGE: dict[str, Any] = {"image_tokens": 0}  # of an image beside each prompt
ANSWER_AS: dict[str, Any] = {"answer_as": ""}  # the known model type whose layers an unknown architecture has
SYSTEM: dict[str, Any] = FIELDS | SETTINGS | ANSWER_AS
BATCH: dict[str, Any] = {"batch": 1, "prompt": 1024, "output": 128}
_AXES = ("gpu", "engine", "batch", "prompt", "output", "dtype", "kv_dtype", "tp", "pp", "ep")
DEFAULTS: dict[str, Any] = {name: (BATCH | SYSTEM)[name] for name in _AXES}  # what a grid may vary
MOST_IMAGE_TOKENS = 1_000_000
LIMITS = {"batch": 1_000_000, "prompt": 100_000_000, "output": 100_000_000, "tp": 1024, "pp": 256, "ep": 1024}
MOST_LAUNCH_NS = 1e6
ANYWHERE = ("model", *DEFAULTS, "engine_settings", "engine_version")  # keys that open no file
KEYS = (*ANYWHERE, *IMAGE, *(name for name in SYSTEM if name not in ANYWHERE))
FILES = ("engine_profile", "host")  # or names
TEXTS = ("model", *(name for name, default in SYSTEM.items() if isinstance(default, str) and name not in FILES))


def question_of(values: Mapping[str, Any], model: Decoder | None = None) -> Question:
    """The question in plain values that `complete` has checked. `model`: what 'model' stands for, if that is known."""
    given = {name: values[name] for name in FIELDS if name in values}
    for name in FILES:
        if name in given:
            given[name] = str(given[name])
    settings = settings_of(given.get("engine_settings", ()))
    given["engine_settings"] = (*settings, *((name, values[name]) for name in SETTINGS if values.get(name)))
    for name in ("tp", "pp", "ep"):
        count_of(given, name)
    launch_ns = given.get("launch_ns", 0.0)
    if isinstance(launch_ns, bool) or not isinstance(launch_ns, (int, float)) or not 0 <= launch_ns <= MOST_LAUNCH_NS:
        raise ChipError(f"launch_ns must be between 0 and {MOST_LAUNCH_NS:g} ns, got {str(launch_ns)[:40]}")
    return Question(model or decoder_of(values["model"], values.get("answer_as", "")), **given)


def scenario_of(values: Mapping[str, Any], question: Question) -> Scenario:
    """The batch of equal requests that is asked for."""
    batch, prompt, output = [count_of(values, name) for name in BATCH]
    return question.scenario(batch, prompt + image_tokens_of(values), output)


def image_tokens_of(values: Mapping[str, Any]) -> int:
    """Of the image beside each prompt; 0 where there is none."""
    value = values.get("image_tokens", 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_IMAGE_TOKENS:
        raise ChipError(f"image_tokens must be a whole number up to {MOST_IMAGE_TOKENS}, got {str(value)[:40]!r}")
    return value


def complete(asked: Any, defaults: Mapping[str, Any] = DEFAULTS, known: tuple[str, ...] = KEYS) -> dict[str, Any]:
    """A question in plain values, with `defaults` for what it leaves out. Keys beyond `known` and wrong types are
    refused."""
    if not isinstance(asked, Mapping):
        raise ChipError(f"a scenario is a JSON object, got {type(asked).__name__}")
    for key in asked:
        if key not in known:
            near = get_close_matches(str(key)[:80], known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise ChipError(f"unknown key {str(key)[:80]!r}; {hint}")
    if "model" not in asked:
        raise ChipError("key 'model' is missing")
    values = {**defaults, **asked}
    for key in TEXTS:
        if key in values and not isinstance(values[key], str):
            raise ChipError(f"{key} must be text, got {str(values[key])[:40]!r}")
    engines.get(values["engine"])  # refuses unknown names before any file is looked for under them
    return values


def count_of(values: Mapping[str, Any], key: str) -> int:
    value = values[key] if key in values else DEFAULTS[key]
    if isinstance(value, bool) or not isinstance(value, int):
        raise ChipError(f"{key} must be a whole number, got {str(value)[:40]!r}")
    if not 1 <= value <= LIMITS[key]:
        raise ChipError(f"{key} must be between 1 and {LIMITS[key]}, got {str(value)[:40]}")
    return value


def decoder_of(model: Model, answer_as: str = "") -> Decoder:
    """The model that a name, a path, a config or a transformers config stands for."""
    if isinstance(model, Decoder):
        return model
    if isinstance(model, (str, Path)):
        return library.find(str(model), answer_as)
    config = model if isinstance(model, Mapping) else getattr(model, "to_dict", lambda: None)()
    if not isinstance(config, Mapping):
        kinds = "a name, a path, a dict, or a transformers config"
        raise ChipError(f"model must be {kinds}, got {type(model).__name__}")
    name = str(config.get("_name_or_path") or config.get("model_type") or "config")
    return describe(dict(config), name[:80], "model", answer_as)
