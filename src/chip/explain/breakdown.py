"""Where the time of anyone's trace goes: kernels named by operator, under the roof of the GPU, beside what the
predictor expects.

With a model and its engine the operators are those of the predicted step: products by their order, the others by their
names. So kernels inside of CUDA graphs are told too, which no operator of the host launched. Without a model they are
told by the torch operators that launched them, with their shapes, where the profiler recorded these.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from chip import stats
from chip.decoders import describe, library
from chip.explain import ledger
from chip.explain.ledger import Launched
from chip.files.traces import KernelEvent, Operator, TensorArg, Trace
from chip.hardware import gpus
from chip.hardware.roofline import Roofs, roofs_of
from chip.types import ChipError

SCHEMA = "chip.kernel_breakdown/1"
WORTH = 3  # kernels
SLOWER = 1.15  # than expected: then it is the kernel, not the work
NEAR = 1.2  # times its roof: little is left
LIKE_STEP = 1.4  # times the median step: prompts among single tokens take longer
COMPUTE = {"bfloat16": "matmul_bf16", "float16": "matmul_fp16", "float32": "matmul_fp32", "float8_e4m3fn": "matmul_fp8"}
MATRICES = {
    "aten::mm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::bmm": (0, 1),
    "aten::linear": (0, 1),
    "aten::matmul": (0, 1),
}

GATHERS = ("aten::index_select", "aten::embedding")


@dataclass
class OperatorRow:
    """The kernels of one operator in a step."""

    operator: str
    seconds: float = 0.0
    count: int = 0
    kernels: dict[str, float] = field(default_factory=dict)  # seconds by name
    flops: float = 0.0
    bytes: float = 0.0
    compute: str = ""  # the ceiling its arithmetic runs under
    expected_s: float = 0.0

    def add(self, one: Launched, name: str) -> None:
        self.seconds += one.seconds
        self.count += 1
        self.kernels[name] = self.kernels.get(name, 0.0) + one.seconds


def breakdown(trace: Trace, gpu: str, phase: str = "") -> dict[str, Any]:
    """The report of a trace. Of a trace that names its model and engine, its steps of that phase."""
    if not trace.events:
        raise ChipError(f"{trace.title}: the trace has no kernels")
    roofs, notes = roofs_of(gpus.find(gpu)), []
    if trace.engine:
        decoder = describe(trace.config, trace.model, trace.title) if trace.config else library.find(trace.model)
        calls = ledger.calls_of(trace, gpu, decoder)
        trace, steps, in_order = _whole_steps(trace, len(ledger.products_of(calls)))
        if not in_order:
            notes.append("its products are not those of the predicted step, one for one: they stand together")
        ran, gaps_s = ledger.launches(trace, steps, calls, decoder.hidden)
        rows = _rows(trace, ran, steps)
        for name, call in ledger.by_row(trace, calls, set(rows)):
            row = rows.setdefault(name, OperatorRow(name))
            row.flops += call.times * call.time.flops
            row.bytes += call.times * call.time.bytes
            row.expected_s += call.times * call.time.seconds
            row.compute = row.compute or f"matmul_{trace.dtype}"
    else:
        ran, gaps_s = ledger.launches(trace, 1, (), 0)
        steps, rows = 1, _by_operator(trace, ran)
        if not trace.operators:
            notes.append("no operator was recorded beside the kernels: --model and --engine tell them by their order")
    total_s = sum(row.seconds for row in rows.values())
    shown = [_shown(row, roofs, total_s, steps) for row in sorted(rows.values(), key=lambda r: -r.seconds)]
    return {
        "schema": SCHEMA, "title": trace.title, "device": trace.device, "gpu": gpu, "roofs": roofs.title,
        "steps": steps, "step_us": total_s * 1e6, "gaps_us": gaps_s * 1e6,
        "expected_us": sum(r.expected_s for r in rows.values()) * 1e6 or None,
        "rows": shown, "worth_work": _worth(shown), "notes": [*notes, *trace.missing.values()],
    }  # fmt: skip


def _whole_steps(trace: Trace, products: int) -> tuple[Trace, int, bool]:
    """The steps of its phase alone, how many they are, and whether each has as many products as predicted. Steps end
    where a token is chosen or, where nothing tells that, after so many products."""
    if re.match(r"(\d+) steps", trace.missing.get("steps", "")):
        return trace, int(trace.missing["steps"].split()[0]), True
    events = sorted(trace.events, key=lambda e: e.start_ns)
    kinds = [ledger.kernel_class(trace.kernels[e.kernel].name) for e in events]
    whole = [s for s in _cut(events, kinds) if s[1].count(ledger.PRODUCT) == products]
    if not whole:
        return trace, 1, False
    took = [sum(e.duration_ns for e in part) for part, _ in whole]
    typical = stats.median(took) if trace.phase == "decode" else max(took)
    like = [part for (part, _), ns in zip(whole, took) if typical / LIKE_STEP < ns < typical * LIKE_STEP]
    return replace(trace, events=tuple(e for part in like for e in part)), len(like), True


def _cut(events: Sequence[KernelEvent], kinds: Sequence[str]) -> Iterator[tuple[list[KernelEvent], list[str]]]:
    part, names = list[KernelEvent](), list[str]()
    for i, (event, kind) in enumerate(zip(events, kinds)):
        part.append(event)
        names.append(kind)
        last = i + 1 == len(kinds)
        if last or (kind == "sampling" and "sampling" not in kinds[i + 1 : i + 4]):
            yield part, names
            part, names = [], []


def _rows(trace: Trace, ran: Sequence[Launched], steps: int) -> dict[str, OperatorRow]:
    rows: dict[str, OperatorRow] = {}
    for one in ran:
        rows.setdefault(one.role, OperatorRow(one.role)).add(one, trace.kernels[one.event.kernel].name)
    return rows


def _by_operator(trace: Trace, ran: Sequence[Launched]) -> dict[str, OperatorRow]:
    """By the torch operators that launched the kernels and their shapes; kernels without one by what their names say.
    What an operator does is counted once a call."""
    rows: dict[str, OperatorRow] = {}
    calls = set[int]()
    for one in ran:
        kernel = trace.kernels[one.event.kernel]
        operator = trace.operators[kernel.operator] if kernel.operator is not None else None
        name = _label(operator) if operator else one.role if kernel.kind == "kernel" else kernel.kind
        row = rows.setdefault(name, OperatorRow(name))
        row.add(one, kernel.name)
        if operator and one.event.call not in calls:
            calls.add(one.event.call)
            row.flops += _flops(operator)
            row.bytes += _bytes(operator)
            row.compute = COMPUTE.get(operator.tensors[0].dtype, "matmul_fp32") if operator.tensors else ""
    return rows


def _label(op: Operator) -> str:
    shapes = " ".join("x".join(map(str, t.shape)) for t in op.tensors if t.shape)
    return f"{op.name.removeprefix('aten::')} {shapes}".strip()


def _matrices(op: Operator) -> tuple[TensorArg, TensorArg] | None:
    a, b = MATRICES.get(op.name, (0, 0))
    return (op.tensors[a], op.tensors[b]) if b and b < len(op.tensors) else None


def _flops(op: Operator) -> float:
    """Of products and attention; what else is done is little beside the bytes."""
    if pair := _matrices(op):
        columns = pair[1].shape[0] if op.name == "aten::linear" else pair[1].shape[-1]
        return 2.0 * prod(pair[0].shape) * columns
    if "scaled_dot_product" in op.name and len(op.tensors) > 2:
        queries, keys, values = (t.shape for t in op.tensors[:3])
        return 2.0 * prod(queries[:-1]) * keys[-2] * (queries[-1] + values[-1])
    return 0.0


def _bytes(op: Operator) -> float:
    """Read and written. Where the profiler does not tell the result: of a product its size, of rows that are gathered
    two times these, else as much as the largest input."""
    if op.outputs:
        return float(op.touched_bytes)
    if op.name in GATHERS:
        table, *indices = (t for t in op.tensors if t.shape)
        rows = prod(max((t.shape for t in indices), key=prod, default=(1,)))
        return 2.0 * rows * table.touched_bytes / max(1, table.shape[0])
    if pair := _matrices(op):
        columns = pair[1].shape[0] if op.name == "aten::linear" else pair[1].shape[-1]
        rows = prod(pair[0].shape[:-1])
        return op.touched_bytes + rows * columns * pair[0].touched_bytes / max(1, prod(pair[0].shape))
    return op.touched_bytes + max((t.touched_bytes for t in op.tensors), default=0)


def _shown(row: OperatorRow, roofs: Roofs, total_s: float, steps: int) -> dict[str, Any]:
    compute = roofs.compute.get(row.compute) or roofs.compute.get("matmul_bf16")
    compute_s = row.flops / compute.value if compute else 0.0
    memory_s = row.bytes / roofs.memory["hbm"].value
    roof_s = max(compute_s, memory_s)
    floor_s = roofs.floor_s * row.count / steps
    bound = "" if not roof_s else "launch" if roof_s < floor_s else "compute" if compute_s > memory_s else "memory"
    return {
        "operator": row.operator, "kernel": max(row.kernels, key=row.kernels.__getitem__, default=""),
        "kernels": sorted(row.kernels), "count": row.count / steps, "us": row.seconds * 1e6,
        "share": row.seconds / total_s if total_s else 0.0, "bound": bound,
        "flops": row.flops, "bytes": row.bytes, "roof_us": roof_s * 1e6 or None,
        "times_roof": row.seconds / max(roof_s, floor_s) if roof_s and row.seconds else None,
        "expected_us": row.expected_s * 1e6 or None,
        "over_us": (row.seconds - max(roof_s, floor_s)) * 1e6 if roof_s else None,
    }  # fmt: skip


def _worth(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The operators that have most time to lose, and what of it the predictor expected."""
    known = sorted((r for r in rows if (r["over_us"] or 0) > 0), key=lambda r: -r["over_us"])
    return [{"operator": r["operator"], "kernel": r["kernel"], "why": _why(r)} for r in known[:WORTH]]


def _why(row: Mapping[str, Any]) -> str:
    roof = {"launch": "the time to launch its kernels"}.get(row["bound"], f"its {row['bound']} roof")
    text = f"{row['share']:.1%} of the kernels' time, {row['times_roof']:.2f} times {roof}"
    if row["expected_us"]:
        times = row["us"] / row["expected_us"]
        if times > SLOWER:
            return f"{text}; {times:.2f} times what such kernels take here: this one is slow"
        text += f"; {times:.2f} times what was expected"
    if row["bound"] == "launch":
        return f"{text}: fewer kernels would help"
    return f"{text}: little is left" if row["times_roof"] < NEAR else f"{text}: a faster kernel would help"


def named(trace: Trace, model: str, engine: str, phase: str, batch: int, prompt: int, dtype: str) -> Trace:
    """A trace of another profiler, as of this question. The model is any that can be predicted."""
    decoder = library.find(model)
    return replace(
        trace, model=decoder.name, engine=engine, phase=phase, batch=batch, prompt=prompt, dtype=dtype or "bf16"
    )
