"""From a question in plain values to a prediction: for `chip predict`, `chip serve` and `chip.predict(...)`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from chip import engine_profile, engine_support, engines, hardware, hosts
from chip.dtypes import AUTO, precision
from chip.engines.versions import EngineVersion, version_at
from chip.hardware import Hardware
from chip.models import library
from chip.models.decoder import Decoder
from chip.models.lower import check_experts, check_shards
from chip.predict import interval_class, memory, notes, several
from chip.predict.estimator import estimator_of
from chip.predict.prediction import Prediction
from chip.predict.roof import Roof, check_dtype, roof_of
from chip.predict.stages import ALL, Stage
from chip.predict.steps import EngineTerms, StepModel
from chip.records import dataclass, replace
from chip.suggest import get_close_matches
from chip.types import ChipError, Scenario
from chip.vllm_kernels import ServedModel, capability_of, served

DEFAULTS: dict[str, Any] = {
    "gpu": "h200",
    "engine": "vllm",
    "batch": 1,
    "prompt": 1024,
    "output": 128,
    "dtype": AUTO,
    "kv_dtype": AUTO,
    "tp": 1,
    "pp": 1,
    "ep": 1,
}
TEXTS = ("model", "gpu", "engine", "dtype", "kv_dtype")
KEYS = ("model", *DEFAULTS)
LIMITS = {"batch": 1_000_000, "prompt": 100_000_000, "output": 100_000_000, "tp": 1024, "pp": 256, "ep": 1024}


@dataclass(frozen=True, slots=True)
class Options:
    """How a prediction is made, as opposed to what is asked."""

    stage: Stage = ALL  # what it may rest on
    engine_file: str = ""  # engine terms measured on the asker's host, instead of those bundled for the GPU
    sdpa: str = ""  # hf-eager: the attention backend of a prefill; "" for torch's choice
    launch_ns: float = 0.0  # launch latency of the host; 0 for the one its terms were measured at
    host: str = ""  # a host by name or file (`chip.hosts`), instead of the reference host
    engine_version: str = ""  # "" for the one its terms were measured with
    deep_gemm: bool = False  # vllm: block fp8 products by DeepGEMM, from published times
    interval_scale: float = 0.0  # factor on the logarithm of intervals' widths; 0 for that of the kind of GPU


DEFAULT_OPTIONS = Options()


def answer(request: Mapping[str, Any], options: Options = DEFAULT_OPTIONS) -> dict[str, Any]:
    """Predict one scenario given as plain values; a ChipError says what is wrong with it."""
    return _predicted(request, DEFAULTS, options).json()


def answer_line(
    request: Mapping[str, Any], defaults: Mapping[str, Any] = DEFAULTS, options: Options = DEFAULT_OPTIONS
) -> str:
    """The same as one line of JSON; `defaults` stand in for the keys a request leaves out."""
    return _predicted(request, defaults, options).line()


def _predicted(request: Mapping[str, Any], defaults: Mapping[str, Any], options: Options) -> Prediction:
    values = values_of(request, defaults)
    return predict(library.find(values["model"]), values["gpu"], values["engine"], scenario_of(values), options)


def values_of(request: Mapping[str, Any], defaults: Mapping[str, Any] = DEFAULTS) -> dict[str, Any]:
    """All keys of a request, with defaults for those it leaves out. Unknown keys and wrong types are refused."""
    if not isinstance(request, Mapping):
        raise ChipError(f"a scenario is a JSON object, got {type(request).__name__}")
    for key in request:
        if key not in KEYS:
            near = get_close_matches(str(key)[:80], KEYS, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(KEYS)}"
            raise ChipError(f"unknown key {str(key)[:80]!r}; {hint}")
    if "model" not in request:
        raise ChipError("key 'model' is missing")
    values = {**defaults, **request}
    for key in TEXTS:
        if not isinstance(values[key], str):
            raise ChipError(f"{key} must be text, got {str(values[key])[:40]!r}")
    engines.get(values["engine"])  # refuses unknown names before any file is looked for under them
    return values


def scenario_of(values: Mapping[str, Any]) -> Scenario:
    batch, prompt, output, tp, pp, ep = [count_of(values, key) for key in LIMITS]
    return Scenario(batch, prompt, output, values["dtype"], tp, values["kv_dtype"], pp, ep)


def resolved(decoder: Decoder, s: Scenario, engine: str) -> Scenario:
    """The scenario with `auto` replaced by what the model's config says. `kv_dtype` is "" for a cache in the format of
    the activations."""
    dtype = decoder.dtype if s.dtype == AUTO else s.dtype
    kv = s.kv_dtype
    if kv == AUTO:  # a config's cache format belongs to its quantisation, and only vLLM has such caches
        kv = decoder.kv_dtype if dtype == decoder.dtype and engine == "vllm" else ""
    return s.stored_as(dtype, kv)


def count_of(values: Mapping[str, Any], key: str) -> int:
    value = values[key]
    if isinstance(value, bool) or not isinstance(value, int):
        raise ChipError(f"{key} must be a whole number, got {str(value)[:40]!r}")
    if not 1 <= value <= LIMITS[key]:
        raise ChipError(f"{key} must be between 1 and {LIMITS[key]}, got {str(value)[:40]}")
    return value


@dataclass(frozen=True, slots=True)
class Setting:
    """What a prediction needs and batch and lengths do not change."""

    steps: StepModel
    roof: Roof
    notes: tuple[str, ...]
    host: str  # name of the host whose terms are taken; "" where the engine has no terms
    host_note: str  # for predictions that the host limits, where its terms are those of the reference host


@lru_cache(maxsize=512)  # a ranking of all GPUs asks for nearly as many
def setting(
    asked: Decoder, gpu: str, engine: str, dtype: str, tp: int, options: Options = DEFAULT_OPTIONS,
    kv_dtype: str = "", ep: int = 1, pp: int = 1,
) -> Setting:  # fmt: skip
    h, e = hardware.find(gpu), engines.get(engine)
    if refusal := e.SERVES.refusal(engine, asked.architecture, dtype, max(tp, ep) * pp):
        raise ChipError(f"{asked.name}: {refusal}")
    roof = roof_of(h, options.stage)
    as_run = _as_run(asked, h, roof, engine, dtype, kv_dtype, options.deep_gemm)
    decoder, p = as_run.decoder, as_run.precision
    check_dtype(roof, "matmul_" + p.matmul)
    if ep > 1:
        check_experts(decoder, tp, ep)
    if tp > 1:
        check_shards(decoder, tp, ep)
    version = _version(h, engine, options)
    capability = hardware.capability(h)
    how = {
        "sdpa": options.sdpa, "version": options.engine_version, "deep_gemm": "on" if options.deep_gemm else "",
        "architecture": decoder.architecture, "alibi": "on" if decoder.alibi else "",
    }  # fmt: skip
    estimator = estimator_of(h, e.runs_as(capability, how), options.stage)
    found = None
    if options.stage >= Stage.ENGINE:
        found = engine_profile.find(h, engine, options.engine_file, options.launch_ns, options.host)
    terms = EngineTerms(*found.terms) if found else None
    scale = options.interval_scale or interval_class.scale_of(h, max(tp, ep, pp) > 1)
    unhosted = replace(options, engine_file="", launch_ns=0.0, host="")
    if options == unhosted:
        steps = StepModel(decoder, p, tp, engine, estimator, terms, version and version.on(capability), ep, scale)
    else:  # the same operators under other terms
        steps = setting(asked, gpu, engine, dtype, tp, unhosted, kv_dtype, ep, pp).steps.under(terms)
    said = (
        notes.of_ceilings(roof, estimator.has_points),
        e.CAVEAT,
        *as_run.notes,
        notes.of_formats(p.activation, estimator.kernels.measured_in(p.activation), roof.name) if h.points else "",
        engine_support.note(h.spec) if h.spec else "",
        *notes.of_terms(engine, options, found, version),
    )
    host, host_note = "", ""
    if found and found.host:
        host, host_note = hosts.REFERENCE, notes.of_host(engine, found)
    elif found:
        host = hosts.find(options.host).name if options.host else "own"
    return Setting(steps, roof, tuple(filter(None, said)), host, host_note)


def _version(h: Hardware, engine: str, options: Options) -> EngineVersion | None:
    """What is known of the engine's version. Options that the engine or the GPU does not have are refused."""
    if options.sdpa and engine != "hf-eager":
        raise ChipError(f"--sdpa {options.sdpa[:40]} is for hf-eager, not for {engine}")
    if h.spec and (too_old := engine_support.too_old(engine, h.spec, options.engine_version)):
        raise ChipError(too_old)
    version = version_at(engine, engines.get(engine).VERSIONS, options.engine_version)
    if options.deep_gemm and engine != "vllm":
        raise ChipError(f"--deep-gemm is for vllm, not for {engine}")
    return version


