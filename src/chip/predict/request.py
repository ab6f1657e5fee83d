"""From a question in plain values to a prediction: what `chip predict`, `chip serve` and `chip.predict` ask."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from chip import engine_profile, engine_support, engines, hardware, hosts
from chip.dtypes import AUTO, BYTES, precision
from chip.engine_profile import FoundTerms
from chip.engines.versions import version_at
from chip.models import library
from chip.models.decoder import Decoder
from chip.models.lower import check_experts, check_shards
from chip.ops.mla_prompt import ABSORBED_TOKENS
from chip.predict import fitting, interval_class, memory, several
from chip.predict.estimator import estimator_of
from chip.predict.phase import Phase
from chip.predict.prediction import Prediction
from chip.predict.roof import Roof, check_dtype, roof_of
from chip.predict.stages import ALL, Stage
from chip.predict.steps import WAITING, EngineTerms, StepModel
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
HOST_SHARE = 0.05  # of a phase: where the device waits for more, the host is called its limit
LIMITS = {"batch": 1_000_000, "prompt": 100_000_000, "output": 100_000_000, "tp": 1024, "pp": 256, "ep": 1024}


@dataclass(frozen=True, slots=True)
class Options:
    """How a prediction is made, beside what is asked."""

    stage: Stage = ALL  # what it may rest on
    engine_file: str = ""  # terms of the engine on the asker's own host, instead of those that come with the GPU
    sdpa: str = ""  # hf-eager: what a prefill attends with; "" for torch's choice
    launch_ns: float = 0.0  # launch latency of the host; 0 for that which its terms were measured at
    host: str = ""  # a host by name or file (`chip.hosts`), instead of the reference host
    engine_version: str = ""  # of the engine; "" for that which its terms were measured with
    deep_gemm: bool = False  # vllm: fp8 in blocks as DeepGEMM multiplies it, by published times
    interval_scale: float = 0.0  # of the logarithm of intervals' widths; 0 for that of the kind of GPU


DEFAULT_OPTIONS = Options()


def answer(request: Mapping[str, Any], options: Options = DEFAULT_OPTIONS) -> dict[str, Any]:
    """Predict one scenario given as plain values; a ChipError says what is wrong with it."""
    return predict(*_understand(request), options).json()


def answer_line(
    request: Mapping[str, Any], defaults: Mapping[str, Any] = DEFAULTS, options: Options = DEFAULT_OPTIONS
) -> str:
    """The same as one line of JSON; `defaults` stand in for the keys a request leaves out."""
    return predict(*_understand(request, defaults), options).line()


def _understand(
    request: Mapping[str, Any], defaults: Mapping[str, Any] = DEFAULTS
) -> tuple[Decoder, str, str, Scenario]:
    values = values_of(request, defaults)
    return library.find(values["model"]), values["gpu"], values["engine"], scenario_of(values)


def values_of(request: Mapping[str, Any], defaults: Mapping[str, Any] = DEFAULTS) -> dict[str, Any]:
    """All keys of a request, the defaults for those it leaves out; texts are texts."""
    if not isinstance(request, Mapping):
        raise ChipError(f"a scenario is a JSON object, got {type(request).__name__}")
    for key in request:
        if key not in KEYS:
            near = get_close_matches(str(key)[:80], KEYS, 1)
            raise ChipError(
                f"unknown key {str(key)[:80]!r}; "
                + (f"did you mean {near[0]!r}?" if near else f"known: {', '.join(KEYS)}")
            )
    if "model" not in request:
        raise ChipError("key 'model' is missing")
    values = {**defaults, **request}
    for key in TEXTS:
        if not isinstance(values[key], str):
            raise ChipError(f"{key} must be text, got {str(values[key])[:40]!r}")
    engines.get(values["engine"])  # before any file is looked for under its name
    return values


def scenario_of(values: Mapping[str, Any]) -> Scenario:
    batch, prompt, output, tp, pp, ep = [count_of(values, key) for key in LIMITS]
    return Scenario(batch, prompt, output, values["dtype"], tp, values["kv_dtype"], pp, ep)


def resolved(decoder: Decoder, s: Scenario, engine: str) -> Scenario:
    """With `auto` replaced by what the model's config says; a cache as wide as the activations is ""."""
    dtype = decoder.dtype if s.dtype == AUTO else s.dtype
    kv = s.kv_dtype
    if kv == AUTO:  # a config's cache format is part of its quantisation, and only vLLM has such caches
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
    """Everything of a prediction that batch and lengths do not change."""

    steps: StepModel
    roof: Roof
    notes: tuple[str, ...]  # that hold whatever is asked
    host: str  # what the terms' host is called; "" where the engine has none
    assumed: str  # what is said where the host limits and is none of the asker's own


