"""A list of kernels of one's own, one JSON object a line: what is to be run, in which sizes, how often.

A line is an operator with the shapes of its tensors, `{"op": "aten::addmm", "shapes": [[768], [8, 768], [768, 768]],
"dtype": "bfloat16", "count": 12}`, or a matrix product, `{"m": 8, "n": 768, "k": 768}`. Where they are known, `kernel`
names what was launched and `us` says how long it took. Other fields are left alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chip.files import artifact
from chip.files.traces import DTYPE_BYTES, Kernel, KernelEvent, Operator, TensorArg, Trace
from chip.lab.replay.foreign import CACHE_NOTE, DTYPES, strides_of
from chip.types import ChipError

SOURCE = "list"
# What other tools call the fields, ours first.
FIELDS = {
    "op": ("op", "operator", "aten_op", "op_name", "name"),
    "shapes": ("shapes", "input_shapes", "input_dims", "Input Dims"),
    "dtype": ("dtype", "dtypes", "input_types", "Input type"),
    "count": ("count", "launches", "calls", "occurrences", "num_calls"),
    "kernel": ("kernel", "kernel_name"),
    "us": ("us", "duration_us", "mean_us", "avg_us", "median_us", "dur"),
}
SHORT = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}
MOST_LAUNCHES = 1_000_000


def is_list(head: bytes) -> bool:
    """Whether the first bytes of a file are a line of one."""
    first = head.lstrip().split(b"\n", 1)[0]
    if not first.startswith(b"{") or b'"schema"' in first:
        return False
    try:
        line = json.loads(first)
    except ValueError:
        return False
    return {"m", "n", "k"} <= line.keys() or _field(line, "shapes") is not None


def trace_of(path: Path) -> Trace:
    """As if each had been launched so often, one after the other."""
    operators: dict[str, int] = {}
    table: list[Operator] = []
    kernels: list[Kernel] = []
    events: list[KernelEvent] = []
    at_ns = calls = 0
    for number, text in enumerate(artifact.lines(path), 1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
            operator, count = _operator(line), int(_field(line, "count", 1))
            duration_ns = round(1000 * float(_field(line, "us", 0)))
            if count < 1 or duration_ns < 0:
                raise ValueError("count must be at least 1, us not negative")
        except (ValueError, TypeError, KeyError, AttributeError) as e:
            raise ChipError(f"{path}:{number}: {e}") from None
        if len(events) + count > MOST_LAUNCHES:
            raise ChipError(f"{path}:{number}: more than {MOST_LAUNCHES} launches in all; lower the counts")
        index = operators.setdefault(repr(operator), len(table))
        if index == len(table):
            table.append(operator)
        kernels.append(Kernel(str(_field(line, "kernel") or operator.name), "kernel", operator=index))
        for _ in range(count):
            events.append(KernelEvent(len(kernels) - 1, at_ns, duration_ns, 0, calls))
            at_ns, calls = at_ns + duration_ns, calls + 1
    if not events:
        raise ChipError(f"{path}: holds no line with a kernel")
    missing = {"cache": CACHE_NOTE, "graph": "a list has no timing of a whole step"}
    return Trace(
        path.name.split(".")[0], "", SOURCE, 0, 0, "", "", SOURCE, tuple(table), tuple(kernels), tuple(events),
        missing=missing,
    )  # fmt: skip


def _field(line: Mapping[str, Any], name: str, otherwise: Any = None) -> Any:
    return next((line[key] for key in FIELDS[name] if key in line), otherwise)


def _operator(line: Mapping[str, Any]) -> Operator:
    dtypes, shapes, name = _field(line, "dtype") or "bfloat16", _field(line, "shapes"), _field(line, "op")
    if {"m", "n", "k"} <= line.keys() and not shapes:
        m, n, k = (int(line[axis]) for axis in "mnk")
        shapes, name = [[m, k], [k, n]], "aten::mm"
    if not isinstance(shapes, list) or not isinstance(name, str):
        raise ValueError("needs op and shapes, or m, n and k")
    kinds = dtypes if isinstance(dtypes, list) else [dtypes] * len(shapes)
    values = line.get("args") or []
    tensors, args = list[TensorArg](), list[Any]()
    for i, shape in enumerate(shapes):
        if not shape:  # no tensor: a scalar in its place
            args.append(values[i] if i < len(values) else None)
            continue
        sizes = tuple(int(n) for n in shape)
        if min(sizes) < 1:
            raise ValueError(f"a shape must hold whole numbers from 1, got {shape}")
        args.append({"tensor": len(tensors)})
        tensors.append(TensorArg(sizes, strides_of(sizes), _dtype(kinds, i), len(tensors)))
    return Operator(name if "::" in name else f"aten::{name}", "", tuple(tensors), tuple(args))


def _dtype(kinds: list[Any], index: int) -> str:
    kind = str(kinds[index] if index < len(kinds) else kinds[-1]).removeprefix("torch.")
    known = DTYPES.get(kind) or SHORT.get(kind) or kind
    if known not in DTYPE_BYTES:
        raise ValueError(f"dtype {kind[:40]!r} is not known")
    return known
