"""The notes of an answer: what a reader must know beside the numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from chip import engines
from chip.decoders.decoder import Decoder
from chip.dtypes import precision
from chip.engines import Engine
from chip.engines.profile import FoundTerms
from chip.hardware import gpus, hosts
from chip.hardware.gpus import Hardware
from chip.predictor import memory, parallel
from chip.predictor.operator_time import OF_POINTS
from chip.predictor.parallel import Phases
from chip.predictor.phase import ENGINE, Phase
from chip.predictor.roof import Roof
from chip.predictor.steps import WAITING, StepModel
from chip.question import Question
from chip.types import DISTURBED, HardwareSpec, Scenario

HOST_SHARE = 0.05  # a phase whose device waits for more than this part of it is limited by the host
FEWER = 0.004  # a note is written if more than this part of requests x decode steps is missing, as some end early
UNMEASURED = 0.1  # a note is written if no point answers for this part of the operators' time
NAMED = 4  # roles that this note names
NARROWER = ("fp8", "int8", "int4")
# PyTorch builds that still hold kernels for GPUs before Turing: pytorch/pytorch issues 157517, 172352 and 190385.
OLD_TORCH = "7.5"
OLD_TORCH_NOTE = (
    "PyTorch for it: the CUDA 12.6 wheels (pip install torch --index-url https://download.pytorch.org/whl/cu126), the "
    "last of them PyTorch 2.14; CUDA 12.8 and later have no kernels for GPUs before Turing"
)


def of_answer(
    q: Question, s: Scenario, steps: StepModel, roof: Roof, room: Mapping[str, Any], phases: Phases,
    of_setting: Sequence[str],
) -> Iterator[str]:  # fmt: skip
    """All notes of an answer, but for that on its host. `of_setting`: those whatever batch and lengths."""
    yield from of_sizes(s, roof, room, q.model.max_context, steps.engine)
    yield from of_setting
    if s.gpus > 1:
        yield from parallel.notes(steps, s, q.gpu, phases)
    if steps.estimator.has_points:
        yield from of_points_missing(phases, s.output)
    if not room["fits"]:
        yield from of_narrower(q.model, s, steps, roof)
    yield from of_more(steps, s)
    if q.model.quantization and q.dtype != q.model.dtype:
        yield f"the config's weights are {q.model.dtype} ({q.model.quantization}); answered as {s.dtype} instead"


def of_sizes(s: Scenario, roof: Roof, room: Mapping[str, Any], max_context: int, engine: Engine) -> Iterator[str]:
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
        yield engine.over_capacity(context, capacity)


def of_ceilings(roof: Roof, points: str = "") -> str:
    """`points`: what of points answers, where there are any."""
    if roof.source != "datasheet":
        return ""
    return f"{roof.name} was never calibrated: {points + '; all else: ' if points else ''}ceilings are {roof.basis}"


def of_points(h: Hardware) -> str:
    """What rests on points, of the GPU itself or of another of its chip."""
    if h.sibling:
        whose = "CHIP measured" if h.sibling in gpus.profile_names() else "others published"
        return f"operators are times that {whose} on {h.sibling}, of the same chip, carried over by the ratio of rates"
    least = f", none less than on {h.faster}, of the same chip" if h.faster else ""
    return f"products, attention, experts and collectives are times that others published{least}" if h.points else ""


def of_calibration(h: Hardware) -> Iterator[str]:
    """What makes the ceilings of a GPU or CPU doubtful."""
    for flag in h.profile.flags if h.profile else ():
        yield f"{h.name} was disturbed while it was calibrated: {flag.removeprefix(DISTURBED)}; calibrate it again"


def of_formats(wanted: str, measured: str, gpu: str) -> str:
    """`wanted`: the number format of the operators. `measured`: that of the points that answer for them."""
    if not measured:
        return f"no operator was measured in {wanted} on {gpu}: all are base times under its ceilings"
    return "" if measured == wanted else f"operators were measured in {measured} on {gpu}; those answer for {wanted}"


def of_terms(q: Question, terms: FoundTerms | None) -> Iterator[str]:
    latency = q.launch_ns or (hosts.find(q.host).launch_ns if q.host else 0.0)
    if latency and not (terms and terms.at_latency):
        name = "--launch-ns" if q.launch_ns else "--host"
        yield f"{name} is not used: no terms of {q.engine} tell at which launch latency they hold"
    if q.engine_version and terms:
        source = engines.get(q.engine).version(q.engine_version).source
        yield f"{q.engine} {q.engine_version}: {source}; its terms were measured with a newer version"


def of_host(engine: str, terms: FoundTerms) -> str:
    """For a prediction that is limited by the host, and takes the terms of the reference host."""
    if terms.at_latency:
        return (
            f"limited by the host: what {engine} does beside its operators is taken from the reference host "
            f"({terms.host}), at the {terms.launch_ns / 1e3:.3g} us that this CPU takes for a tiny operator; the "
            f"interval holds half to {terms.off:g} times of it. `chip calibrate --engine {engine}` measures it here"
        )
    launches = f", which launches a kernel in {terms.launch_ns / 1e3:.3g} us" if terms.launch_ns else ""
    return (
        f"limited by the host, and its terms are of the reference host ({terms.host}{launches}); the interval holds "
        f"hosts up to {terms.off:g} times as fast or as slow. `chip calibrate --host` measures yours in half a minute, "
        f"`chip calibrate --engine {engine}` more closely"
    )


def of_points_missing(phases: Phases, output: int) -> Iterator[str]:
    """For a GPU with points: where much of the operators' time rests on none."""
    weighted = [(n, phase) for n, phase in ((1, phases.prefill), (output - 1, phases.decode)) if phase]
    total = sum([n * (phase.seconds - phase.engine_s) for n, phase in weighted])
    measured = sum([n * phase.points_s for n, phase in weighted])
    if total - measured < UNMEASURED * total:
        return
    time_by: dict[str, float] = {}
    for n, phase in weighted:
        for line in phase.lines:
            if line.source not in OF_POINTS and line.kind != ENGINE:
                time_by[line.role] = time_by.get(line.role, 0.0) + n * line.seconds
    if roles := sorted(time_by, key=time_by.__getitem__, reverse=True):
        share, more = 100 * (1 - measured / total), f" and {len(roles) - NAMED} more" if len(roles) > NAMED else ""
        yield f"{share:.0f} % of the operators' time has no measured point: {', '.join(roles[:NAMED])}{more}"


