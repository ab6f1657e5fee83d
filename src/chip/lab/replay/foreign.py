"""A trace from what somebody else's profiler wrote, torch's (as vLLM's and SGLang's /start_profile use it) or Nsight
Systems': as much as it tells."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chip.files.traces import Operator, TensorArg, Trace
from chip.lab.replay import chrome, nsys, owners
from chip.lab.replay.chrome import DeviceEvent, HostRange, Profile, inside
from chip.types import ChipError

DTYPES = {
    "c10::BFloat16": "bfloat16", "c10::Half": "float16", "float": "float32", "double": "float64", "long": "int64",
    "long int": "int64", "int": "int32", "short": "int16", "signed char": "int8", "unsigned char": "uint8",
    "bool": "bool", "c10::Float8_e4m3fn": "float8_e4m3fn", "c10::Float8_e5m2": "float8_e5m2",
}  # fmt: skip
STEP = "ProfilerStep#"
CACHE_NOTE = "a foreign trace does not tell what was in cache: all inputs are taken as cold"


def trace_of(path: Path) -> Trace:
    """The last whole profiler step of a trace, or all of it where steps are not marked."""
    profile = nsys.read(path) or chrome.read(path)
    events, source = _window(profile), "chrome"
    if events:
        calls, operators = _calls(profile, events)
    else:
        events, operators = _on_cpu(profile)
        calls, source = list(range(len(events))), "operators"
    if not events:
        raise ChipError(f"{path}: holds neither a kernel nor an operator with its sizes: record CUDA, or record_shapes")
    table, kernels, launches = owners.assemble(events, calls, operators)
    name = path.name.split(".")[0]
    missing = {"cache": CACHE_NOTE, "graph": "a foreign trace has no timing of the whole step"}
    return Trace(name, "", "foreign", 0, 0, "", "", source, table, kernels, launches, missing=missing)


def _on_cpu(profile: Profile) -> tuple[list[DeviceEvent], dict[int, Operator]]:
    """The operators of a trace without a device that call no others: on a CPU these do the work."""
    events, operators = list[DeviceEvent](), dict[int, Operator]()
    for ranges in profile.operators.values():
        for one, after in zip(ranges, [*ranges[1:], None]):
            if after is not None and after.start_ns < one.end_ns:
                continue  # it calls the next one
            if (operator := operator_of(one)) is not None and operator.tensors:
                operators[len(events)] = operator
                took_ns, none = one.end_ns - one.start_ns, (0, 0, 0)
                events.append(DeviceEvent(one.name, "operator", one.start_ns, took_ns, 0, none, none, 0, len(events)))
    return events, operators


def _window(profile: Profile) -> list[DeviceEvent]:
    """Device events launched in the last marked step."""
    steps = [(r, thread) for thread, rs in profile.annotations.items() for r in rs if r.name.startswith(STEP)]
    if not steps:
        return profile.device
    last, _ = max(steps, key=lambda s: s[0].start_ns)
    launched = {c for c, (_, when) in profile.launches.items() if last.start_ns <= when <= last.end_ns}
    return [e for e in profile.device if e.correlation in launched]


def _calls(profile: Profile, events: Sequence[DeviceEvent]) -> tuple[list[int], dict[int, Operator]]:
    """Number of the innermost operator's call around each launch, and the operators by number."""
    starts = {thread: [r.start_ns for r in rs] for thread, rs in profile.operators.items()}
    numbers: dict[int, int] = {}
    operators: dict[int, Operator] = {}
    known: dict[tuple[str, int], Operator | None] = {}
    calls = []
    for event in events:
        thread, when = profile.launches.get(event.correlation, (None, 0))
        around = inside(profile.operators[thread], starts[thread], when) if thread in starts else None
        if around is None:
            calls.append(-1)
            continue
        number = numbers.setdefault(id(around), len(numbers))
        calls.append(number)
        key = around.name, id(around.inputs)
        if key not in known:
            known[key] = operator_of(around)
        if (operator := known[key]) is not None:
            operators[number] = operator
    return calls, operators


def operator_of(call: HostRange) -> Operator | None:
    """The operator of a cpu_op event; None where it was recorded without shapes."""
    if call.inputs is None:
        return None
    dims, strides, kinds, values = call.inputs
    if not isinstance(dims, list) or not isinstance(kinds, list) or len(dims) != len(kinds):
        return None
    tensors: list[TensorArg] = []
    args = []
    for i, (shape, kind) in enumerate(zip(dims, kinds)):
        if kind in DTYPES and isinstance(shape, list) and (shape or not _value(values, i)):
            stride = strides[i] if isinstance(strides, list) and i < len(strides) else None
            args.append({"tensor": len(tensors)})
            tensors.append(_tensor(shape, stride, DTYPES[kind], len(tensors)))
        elif kind == "TensorList":
            return None  # its members' dtypes are not told
        else:
            args.append(_parsed(_value(values, i)))
    return Operator(call.name, "", tuple(tensors), tuple(args))


def _tensor(shape: list[Any], stride: Any, dtype: str, number: int) -> TensorArg:
    sizes = tuple(int(n) for n in shape)
    if isinstance(stride, list) and len(stride) == len(sizes):
        steps = tuple(int(s) for s in stride)
    else:
        steps = strides_of(sizes)
    return TensorArg(sizes, steps, dtype, number)


def strides_of(sizes: Sequence[int]) -> tuple[int, ...]:
    """Of a contiguous tensor."""
    return tuple(math.prod(sizes[i + 1 :]) for i in range(len(sizes)))


def _value(values: Any, index: int) -> str:
    return str(values[index]) if isinstance(values, list) and index < len(values) else ""


def _parsed(text: str) -> Any:
    """A scalar or a list of scalars, as the profiler prints them; None for anything else."""
    if not text or len(text) > 1000 or not re.fullmatch(r"[\w\s.,+\-\[\]]*", text):
        return None
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return value if isinstance(value, (bool, int, float, list)) else None
