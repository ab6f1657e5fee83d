"""The notes of an answer: what a reader must know beside the numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from chip import engines, hardware, hosts
from chip.dtypes import Precision, precision
from chip.engine_profile import FoundTerms
from chip.engines.versions import EngineVersion
from chip.hardware import Hardware
from chip.predict import memory
from chip.predict.limits import OF_POINTS
from chip.predict.phase import Phase
from chip.predict.roof import Roof
from chip.predict.several import Phases
from chip.predict.steps import ENGINE, WAITING, StepModel
from chip.question import Question
from chip.types import DISTURBED, Scenario

HOST_SHARE = 0.05  # a phase whose device waits for more than this part of it is limited by the host
FEWER = 0.004  # a note is written if more than this part of requests x decode steps is missing, as some end early
UNMEASURED = 0.1  # a note is written if no point answers for this part of the operators' time
NAMED = 4  # roles that this note names
NARROWER = ("fp8", "int8", "int4")


def of_sizes(s: Scenario, roof: Roof, room: Mapping[str, Any], max_context: int) -> Iterator[str]:
    if not room["fits"]:
        yield (
            f"does not fit: needs {room['total_bytes'] / 2**30:.1f} GiB a GPU, {roof.name} has "
            f"{roof.memory_bytes / 2**30:.1f} GiB, the engine uses {room['usable_bytes'] / 2**30:.1f}; "
            "times are as if it did"
        )
    context = room.get("max_model_len", max_context)
    if context and s.prompt + s.output > context:
        limit = "the model's context of" if context == max_context else "max_model_len,"
        yield f"prompt + output exceed {limit} {context} tokens"
    capacity = room.get("kv_capacity_tokens", context)
    if room["fits"] and capacity < context:
        yield over_capacity(context, capacity)


def over_capacity(context: int, capacity: int) -> str:
    """Where vLLM asks for a shorter context before it starts."""
    return (
        f"a context of {context} tokens exceeds the KV cache of {capacity}: vLLM does not start without "
        f"max_model_len={capacity} or less"
    )


def of_ceilings(roof: Roof, points: str = "") -> str:
    """`points`: what of points answers, where there are any."""
    if roof.source != "datasheet":
        return ""
    return f"{roof.name} was never calibrated: {points + '; all else: ' if points else ''}ceilings are {roof.basis}"


def of_points(h: Hardware) -> str:
    """What rests on points, of the GPU itself or of another of its chip."""
    if h.sibling:
        whose = "CHIP measured" if h.sibling in hardware.profile_names() else "others published"
        return f"operators are times that {whose} on {h.sibling}, of the same chip, carried over by the ratio of rates"
    least = f", none less than on {h.faster}, of the same chip" if h.faster else ""
    return f"products, attention, experts and collectives are times that others published{least}" if h.points else ""


def of_calibration(h: Hardware) -> Iterator[str]:
    """What makes the ceilings of a GPU or CPU doubtful."""
    for flag in h.profile.flags if h.profile else ():
        yield f"{h.name} was disturbed while it was calibrated: {flag.removeprefix(DISTURBED)}; calibrate it again"


def of_formats(asked: str, measured: str, gpu: str) -> str:
    """`asked`: the number format of the operators. `measured`: that of the points that answer for them."""
    if not measured:
        return f"no operator was measured in {asked} on {gpu}: all are base times under its ceilings"
    return "" if measured == asked else f"operators were measured in {measured} on {gpu}; those answer for {asked}"


def of_terms(q: Question, found: FoundTerms | None, version: EngineVersion | None) -> Iterator[str]:
    latency = q.launch_ns or hosts.find(q.host or hosts.REFERENCE).launch_ns
    if latency and not (found and found.at_latency):
        name = "--launch-ns" if q.launch_ns else "--host"
        yield f"{name} is not used: no terms of {q.engine} tell at which launch latency they hold"
    if q.engine_version and version and found:
        yield f"{q.engine} {q.engine_version}: {version.source}; its terms were measured with a newer version"


def of_host(engine: str, found: FoundTerms) -> str:
    """For a prediction that is limited by the host, and takes the terms of the reference host."""
    if found.at_latency:
        return (
            f"limited by the host: what {engine} does beside its operators is taken from the reference host "
            f"({found.host}), at the {found.launch_ns / 1e3:.3g} us that this CPU takes for a tiny operator; the "
            f"interval holds half to {found.off:g} times of it. `chip calibrate --engine {engine}` measures it here"
        )
    launches = f", which launches a kernel in {found.launch_ns / 1e3:.3g} us" if found.launch_ns else ""
    return (
        f"limited by the host, and its terms are of the reference host ({found.host}{launches}); the interval holds "
        f"hosts up to {found.off:g} times as fast or as slow. `chip calibrate --host` measures yours in half a minute, "
        f"`chip calibrate --engine {engine}` more closely"
    )


def of_points_missing(found: Phases, output: int) -> Iterator[str]:
    """For a GPU with points: where much of the operators' time rests on none."""
    phases = [(n, phase) for n, phase in ((1, found.prefill), (output - 1, found.decode)) if phase]
    total = sum([n * (phase.seconds - phase.seconds_by_source.get(ENGINE, 0.0)) for n, phase in phases])
    measured = sum([n * phase.seconds_by_source.get(source, 0.0) for n, phase in phases for source in OF_POINTS])
    if total - measured < UNMEASURED * total:
        return
    time_by: dict[str, float] = {}
    for n, phase in phases:
        for line in phase.lines:
            if line.source not in OF_POINTS and line.kind != ENGINE:
                time_by[line.role] = time_by.get(line.role, 0.0) + n * line.seconds
    if roles := sorted(time_by, key=time_by.__getitem__, reverse=True):
        share, more = 100 * (1 - measured / total), f" and {len(roles) - NAMED} more" if len(roles) > NAMED else ""
        yield f"{share:.0f} % of the operators' time has no measured point: {', '.join(roles[:NAMED])}{more}"


