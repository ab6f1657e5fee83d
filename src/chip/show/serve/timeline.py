"""The predicted timeline of one step: what the host does and what the device runs, for the page and for Perfetto."""

from __future__ import annotations

from typing import Any

from chip.engines.recorded import Event, chrome
from chip.predictor import request
from chip.predictor.steps import StepModel
from chip.show.serve.names import PASTED, question_of
from chip.types import ChipError, Scenario, Step

SCHEMA = "chip.timeline/1"
PHASES = ("decode", "prefill")
MOST_EVENTS = 50_000
INSIDE = "operators"  # the track of what a graph holds


def timeline(question: Any) -> dict[str, Any]:
    """A scenario as for a prediction, and `phase`: the middle decode step, or the first step of the prefill."""
    if not isinstance(question, dict):
        raise ChipError(f"a scenario is a JSON object, got {type(question).__name__}")
    asked = dict(question)
    phase, config = asked.pop("phase", PHASES[0]), asked.pop("config", None)
    if phase not in PHASES:
        raise ChipError(f"phase must be one of {', '.join(PHASES)}, got {str(phase)[:40]!r}")
    if config is not None:
        asked.setdefault("model", PASTED)
    q, s = question_of(asked, config)
    q = q.with_formats()
    steps = request.setting(q).steps
    s = q.scenario(*s.sizes)
    step = _step(steps, s, phase)
    launches = sum(n * max(1, k) for n, calls, _ in steps.rows(step) for k in calls.launches.kernels)
    if launches > MOST_EVENTS:
        raise ChipError(f"the step launches {launches:.0f} kernels; at most {MOST_EVENTS} are drawn")
    events = [*steps.timeline(step).events]
    if not any(e.queue == "device" and e.name not in ("step", "layer", "sampling") for e in events):
        events += _inside(steps, step, events)
    return {
        "schema": SCHEMA,
        "model": q.model.name, "gpu": q.gpu, "engine": q.engine, "phase": phase, "dtype": s.dtype,
        "overlaps": steps.overlaps and phase == "decode",  # the host prepares it during the step before
        "sequences": sum(q.count for q in step.seqs), "tokens": step.tokens,
        "us": _us(max(e.start_s + e.seconds for e in events)),
        "host_us": _us(sum(e.seconds for e in events if e.queue == "host")),
        "device_us": _us(sum(e.seconds for e in events if e.queue == "device")),
        "events": [[e.queue, e.name, _us(e.start_s), _us(e.seconds)] for e in events],
        "chrome": _trace(events, f"{q.model.name} on {q.gpu}, {q.engine}, {phase}"),
    }  # fmt: skip


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 4)


def _step(steps: StepModel, s: Scenario, phase: str) -> Step:
    if phase == "prefill":
        return steps.schedule(s).prefill[0][0]
    if s.output < 2:
        raise ChipError("one token is asked for: there is no decode step")
    return steps.engine.decode(s, steps.options)


def _inside(steps: StepModel, step: Step, events: list[Event]) -> list[Event]:
    """The operators that a graph runs, in order, on a track of their own: they fill it from its start. What is left at
    its end is the engine's time around the model."""
    terms = steps.terms.value if steps.terms else None
    gap_s = terms.gap_s if terms else 0.0
    at = next(e.start_s for e in events if e.queue == "device")
    found = []
    ((rows, _),) = steps.at_clock(((step, 1.0),), False)
    for repeat, calls, answers in rows:
        for _ in range(round(repeat)):
            for role, answered in zip(calls.launches.names, answers):
                seconds = answered[0] + gap_s
                found.append(Event(INSIDE, role, at, seconds))
                at += seconds
    return found


def _trace(events: list[Event], title: str) -> dict[str, object]:
    """As Perfetto opens it; the operators of a graph are a third track."""
    made = chrome([e for e in events if e.queue != INSIDE], title)
    traced = made["traceEvents"]
    assert isinstance(traced, list)
    inside = [e for e in events if e.queue == INSIDE]
    if inside:
        traced.append(
            {"name": "thread_name", "ph": "M", "pid": 1, "tid": 3, "args": {"name": "operators in the graph"}}
        )
        traced += [
            {"name": e.name, "ph": "X", "pid": 1, "tid": 3, "ts": _us(e.start_s), "dur": _us(e.seconds)} for e in inside
        ]
    return made
