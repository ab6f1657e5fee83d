"""A client's figures against the simulation of what it asked, and where the difference of a request's time lies.

The parts of a request's mean time are read off both sides' figures in the same way: its steps (the median time between
chunks is a step of decodes alone), what prompts of others add to them (mean TPOT less that median), its own prompt (the
median TTFT) and the queue (the mean TTFT beyond it). What sets a part is said by the simulation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chip import engines
from chip.decoders import library
from chip.decoders.decoder import Decoder
from chip.hardware import gpus
from chip.question import SYSTEM
from chip.simulator.answer import Simulation
from chip.simulator.setup import Setup, setup
from chip.simulator.simulation import simulate
from chip.types import ChipError
from chip.validate.client_result import NAMES, ClientResult

SCHEMA = "chip.client_validation/1"
SHOWN = ("mean_ttft_ms", "median_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms", "median_itl_ms", "p99_itl_ms",
         "mean_e2el_ms", "output_throughput")  # fmt: skip
OWN = {"ttft": "ttft_ms", "tpot": "tpot_ms", "itl": "itl_ms", "e2el": "e2e_ms", "median": "p50"}
FIGURE = re.compile(r"(mean|median|p\d+)_(\w+)_ms")
VARIANTS = ("-instruct", "-chat", "-it", "-hf", "-bf16", "-base", "-v0.3", "-v0.2", "-2507")
DRAWS = 20


@dataclass(frozen=True, slots=True)
class JudgedFigure:
    name: str
    predicted: float
    low: float | None
    high: float | None
    measured: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def inside(self) -> bool | None:
        return None if self.low is None or self.high is None else self.low <= self.measured <= self.high


@dataclass(frozen=True, slots=True)
class TimePart:
    """Of a request's mean time, in milliseconds."""

    name: str
    predicted: float
    measured: float
    set_by: str


@dataclass(frozen=True, slots=True)
class JudgedResult:
    result: ClientResult
    model: str
    gpu: str
    figures: tuple[JudgedFigure, ...]
    parts: tuple[TimePart, ...]
    notes: tuple[str, ...]

    def figure(self, name: str) -> JudgedFigure | None:
        return next((f for f in self.figures if f.name == name), None)


def judge(result: ClientResult, system: Mapping[str, Any], draws: int = DRAWS) -> JudgedResult:
    """`system`: fields of the question that the asker gives, which go before what the file says."""
    model, asked = system_for(result, system)
    behind = engines.get(asked["engine"]).server() is not None
    simulated = simulate(model, workload=result.workload, draws=draws, server=behind, **asked)
    notes = [*result.notes, *simulated.notes]
    if result.server and asked["engine"] not in result.server.lower():
        notes.append(f"measured with {result.server[:40]}; the prediction is of {asked['engine']}")
    elif not behind:
        notes.append(f"the prediction is of {asked['engine']} in its caller's process: nobody measured a server of it")
    figures = tuple(_figures(result, simulated))
    return JudgedResult(
        result, model.name, str(asked["gpu"]), figures, tuple(_parts(result, simulated)), tuple(dict.fromkeys(notes))
    )


def system_for(result: ClientResult, system: Mapping[str, Any]) -> tuple[Decoder, dict[str, Any]]:
    """The model that was served, and all else that a question says of the machine."""
    asked = dict(system)
    model = model_of(str(asked.pop("model", "") or result.model), result)
    gpu = str(asked.pop("gpu", "") or gpu_of(result.gpu))
    if not gpu:
        raise ChipError(f"{result.path}: does not say on which GPU it was measured; give --gpu")
    told = {"tp": result.tp, "ep": result.ep, "dtype": result.dtype, "engine_settings": dict(result.settings)}
    served = next((name for name in engines.names() if name in result.server.lower()), SYSTEM["engine"])
    return model, {"gpu": gpu, "engine": served, **{k: v for k, v in told.items() if v}, **asked}


def model_of(name: str, result: ClientResult) -> Decoder:
    """The bundled model that a served name means: a path's last part, without what training for chat adds."""
    short = name.replace("\\", "/").rstrip("/").rpartition("/")[2].lower().removeprefix("meta-")
    candidates = [short]
    for variant in VARIANTS:
        candidates += [c.replace(variant, "") for c in candidates if variant in c]
    for candidate in candidates:
        if candidate in library.names():
            return library.find(candidate)
    if not name:
        raise ChipError(f"{result.path}: does not say which model was served; give --model")
    try:
        return library.find(name)
    except ChipError:
        raise ChipError(f"{result.path}: was served as {name[:60]!r}, which is no known model; give --model") from None


