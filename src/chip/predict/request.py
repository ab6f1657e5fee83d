"""The answer to one request: what `chip predict` prints as JSON, line by line or one document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from chip import engine_profile, engines, hardware
from chip.dtypes import precision
from chip.hardware import Hardware
from chip.models import library
from chip.models.decoder import Decoder
from chip.models.lower import check_shards
from chip.ops.attention import Attention
from chip.predict import memory
from chip.predict.answer import Prediction
from chip.predict.compose import Composer, Phase
from chip.predict.estimator import estimator_of
from chip.predict.learned import Learned
from chip.predict.overheads import WAITING, Overheads
from chip.predict.roof import Roof, check_dtype, roof_of
from chip.predict.stages import ALL, Stage
from chip.types import ChipError, Scenario

DEFAULTS: dict[str, Any] = {
    "gpu": "h200",
    "engine": "vllm",
    "batch": 1,
    "prompt": 1024,
    "output": 128,
    "dtype": "bf16",
    "tp": 1,
}
TEXTS = ("model", "gpu", "engine", "dtype")
KEYS = ("model", *DEFAULTS)
HOST_SHARE = 0.05  # of a phase: a device that waits for less sets the pace itself
LIMITS = {"batch": 1_000_000, "prompt": 100_000_000, "output": 100_000_000, "tp": 1024}


def answer(request: Mapping[str, Any], engine_file: str = "", sdpa: str = "", launch_ns: float = 0.0) -> dict[str, Any]:
    """Predict one scenario given as plain values; a ChipError says what is wrong with it. `engine_file`: terms of the
    engine on the asker's own host, instead of those that come with the GPU; `launch_ns`: the pace of that host."""
    return predict(*_understand(request), engine_file=engine_file, sdpa=sdpa, launch_ns=launch_ns).json()


def answer_line(
    request: Mapping[str, Any],
    defaults: Mapping[str, Any] = DEFAULTS,
    engine_file: str = "",
    sdpa: str = "",
    launch_ns: float = 0.0,
) -> str:
    """The same as one line of JSON; `defaults` stand in for the keys a request leaves out."""
    asked = _understand(request, defaults)
    return predict(*asked, engine_file=engine_file, sdpa=sdpa, launch_ns=launch_ns).line()


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
    sizes = [_count(values, key) for key in ("batch", "prompt", "output")]
    return Scenario(sizes[0], sizes[1], sizes[2], values["dtype"], _count(values, "tp"))


def _count(values: Mapping[str, Any], key: str) -> int:
    value = values[key]
    if isinstance(value, bool) or not isinstance(value, int):
        raise ChipError(f"{key} must be a whole number, got {str(value)[:40]!r}")
    if not 1 <= value <= LIMITS[key]:
        raise ChipError(f"{key} must be between 1 and {LIMITS[key]}, got {str(value)[:40]}")
    return value


@lru_cache(maxsize=256)
def composer(
    decoder: Decoder,
    gpu: str,
    engine: str,
    dtype: str,
    tp: int,
    stage: Stage = ALL,
    engine_file: str = "",
    sdpa: str = "",
    launch_ns: float = 0.0,
) -> tuple[Composer, Roof]:
    """Everything of a prediction that batch and lengths do not change."""
    h = hardware.find(gpu)
    roof = roof_of(h, stage)
    p = precision(dtype)
    if p.weight != p.activation and "matmul_bf16" not in roof.compute:  # older GPUs multiply 16 bits as fp16 only
        p = replace(p, activation="fp16", matmul=p.matmul.replace("bf16", "fp16"))
    check_dtype(roof, "matmul_" + p.matmul)
    check_dtype(roof, "matmul_" + p.activation)
    if tp > 1:
        check_shards(decoder, tp)
    overheads = _overheads(h, engine, decoder.architecture, engine_file, launch_ns) if stage >= Stage.ENGINE else None
    estimator = estimator_of(h, _runs_as(engine, sdpa), stage)
    return Composer(decoder, p, tp, engine, estimator, overheads), roof