@lru_cache(maxsize=512)  # a ranking of all GPUs asks for nearly as many
def setting(
    decoder: Decoder, gpu: str, engine: str, dtype: str, tp: int, options: Options = DEFAULT_OPTIONS,
    kv_dtype: str = "", ep: int = 1, pp: int = 1,
) -> Setting:  # fmt: skip
    h, e = hardware.find(gpu), engines.get(engine)
    if cannot := e.SERVES.refusal(engine, decoder.architecture, dtype, max(tp, ep) * pp):
        raise ChipError(f"{decoder.name}: {cannot}")
    roof = roof_of(h, options.stage)
    as_run = _as_run(decoder, gpu, engine, dtype, kv_dtype, options)
    decoder, p = as_run.decoder, as_run.precision
    check_dtype(roof, "matmul_" + p.matmul)
    if ep > 1:
        check_experts(decoder, tp, ep)
    if tp > 1:
        check_shards(decoder, tp, ep)
    if options.sdpa and engine != "hf-eager":
        raise ChipError(f"--sdpa {options.sdpa[:40]} is for hf-eager, not for {engine}")
    if h.spec and (too_old := engine_support.too_old(engine, h.spec, options.engine_version)):
        raise ChipError(too_old)
    version = version_at(engine, e.VERSIONS, options.engine_version)
    if options.deep_gemm and engine != "vllm":
        raise ChipError(f"--deep-gemm is for vllm, not for {engine}")
    how = {"sdpa": options.sdpa, "version": options.engine_version, "deep_gemm": "on" if options.deep_gemm else ""}
    how |= {"architecture": decoder.architecture, "alibi": "on" if decoder.alibi else ""}
    capability = hardware.capability(h)
    chosen = e.runs_as(capability, how)
    estimator = estimator_of(h, chosen, options.stage)
    with_terms = options.stage >= Stage.ENGINE
    about_host = (options.engine_file, options.launch_ns, options.host)
    found = engine_profile.find(h, engine, *about_host) if with_terms else None
    notes = list(as_run.notes)
    if h.points:
        notes += _of_dtype(p.activation, estimator.kernels.measured_in(p.activation), roof.name)
    if h.spec and (old := engine_support.note(h.spec)):
        notes.append(old)
    if (options.launch_ns or _latency_of(options.host)) and not (found and found.at_latency):
        name = "--launch-ns" if options.launch_ns else "--host"
        notes.append(f"{name} is not used: no terms of {engine} tell at which launch latency they hold")
    if options.engine_version and version and found:
        measured = "its terms were measured with a newer version"
        notes.append(f"{engine} {options.engine_version}: {version.source}; {measured}")
    terms = EngineTerms(*found.terms) if found else None
    scale = options.interval_scale or interval_class.scale_of(h, max(tp, ep, pp) > 1)
    steps = StepModel(decoder, p, tp, engine, estimator, terms, version and version.on(capability), ep, scale)
    return Setting(steps, roof, tuple(notes), *_host(found, engine, options))


def _latency_of(host: str) -> float:
    return hosts.find(host).launch_ns if host else 0.0


def _host(found: FoundTerms | None, engine: str, options: Options) -> tuple[str, str]:
    """What the host of the terms is called, and what is said of it where it stands for one that nobody measured."""
    if found is None:
        return "", ""
    if not found.host:
        return hosts.find(options.host).name if options.host else "own", ""
    launches = f", which launches a kernel in {found.launch_ns / 1e3:.3g} us" if found.launch_ns else ""
    return hosts.REFERENCE, (
        f"limited by the host, and its terms are of the reference host ({found.host}{launches}); the interval holds "
        f"hosts up to {found.off:g} times as fast or as slow. `chip calibrate --host` measures yours in half a minute, "
        f"`chip calibrate --engine {engine}` more closely"
    )


@lru_cache(maxsize=512)
def _as_run(decoder: Decoder, gpu: str, engine: str, dtype: str, kv_dtype: str, options: Options) -> ServedModel:
    """The model in the formats that the GPU can multiply in."""
    h = hardware.find(gpu)
    roof = roof_of(h, options.stage)
    p = precision(dtype, kv_dtype)
    if decoder.quantization and dtype == decoder.dtype:
        p = replace(p, per_layer=True)
    if p.weight != p.activation and "matmul_bf16" not in roof.compute:  # older GPUs multiply 16 bits as fp16 only
        p = replace(p, activation="fp16", matmul=p.matmul.replace("bf16", "fp16"))
    check_dtype(roof, "matmul_" + p.activation)
    rates = frozenset(roof.compute)
    return served(decoder, p, h.name, capability_of(h.spec), rates, engine, options.deep_gemm)