def of_narrower(d: Decoder, s: Scenario, steps: StepModel, roof: Roof) -> Iterator[str]:
    """The widest format that the GPU multiplies and in which the model fits: `fits with --dtype int4 (42.1 GiB)`."""
    engine, wide = steps.engine, steps.operators.precision
    weight_bytes = memory.fixed(d, wide, s.tp, s.ep).weight_bytes
    for name, kv in product(NARROWER, ("", "fp8") if engine.QUANTISED_CACHE else ("",)):
        p = precision(name, kv or wide.kv)
        multiplied = p.matmul == p.activation or f"matmul_{p.matmul}" in roof.compute
        if not multiplied or memory.fixed(d, p, s.tp, s.ep).weight_bytes >= weight_bytes:
            continue
        room = memory.needs(d, s, engine, p, roof.memory_bytes, steps.options)
        if room["fits"]:
            gib = room["total_bytes"] / 2**30
            yield f"fits with --dtype {name}{' --kv-dtype fp8' if kv else ''} ({gib:.1f} GiB)"
            return


def of_more(steps: StepModel, s: Scenario) -> Iterator[str]:
    """Why more requests or tokens may take less time."""
    planned = steps.schedule(s)
    first, _ = planned.prefill[0]
    if first.graph and first.pad_tokens > s.batch * s.prompt:
        yield (
            f"the prompt runs in a CUDA graph of {first.tokens} tokens; several prompts are launched kernel by kernel, "
            "without padding, so that more may take less time"
        )
    last, fewer = planned.last, planned.fewer
    if last and min(1.0, last / (s.output - 1)) * (1 - fewer / s.batch) > FEWER:
        yield (
            f"first tokens come in {last + 1} steps, so the first requests end {last} steps before the last: TPOT is "
            "the mean of all steps, the last ones of fewer requests; more requests or tokens may bring it down"
        )


def waits(phase: Phase) -> bool:
    """Whether the phase is limited by the host: the device waits for it for more than `HOST_SHARE`."""
    return phase.engine_row_s(WAITING) > HOST_SHARE * phase.seconds


def of_torch(spec: HardwareSpec) -> str:
    """What a user of an old GPU must know whatever the engine, else ""."""
    old = spec.vendor == "nvidia" and engines.number(spec.compute_capability) < engines.number(OLD_TORCH)
    return OLD_TORCH_NOTE if old else ""


def of_sampling(sampling: str) -> str:
    return (
        f"tokens are chosen by {sampling}: kernels over the vocabulary that nobody measured, by what they read and "
        "write; without --sampling they are greedy"
    )