def _runs_as(engine: str, sdpa: str) -> Mapping[str, str]:
    runs_as = engines.get(engine).RUNS_AS
    if not sdpa:
        return runs_as
    from chip.engines import hf_eager  # others do not need it

    if engine != hf_eager.NAME or sdpa not in hf_eager.SDPA:
        raise ChipError(f"--sdpa {sdpa[:40]}: {hf_eager.NAME} is predicted with {' or '.join(hf_eager.SDPA)}, no other")
    return {**runs_as, Attention.kind: sdpa}


def _overheads(h: Hardware, engine: str, family: str, engine_file: str, launch_ns: float) -> Overheads | None:
    given = engine_profile.given(Path(engine_file), h, engine) if engine_file else None
    found = given or engine_profile.find(h, engine)
    if found is None:
        return None
    if launch_ns and found.launch_ns:
        return Overheads(engine_profile.at_pace(found, family, launch_ns), paced=True)
    if given is None and engine_profile.is_bundled(h):
        return Overheads(engine_profile.elsewhere(found.terms_of(family)), found.cpu)
    return Overheads(engine_profile.here(found.terms_of(family)))


def predict(
    decoder: Decoder,
    gpu: str,
    engine: str,
    s: Scenario,
    stage: Stage = ALL,
    engine_file: str = "",
    sdpa: str = "",
    launch_ns: float = 0.0,
) -> Prediction:
    """`sdpa`: what hf-eager's prefill attends with; "" for torch's choice. `launch_ns`: what the host takes for a small
    kernel; 0 for the pace that its terms were measured at."""
    c, roof = composer(decoder, gpu, engine, s.dtype, s.tp, stage, engine_file, sdpa, launch_ns)
    prefill = c.phase(c.engine.prefill(s, roof.memory_bytes), s)
    decode = None
    if s.output > 1:
        lowered = c.lowered(prefill) / (s.output - 1)
        decode = c.phase(c.engine.decode(s, roof.memory_bytes, c.panels(s), c.windows), lowered=lowered)
    room = memory.needs(decoder, s, engine, c.precision, roof.memory_bytes)
    asked = {"model": decoder.name, "gpu": gpu, "engine": engine}
    ridge = roof.ridge("matmul_" + c.precision.matmul)
    said = notes(s, roof, room, decoder.max_context, c.engine.CAVEAT)
    if isinstance(c.estimator, Learned):
        said += _said_of_dtype(c.precision.activation, c.estimator.learned_in(c.precision.activation), roof.name)
    if launch_ns and not c.overheads.paced:
        said.append(f"the pace of the host is not used: no terms of {engine} on {gpu} tell at which pace they hold")
    if c.overheads.reference and (_waits(prefill) or (decode and _waits(decode))):
        said.append(
            f"the host sets the pace, and its terms are of the reference host ({c.overheads.reference}); "
            f"`chip calibrate --engine {engine}` measures yours"
        )
    return Prediction(asked, s, prefill, decode, ridge, roof.power, room, said)


def _said_of_dtype(asked: str, measured: str, gpu: str) -> list[str]:
    if not measured:
        return [f"no operator was measured in {asked} on {gpu}: all are the calibrated roofline's"]
    return [] if measured == asked else [f"operators were measured in {measured} on {gpu}; those answer for {asked}"]


def _waits(phase: Phase) -> bool:
    """Whether its device waits for the host, and for more than it may where the device is called busy."""
    return any(line.role == WAITING and line.seconds > HOST_SHARE * phase.seconds for line in phase.lines)


def notes(s: Scenario, roof: Roof, room: Mapping[str, Any], max_context: int, caveat: str) -> list[str]:
    """What a reader must know beside the numbers."""
    out = []
    if not room["fits"]:
        out.append(
            f"does not fit: needs {room['total_bytes'] / 2**30:.1f} GiB a GPU, {roof.name} has "
            f"{roof.memory_bytes / 2**30:.1f} GiB; times are as if it did"
        )
    if max_context and s.prompt + s.output > max_context:
        out.append(f"prompt + output exceed the model's context of {max_context} tokens")
    if roof.source == "datasheet":
        out.append(f"{roof.name} was never calibrated: rests on {roof.basis}")
    if caveat:
        out.append(caveat)
    return out