def room(decoder: Decoder, gpu: str, engine: str, s: Scenario) -> dict[str, Any]:
    """What it takes of memory, without its times."""
    s = resolved(decoder, s, engine)
    several.check(s, engine)
    held = setting(decoder, gpu, engine, s.dtype, s.tp, DEFAULT_OPTIONS, s.kv_dtype, s.ep, s.pp)
    return memory.needs(held.steps.decoder, s, engine, held.steps.precision, held.roof.memory_bytes)


FEWER = 0.004  # part of all requests and decode steps that is missing at the end, from which on that is said


def predict(decoder: Decoder, gpu: str, engine: str, s: Scenario, options: Options = DEFAULT_OPTIONS) -> Prediction:
    s = resolved(decoder, s, engine)
    several.check(s, engine)
    held = setting(decoder, gpu, engine, s.dtype, s.tp, options, s.kv_dtype, s.ep, s.pp)
    steps, roof = held.steps, held.roof
    found = several.phases(steps, s, gpu, roof.memory_bytes)
    prefill, decode, _ = found
    room = memory.needs(steps.decoder, s, engine, steps.precision, roof.memory_bytes)
    asked = {"model": decoder.name, "gpu": gpu, "engine": engine, "host": held.host}
    ridge = roof.ridge("matmul_" + steps.precision.matmul)
    has_points = steps.estimator.has_points
    said = [*notes(s, roof, room, decoder.max_context, steps.engine.CAVEAT, has_points), *held.notes]
    said += several.notes(s, gpu, found, decoder.layer_count, decoder.experts)
    said += several.all_to_all_note(s, gpu, steps.decoder, BYTES[steps.precision.activation], found)
    if has_points:
        said += several.unmeasured(found, s.output)
    if not room["fits"]:
        said += fitting.hints(decoder, s, engine, steps.precision, roof.memory_bytes)
    keys, piece = steps.unaligned(s, roof.memory_bytes)
    if keys:
        said.append(
            f"the mask of the prefill has rows of {keys} keys: measured points show that those read slower that are no "
            f"multiple of {piece}, so that a little more may take less time"
        )
    if steps.absorbs(s, roof.memory_bytes):
        said.append(
            f"prompts of up to {ABSORBED_TOKENS} tokens attend to the latent itself, longer ones to expanded keys: "
            "measured points show that this takes longer, so that a little more may take less time"
        )
    first, _ = steps.prefill_steps(s, roof.memory_bytes)[0]
    if first.graph and first.pad_tokens > s.batch * s.prompt:
        said.append(
            f"the prompt runs in a CUDA graph of {first.tokens} tokens; several prompts are launched kernel by kernel, "
            "without padding, so that more may take less time"
        )
    last, fewer = steps.ending(s, roof.memory_bytes)
    if last and min(1.0, last / (s.output - 1)) * (1 - fewer / s.batch) > FEWER:
        said.append(
            f"first tokens come in {last + 1} steps, so the first requests end {last} steps before the last: TPOT is "
            "the mean of all steps, the last ones of fewer requests; more requests or tokens may bring it down"
        )
    if decoder.quantization and s.dtype != decoder.dtype:
        said.append(f"the config's weights are {decoder.dtype} ({decoder.quantization}); answered as {s.dtype} instead")
    if held.assumed and (_waits(prefill) or (decode and _waits(decode))):
        said.append(held.assumed)
    s = s.stored_as(s.dtype, s.kv_dtype or steps.precision.activation)
    return Prediction(asked, s, prefill, decode, ridge, roof.power, room, said, decoder)


def _of_dtype(asked: str, measured: str, gpu: str) -> list[str]:
    if not measured:
        return [f"no operator was measured in {asked} on {gpu}: all are base times under its ceilings"]
    return [] if measured == asked else [f"operators were measured in {measured} on {gpu}; those answer for {asked}"]


def _waits(phase: Phase) -> bool:
    """Whether its device waits for the host for more than it may where the device is called busy."""
    return any(n[3] > HOST_SHARE * phase.seconds for n in phase.lines if n[0] == WAITING)


def notes(
    s: Scenario, roof: Roof, room: Mapping[str, Any], max_context: int, caveat: str, has_points: bool = False
) -> list[str]:
    """What a reader must know beside the numbers."""
    out = []
    if not room["fits"]:
        out.append(
            f"does not fit: needs {room['total_bytes'] / 2**30:.1f} GiB a GPU, {roof.name} has "
            f"{roof.memory_bytes / 2**30:.1f} GiB, the engine uses {room['usable_bytes'] / 2**30:.1f}; "
            "times are as if it did"
        )
    if max_context and s.prompt + s.output > max_context:
        out.append(f"prompt + output exceed the model's context of {max_context} tokens")
    if roof.source == "datasheet":
        points = "products, attention, experts and collectives are times that others published; all else: "
        out.append(f"{roof.name} was never calibrated: {points if has_points else ''}ceilings are {roof.basis}")
    if caveat:
        out.append(caveat)
    return out