def _as_run(
    decoder: Decoder, h: Hardware, roof: Roof, engine: str, dtype: str, kv_dtype: str, deep_gemm: bool
) -> ServedModel:
    """The model in formats that the GPU can multiply."""
    p = precision(dtype, kv_dtype)
    if decoder.quantization and dtype == decoder.dtype:
        p = replace(p, per_layer=True)
    if p.weight != p.activation and "matmul_bf16" not in roof.compute:  # older GPUs multiply 16 bits as fp16 only
        p = replace(p, activation="fp16", matmul=p.matmul.replace("bf16", "fp16"))
    check_dtype(roof, "matmul_" + p.activation)
    return served(decoder, p, h.name, capability_of(h.spec), frozenset(roof.compute), engine, deep_gemm)


def room(decoder: Decoder, gpu: str, engine: str, s: Scenario) -> dict[str, Any]:
    """The memory that a scenario needs, without its times."""
    _, _, room = _prepared(decoder, gpu, engine, s, DEFAULT_OPTIONS)
    return room


def _prepared(
    decoder: Decoder, gpu: str, engine: str, s: Scenario, options: Options
) -> tuple[Scenario, Setting, dict[str, Any]]:
    """The scenario without `auto`, its setting, and the memory it needs."""
    s = resolved(decoder, s, engine)
    several.check(s, engine)
    held = setting(decoder, gpu, engine, s.dtype, s.tp, options, s.kv_dtype, s.ep, s.pp)
    return s, held, memory.needs(held.steps.decoder, s, engine, held.steps.precision, held.roof.memory_bytes)


