"""From a question to a prediction: for `chip predict`, `chip serve` and `chip.predict(...)`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from chip import engines
from chip.decoders.formats import UNIFORM
from chip.decoders.lower import check_experts, check_shards
from chip.dtypes import precision
from chip.engines import profile
from chip.engines.formats import GpuFormats, ServedModel, served
from chip.engines.sampling import GREEDY, parts_of
from chip.hardware import gpus, hosts
from chip.hardware.gpus import Hardware
from chip.predictor import basis, memory, notes, parallel
from chip.predictor.estimator import estimator_of
from chip.predictor.images import with_image
from chip.predictor.parallel import Phases
from chip.predictor.phase import request_tpot_s
from chip.predictor.prediction import Prediction
from chip.predictor.roof import Roof, check_dtype, roof_of
from chip.predictor.stages import ALL, Stage
from chip.predictor.steps import EngineTerms, StepModel, step_model
from chip.question import DEFAULTS, Question, complete, image_tokens_of, question_of, scenario_of
from chip.types import ChipError, Scenario


def answer(values: Mapping[str, Any], defaults: Mapping[str, Any] = DEFAULTS, stage: Stage = ALL) -> dict[str, Any]:
    """Predict one scenario given as plain values; a ChipError says what is wrong with it."""
    return predict_values(values, defaults, stage).json()


def answer_line(values: Mapping[str, Any], defaults: Mapping[str, Any] = DEFAULTS) -> str:
    """The same as one line of JSON; `defaults` stand in for the keys it leaves out."""
    return predict_values(values, defaults).line()


def predict_values(values: Mapping[str, Any], defaults: Mapping[str, Any] = DEFAULTS, stage: Stage = ALL) -> Prediction:
    complete_values = complete(values, defaults)
    return predict_batch(complete_values, question_of(complete_values), stage)


def predict_batch(values: Mapping[str, Any], question: Question, stage: Stage = ALL) -> Prediction:
    """The batch of equal requests that complete values ask for, with images where they say so."""
    image_tokens = image_tokens_of(values)
    found = predict(question, scenario_of(values, question), stage)
    if not image_tokens:
        return found
    return with_image(found, setting(question.with_formats(), stage).steps, image_tokens)


LIKE_ANOTHER = 1.5  # times as wide intervals are where another engine's kernels stand in


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
    h, e = gpus.find(q.gpu), engines.get(q.engine)
    if refusal := e.SERVES.refusal(q.engine, q.model.architecture, q.dtype, q.tp, q.pp, q.ep):
        raise ChipError(f"{q.model.name}: {refusal}")
    if h.spec and (too_old := e.too_old(h.spec, q.engine_version)):
        raise ChipError(too_old)
    version, capability = e.version(q.engine_version), gpus.capability(h)
    roof = roof_of(h, stage)
    options = e.options(q.engine_settings, roof.memory_bytes)
    as_run = _as_run(q, h, roof, options)
    decoder, p = as_run.decoder, as_run.precision
    check_dtype(roof, "matmul_" + p.matmul)
    if q.ep > 1:
        check_experts(decoder, q.tp, q.ep)
    if q.tp > 1:
        check_shards(decoder, q.tp, q.ep)
    estimator = estimator_of(h, e.runs_as(capability, decoder, options, q.engine_version), stage)
    measured = None
    if stage.has_terms:
        measured = profile.find(h, q.engine, q.engine_profile, q.launch_ns, q.host, e.LIKE)
    terms = EngineTerms(*measured.terms) if measured else None
    several = max(q.tp, q.ep, q.pp) > 1
    scale = interval_scale or basis.scale_of(h, several) * (LIKE_ANOTHER if e.LIKE else 1.0)
    of_version = version.on(capability)
    sampling = parts_of(q.sampling) if q.sampling != GREEDY else ()
    steps = step_model(decoder, p, q.tp, q.engine, estimator, options, terms, of_version, q.ep, scale, sampling)
    said = (
        basis.not_usable(h, several),
        *notes.of_calibration(h),
        notes.of_ceilings(roof, notes.of_points(h) if estimator.has_points else ""),
        "" if roof.is_cpu else e.CAVEAT,  # each is of a GPU's kernels
        *as_run.notes,
        notes.of_formats(p.activation, estimator.kernels.measured_in(p.activation), h.sibling or roof.name)
        if h.points or h.sibling
        else "",
        notes.of_torch(h.spec) if h.spec else "",
        *notes.of_terms(q, measured),
        notes.of_sampling(q.sampling) if sampling else "",
    )
    host, host_note = "", ""
    if measured and measured.host:
        host, host_note = hosts.REFERENCE, notes.of_host(q.engine, measured)
    elif measured:
        host = hosts.find(q.host).name if q.host else "own"
    return Setting(steps, roof, tuple(filter(None, said)), host, host_note)


def _as_run(q: Question, h: Hardware, roof: Roof, options: Any) -> ServedModel:
    """The model in formats that the GPU can multiply."""
    p = precision(q.dtype, q.kv_dtype)
    if q.model.quantization and q.dtype == q.model.dtype:
        p = replace(p, per_layer=True)
    if p.weight != p.activation and "matmul_bf16" not in roof.compute:  # older GPUs multiply 16 bits as fp16 only
        p = replace(p, activation="fp16", matmul=p.matmul.replace("bf16", "fp16"))
    check_dtype(roof, "matmul_" + p.activation)
    if not p.per_layer and p.name not in UNIFORM and p.kv != "fp8":
        return ServedModel(q.model, p, ())
    formats = GpuFormats(h.name, round(10 * gpus.capability(h)), frozenset(roof.compute))
    return served(q.model, p, formats, engines.get(q.engine), options)


def room(q: Question, s: Scenario) -> dict[str, Any]:
    """The memory that a scenario needs, without its times."""
    q = q.with_formats()
    return _room(setting(q), q.scenario(*s.sizes))


def _room(of: Setting, s: Scenario) -> dict[str, Any]:
    steps, run, roof = of.steps, of.steps.operators, of.roof
    return memory.needs(run.decoder, s, steps.engine, run.precision, roof.memory_bytes, steps.options, roof.is_cpu)


def predict(q: Question, s: Scenario, stage: Stage = ALL, interval_scale: float = 0.0) -> Prediction:
    """`s`: the batch of equal requests; formats and split are those of the question."""
    q = q.with_formats()
    of, s = setting(q, stage, interval_scale), q.scenario(*s.sizes)
    steps, roof, room = of.steps, of.roof, _room(of, s)
    if s.pp > 1:
        phases = parallel.pipelined(steps, s, q.gpu)
    else:  # of one replica, with its part of the requests: all replicas take as long
        prefill = steps.prefill(s.of_replica)
        phases = Phases(prefill, steps.decode(s.of_replica, prefill) if s.output > 1 else None, 1)
    told = [*notes.of_answer(q, s, of.steps, roof, room, phases, of.notes)]
    if of.host_note and (notes.waits(phases.prefill) or (phases.decode and notes.waits(phases.decode))):
        told.append(of.host_note)
    about = {"model": q.model.name, "gpu": q.gpu, "engine": q.engine, "host": of.host}
    ridge = roof.ridge("matmul_" + steps.operators.precision.matmul)
    if not s.kv_dtype:
        s = s.stored_as(s.dtype, steps.operators.precision.activation)
    tpot_s = request_tpot_s(phases.prefill, phases.decode, s.of_replica) if phases.decode else None
    return Prediction(about, s, phases.prefill, phases.decode, ridge, roof.power, room, told, q.model, tpot_s)
