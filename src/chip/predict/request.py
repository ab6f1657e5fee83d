"""From a question to a prediction: for `chip predict`, `chip serve` and `chip.predict(...)`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from chip import engine_profile, engine_support, engines, hardware, hosts
from chip.dtypes import precision
from chip.engines.versions import EngineVersion, version_at
from chip.hardware import Hardware
from chip.models.lower import check_experts, check_shards
from chip.predict import interval_class, memory, notes, several
from chip.predict.estimator import estimator_of
from chip.predict.prediction import Prediction
from chip.predict.roof import Roof, check_dtype, roof_of
from chip.predict.stages import ALL, Stage
from chip.predict.steps import EngineTerms, StepModel
from chip.question import DEFAULTS, Question, complete, question_of, scenario_of
from chip.records import dataclass, replace
from chip.types import ChipError, Scenario
from chip.vllm_kernels import ServedModel, capability_of, served


def answer(values: Mapping[str, Any], defaults: Mapping[str, Any] = DEFAULTS, stage: Stage = ALL) -> dict[str, Any]:
    """Predict one scenario given as plain values; a ChipError says what is wrong with it."""
    return predict_values(values, defaults, stage).json()


def answer_line(values: Mapping[str, Any], defaults: Mapping[str, Any] = DEFAULTS) -> str:
    """The same as one line of JSON; `defaults` stand in for the keys it leaves out."""
    return predict_values(values, defaults).line()


def predict_values(values: Mapping[str, Any], defaults: Mapping[str, Any] = DEFAULTS, stage: Stage = ALL) -> Prediction:
    complete_values = complete(values, defaults)
    question = question_of(complete_values)
    return predict(question, scenario_of(complete_values, question), stage)


@dataclass(frozen=True, slots=True)
class Setting:
    """What a prediction needs and batch and lengths do not change."""

    steps: StepModel
    roof: Roof
    notes: tuple[str, ...]
    host: str  # name of the host whose terms are taken; "" where the engine has no terms
    host_note: str  # for predictions that the host limits, where its terms are those of the reference host


def setting(q: Question, stage: Stage = ALL, interval_scale: float = 0.0) -> Setting:
    """Of a question without `auto`. `stage`: what predictions may rest on. `interval_scale`: factor on the logarithm of
    intervals' widths; 0 for that of the kind of GPU."""
    return prepared(q, stage, interval_scale)


@lru_cache(maxsize=512)  # a ranking of all GPUs asks for nearly as many
def prepared(q: Question, stage: Stage, interval_scale: float) -> Setting:
    h, e = hardware.find(q.gpu), engines.get(q.engine)
    if refusal := e.SERVES.refusal(q.engine, q.model.architecture, q.dtype, max(q.tp, q.ep) * q.pp):
        raise ChipError(f"{q.model.name}: {refusal}")
    roof = roof_of(h, stage)
    as_run = _as_run(q, h, roof)
    decoder, p = as_run.decoder, as_run.precision
    check_dtype(roof, "matmul_" + p.matmul)
    if q.ep > 1:
        check_experts(decoder, q.tp, q.ep)
    if q.tp > 1:
        check_shards(decoder, q.tp, q.ep)
    version = _version(q, h)
    capability = hardware.capability(h)
    how = {
        "sdpa": q.sdpa, "version": q.engine_version, "deep_gemm": "on" if q.deep_gemm else "",
        "architecture": decoder.architecture, "alibi": "on" if decoder.alibi else "",
    }  # fmt: skip
    estimator = estimator_of(h, e.runs_as(capability, how), stage)
    measured = None
    if stage >= Stage.ENGINE:
        measured = engine_profile.find(h, q.engine, q.engine_profile, q.launch_ns, q.host)
    terms = EngineTerms(*measured.terms) if measured else None
    options = e.options(q.engine_settings, roof.memory_bytes)
    bare = replace(q, engine_profile="", launch_ns=0.0, host="", engine_settings=())
    if q == bare:
        scale = interval_scale or interval_class.scale_of(h, max(q.tp, q.ep, q.pp) > 1)
        of_version = version and version.on(capability)
        steps = StepModel(decoder, p, q.tp, q.engine, estimator, options, terms, of_version, q.ep, scale)
    else:  # the same operators under other terms
        steps = prepared(bare, stage, interval_scale).steps.under(terms, options)
    said = (
        *notes.of_calibration(h),
        notes.of_ceilings(roof, notes.of_points(h) if estimator.has_points else ""),
        e.CAVEAT,
        *as_run.notes,
        notes.of_formats(p.activation, estimator.kernels.measured_in(p.activation), h.sibling or roof.name)
        if h.points or h.sibling
        else "",
        engine_support.note(h.spec) if h.spec else "",
        *notes.of_terms(q, measured, version),
    )
    host, host_note = "", ""
    if measured and measured.host:
        host, host_note = hosts.REFERENCE, notes.of_host(q.engine, measured)
    elif measured:
        host = hosts.find(q.host).name if q.host else "own"
    return Setting(steps, roof, tuple(filter(None, said)), host, host_note)