def predict(decoder: Decoder, gpu: str, engine: str, s: Scenario, options: Options = DEFAULT_OPTIONS) -> Prediction:
    s, held, room = _prepared(decoder, gpu, engine, s, options)
    steps, roof = held.steps, held.roof
    found = several.phases(steps, s, gpu, roof.memory_bytes)
    said = [*notes.of_sizes(s, roof, room, decoder.max_context), *held.notes, *several.notes(steps, s, gpu, found)]
    if steps.estimator.has_points:
        said += notes.of_points_missing(found, s.output)
    if not room["fits"]:
        said += notes.of_narrower(decoder, s, engine, steps.precision, roof.memory_bytes)
    said += notes.of_more(steps, s, roof.memory_bytes)
    if decoder.quantization and s.dtype != decoder.dtype:
        said.append(f"the config's weights are {decoder.dtype} ({decoder.quantization}); answered as {s.dtype} instead")
    if held.host_note and (notes.waits(found.prefill) or (found.decode and notes.waits(found.decode))):
        said.append(held.host_note)
    asked = {"model": decoder.name, "gpu": gpu, "engine": engine, "host": held.host}
    ridge = roof.ridge("matmul_" + steps.precision.matmul)
    s = s.stored_as(s.dtype, s.kv_dtype or steps.precision.activation)
    return Prediction(asked, s, found.prefill, found.decode, ridge, roof.power, room, said, decoder)