def of_narrower(q: Question, s: Scenario, asked: Precision, roof: Roof) -> Iterator[str]:
    """The widest format that the GPU multiplies and in which the model fits: `fits with --dtype int4 (42.1 GiB)`."""
    d, weights = q.model, memory.fixed(q.model, asked, s.tp, s.ep).weight_bytes
    for name, kv in product(NARROWER, ("", "fp8") if engines.get(q.engine).QUANTISED_CACHE else ("",)):
        p = precision(name, kv or asked.kv)
        multiplied = p.matmul == p.activation or f"matmul_{p.matmul}" in roof.compute
        narrower = multiplied and memory.fixed(d, p, s.tp, s.ep).weight_bytes < weights
        if narrower and (room := memory.needs(d, s, q.engine, p, roof.memory_bytes, q.engine_settings))["fits"]:
            gib = room["total_bytes"] / 2**30
            yield f"fits with --dtype {name}{' --kv-dtype fp8' if kv else ''} ({gib:.1f} GiB)"
            return


def of_more(steps: StepModel, s: Scenario) -> Iterator[str]:
    """Why more requests or tokens may take less time."""
    yield from steps.remarks(s)
    first, _ = steps.prefill_steps(s)[0]
    if first.graph and first.pad_tokens > s.batch * s.prompt:
        yield (
            f"the prompt runs in a CUDA graph of {first.tokens} tokens; several prompts are launched kernel by kernel, "
            "without padding, so that more may take less time"
        )
    last, fewer = steps.ending(s)
    if last and min(1.0, last / (s.output - 1)) * (1 - fewer / s.batch) > FEWER:
        yield (
            f"first tokens come in {last + 1} steps, so the first requests end {last} steps before the last: TPOT is "
            "the mean of all steps, the last ones of fewer requests; more requests or tokens may bring it down"
        )


def waits(phase: Phase) -> bool:
    """Whether the phase is limited by the host: the device waits for it for more than `HOST_SHARE`."""
    least_s = HOST_SHARE * phase.seconds
    return any(n.role == WAITING and n.seconds > least_s for n in phase.lines)