def gpu_of(name: str) -> str:
    return gpus.match_device(name) if name else ""


def _figures(result: ClientResult, simulated: Simulation) -> list[JudgedFigure]:
    answer, found = simulated.json(), []
    for name in NAMES:
        measured, predicted = result.figures.get(name), answer.get(name)
        if measured and predicted:
            low, high = _interval(answer, name)
            found.append(JudgedFigure(name, predicted, low, high, measured))
    return found


def _interval(answer: Mapping[str, Any], name: str) -> tuple[float | None, float | None]:
    """That of the simulation's own figure, which takes percentiles in another way, around the client's."""
    interval, match = answer["interval"], FIGURE.fullmatch(name)
    if not interval:
        return None, None
    if not match:
        return tuple(interval["output_tokens_per_s"]) if name == "output_throughput" else (None, None)
    figure, part = OWN[match[2]], OWN.get(match[1], match[1])
    ends = interval.get(figure, {}).get(part)
    if not ends or not answer[figure][part]:
        return None, None
    scale = answer[name] / answer[figure][part]
    return ends[0] * scale, ends[1] * scale


def _parts(result: ClientResult, simulated: Simulation) -> list[TimePart]:
    measured, predicted = result.figures, simulated.json()
    step = next((n for n in ("median_itl_ms", "median_tpot_ms", "mean_tpot_ms") if n in measured), "")
    if not step or "mean_tpot_ms" not in measured or "mean_ttft_ms" not in measured:
        return []
    gaps = max(0.0, sum(result.workload.output) / len(result.workload) - 1)
    by_step, by_prompt = _bounds(simulated)
    names = ("its steps", "prompts of others", "its own prompt", "queue")
    set_by = (by_step, by_prompt, by_prompt, "waiting for a turn")
    return [TimePart(*part) for part in zip(names, _split(predicted, step, gaps), _split(measured, step, gaps), set_by)]


def _split(figures: Mapping[str, float], step: str, gaps: float) -> tuple[float, float, float, float]:
    """A request's mean time, in milliseconds."""
    prompt = figures.get("median_ttft_ms", figures["mean_ttft_ms"])
    others = gaps * (figures["mean_tpot_ms"] - figures[step])
    return gaps * figures[step], others, prompt, figures["mean_ttft_ms"] - prompt


def _bounds(simulated: Simulation) -> tuple[str, str]:
    """What sets a step of decodes and one with a prompt, at the mean load of the simulation."""
    made: Setup = setup(simulated.fleet)
    tpot_s = simulated.tpot_s.mean if simulated.tpot_s else 0.0
    decodes = max(1, round(simulated.output_tokens_per_s * tpot_s / simulated.fleet.replicas))
    served = simulated.of_tools
    prompt = max(1, served["total_input_tokens"] // max(1, simulated.completed))
    context = prompt + served["total_output_tokens"] / max(1, simulated.completed) / 2
    line, host = made.surface.decode(decodes, context), made.surface.host(decodes, decodes, True)
    chunk = min(prompt, made.settings.max_num_batched_tokens)
    device_s = made.surface.mixed(decodes, context, [(chunk, 0)]).seconds
    launch_s = made.surface.host(decodes + 1, decodes + chunk, False).launch_s
    loop_s = made.server.step_s + decodes * made.server.token_s
    of_step = max((line.seconds, "the GPU"), (host.prepare_s, "the host"), (loop_s, "the server"))[1]
    return of_step, "the host" if launch_s > device_s else "the GPU"


def document(judged: Sequence[JudgedResult]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "results": [
            {"client": j.result.client, "file": str(j.result.path), "title": j.result.title, "model": j.model}
            | {"gpu": j.gpu, "users": j.result.workload.users, "rate_per_s": j.result.workload.rate_per_s}
            | {"requests": len(j.result.workload), "notes": list(j.notes)}
            | {
                "figures": [
                    {"metric": f.name, "predicted": f.predicted, "low": f.low, "high": f.high, "measured": f.measured}
                    | {"error": f.error, "inside": f.inside}
                    for f in j.figures
                ],
                "parts": [
                    {"part": p.name, "predicted_ms": p.predicted, "measured_ms": p.measured, "set_by": p.set_by}
                    | {"difference_ms": p.predicted - p.measured}
                    for p in j.parts
                ],
            }
            for j in judged
        ],
    }