def _version(q: Question, h: Hardware) -> EngineVersion | None:
    """What is known of the engine's version. Options that the engine or the GPU does not have are refused."""
    if q.sdpa and q.engine != "hf-eager":
        raise ChipError(f"--sdpa {q.sdpa[:40]} is for hf-eager, not for {q.engine}")
    if h.spec and (too_old := engine_support.too_old(q.engine, h.spec, q.engine_version)):
        raise ChipError(too_old)
    version = version_at(q.engine, engines.get(q.engine).VERSIONS, q.engine_version)
    if q.deep_gemm and q.engine != "vllm":
        raise ChipError(f"--deep-gemm is for vllm, not for {q.engine}")
    return version


def _as_run(q: Question, h: Hardware, roof: Roof) -> ServedModel:
    """The model in formats that the GPU can multiply."""
    p = precision(q.dtype, q.kv_dtype)
    if q.model.quantization and q.dtype == q.model.dtype:
        p = replace(p, per_layer=True)
    if p.weight != p.activation and "matmul_bf16" not in roof.compute:  # older GPUs multiply 16 bits as fp16 only
        p = replace(p, activation="fp16", matmul=p.matmul.replace("bf16", "fp16"))
    check_dtype(roof, "matmul_" + p.activation)
    return served(q.model, p, h.name, capability_of(h.spec), frozenset(roof.compute), q.engine, q.deep_gemm)


def room(q: Question, s: Scenario) -> dict[str, Any]:
    """The memory that a scenario needs, without its times."""
    _, _, needs = _prepare(q, s, ALL, 0.0)
    return needs


def _prepare(q: Question, s: Scenario, stage: Stage, interval_scale: float) -> tuple[Question, Setting, dict[str, Any]]:
    """The question without `auto`, its setting, and the memory that the scenario needs."""
    q = q.with_formats()
    s = q.scenario(*s.sizes)
    several.check(s, q.engine)
    of = setting(q, stage, interval_scale)
    needs = memory.needs(of.steps.decoder, s, q.engine, of.steps.precision, of.roof.memory_bytes, q.engine_settings)
    return q, of, needs


def predict(q: Question, s: Scenario, stage: Stage = ALL, interval_scale: float = 0.0) -> Prediction:
    """`s`: the batch of equal requests; formats and split are those of the question."""
    q, of, room = _prepare(q, s, stage, interval_scale)
    s, decoder, steps, roof = q.scenario(*s.sizes), q.model, of.steps, of.roof
    phases = several.phases(steps, s, q.gpu)
    said = [*notes.of_sizes(s, roof, room, decoder.max_context), *of.notes]
    said += several.notes(steps, s, q.gpu, phases)
    if steps.estimator.has_points:
        said += notes.of_points_missing(phases, s.output)
    if not room["fits"]:
        said += notes.of_narrower(q, s, steps.precision, roof)
    said += notes.of_more(steps, s)
    if decoder.quantization and q.dtype != decoder.dtype:
        said.append(f"the config's weights are {decoder.dtype} ({decoder.quantization}); answered as {s.dtype} instead")
    if of.host_note and (notes.waits(phases.prefill) or (phases.decode and notes.waits(phases.decode))):
        said.append(of.host_note)
    asked = {"model": decoder.name, "gpu": q.gpu, "engine": q.engine, "host": of.host}
    ridge = roof.ridge("matmul_" + steps.precision.matmul)
    s = s.stored_as(s.dtype, s.kv_dtype or steps.precision.activation)
    tpot_s = phases.decode.seconds if phases.decode else None
    of_request_s = steps.request_tpot_s(s.of_replica, tpot_s) if tpot_s and s.pp == 1 else tpot_s
    return Prediction(asked, s, phases.prefill, phases.decode, ridge, roof.power, room, said, decoder, of_request_s)
