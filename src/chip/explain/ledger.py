"""The ledger: a captured step of an engine compared with its prediction, operator by operator.

Every kernel of a trace is given a role. Products get theirs by their order in the step, which is the order of the
predicted program; the others by what their names say. A kernel's time is what it adds to the step: from the end of the
kernel before it to its own end, less the pause between them, so that kernels which overlap are not counted twice.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from chip import ops, stats
from chip.decoders import describe, library
from chip.decoders.decoder import Decoder
from chip.files.traces import KernelEvent, Operator, Trace
from chip.predictor.operator_time import OperatorTime
from chip.predictor.request import setting
from chip.predictor.stages import Stage
from chip.question import Question
from chip.types import ChipError, Op, Scenario

OUTPUT = 17  # tokens of a traced request, as `chip bench` makes them
PRODUCT = "linear"
MERGED = "attention and pointwise"  # HF attention of many kernels, which look like any other
OTHER = "other"  # kernels that no operator of the program stands for
# What a kernel's name says, first match: (pattern, class). A class stands for operators of several kinds.
NAMES = (
    (r"splitkreduce|splitk_reduce", "split"),  # belongs to the product before it
    (r"_and_cache|index_copy", "kv_append"),
    (r"flash.*combine", "attention"),
    (r"prepare_varlen", OTHER),
    (r"flash|fmha|sdpa|attention|^_paged|^_prefill", "attention"),
    (r"moe|topk|grouped_mm|align_block|matmul_ogs|routing|reduce_grouped|act_and_mul", "experts"),
    (r"nvjet|gemm|cutlass|gemv|wgmma|skinny|mma_tiles", PRODUCT),
    (r"gumbel|argmax", "sampling"),
    (r"rms_norm|rope_store|layer_norm|layernorm|silu|gelu|relu|triton_poi|triton_red|triton_per|elementwise|reduce_kernel|"
     r"catarray|index", "pointwise"),
)  # fmt: skip

# Parts of a layer under HF transformers, by the role of an operator, first match, ...
PARTS = (
    ("norm", "norms"), ("^rope", "rotation"), ("act$", "activation"), ("_add$", "residual"), ("^kv_", "kv_append"),
)  # fmt: skip
# ... and by the torch operator that launched a kernel, where its shapes need not be asked.
LAUNCHED_BY = {
    **dict.fromkeys(("clone", "where", "scalar_tensor"), "attention"),  # copies of key heads, the mask as numbers
    **dict.fromkeys(("native_layer_norm", "mean", "rsqrt"), "norms"),
    **dict.fromkeys(("silu", "gelu", "relu", "tanh"), "activation"),
    **dict.fromkeys(("index_copy_", "arange", "add_"), "kv_append"),
    **dict.fromkeys(("embedding", "bmm", "cos", "sin"), "pointwise"),
}
TABLE_OF_ANGLES = "aten::bmm"  # once a step, a product that no operator of the program stands for


class LedgerEntry(NamedTuple):
    """One role of one step: seconds as predicted and in the engine, gaps between kernels in neither."""

    role: str
    calls: float
    predicted_s: float
    measured_s: float

    @property
    def error_s(self) -> float:
        return self.predicted_s - self.measured_s


@dataclass(frozen=True, slots=True)
class Ledger:
    model: str
    engine: str
    phase: str
    batch: int
    prompt: int
    step_s: float  # the step as it was timed before anything was profiled; 0 where it was not
    kernels: int
    gaps_s: float  # between kernels, as the profiler saw them
    entries: tuple[LedgerEntry, ...]

    @property
    def predicted_s(self) -> float:
        return sum(e.predicted_s for e in self.entries)

    @property
    def measured_s(self) -> float:
        return sum(e.measured_s for e in self.entries)

    @property
    def title(self) -> str:
        return f"{self.model} {self.engine} {self.phase} {self.batch} x {self.prompt}"


def ledger(trace: Trace, gpu: str) -> Ledger:
    if not trace.events:
        raise ChipError(f"{trace.title}: the trace has no kernels")
    decoder = describe(trace.config, trace.model, trace.title) if trace.config else library.find(trace.model)
    calls = calls_of(trace, gpu, decoder)
    several = re.match(r"(\d+) steps", trace.missing.get("steps", ""))  # a profiler that saw steps which differ
    steps = int(several[1]) if several else 1
    ran, gaps_s = launches(trace, steps, calls, decoder.hidden)
    measured: dict[str, float] = {}
    for one in ran:
        measured[one.role] = measured.get(one.role, 0.0) + one.seconds
    predicted: dict[str, tuple[float, float]] = {}
    for name, call in by_row(trace, calls, set(measured)):
        n, total = predicted.get(name, (0.0, 0.0))
        predicted[name] = (n + call.times, total + call.times * call.time.seconds)
    names, none = dict.fromkeys((*predicted, *measured)), (0.0, 0.0)
    entries = [LedgerEntry(name, *predicted.get(name, none), measured.get(name, 0.0)) for name in names]
    timed = trace.timings.get("step") or trace.timings.get(trace.source)
    step_s = stats.median(timed.samples_ns) * 1e-9 if timed else 0.0
    entries.sort(key=lambda e: -max(e.measured_s, e.predicted_s))
    about = (trace.model, trace.engine, trace.phase, trace.batch, trace.prompt)
    return Ledger(*about, step_s, len(trace.events) // steps, gaps_s, tuple(entries))


class PredictedCall(NamedTuple):
    """A call of an operator in a step."""

    role: str
    kind: str
    times: float  # that it is called
    time: OperatorTime


def calls_of(trace: Trace, gpu: str, decoder: Decoder) -> list[PredictedCall]:
    """Every call of the trace's step as predicted, layer after layer."""
    predictor = setting(Question(decoder, gpu, trace.engine, trace.dtype, ""), Stage.POINTS)
    s, model = Scenario(trace.batch, trace.prompt, OUTPUT, trace.dtype), predictor.steps
    steps = model.schedule(s).prefill if trace.phase == "prefill" else ((model.engine.decode(s, model.options), 1.0),)
    out = []
    for rows, weight in model.at_clock(steps, trace.phase == "prefill"):
        for repeat, calls, times in rows:
            n = weight * repeat / max(1, round(repeat))
            for _ in range(max(1, round(repeat))):
                out += [PredictedCall(r, k, n, t) for r, k, t in zip(calls.launches.names, calls.kinds, times)]
    return out


def products_of(calls: Sequence[PredictedCall]) -> list[str]:
    """Roles of the products of a step, in its order."""
    return [call.role for call in calls if ops.get(call.kind).LEDGER == PRODUCT]


def by_row(trace: Trace, calls: Sequence[PredictedCall], roles: Collection[str]) -> Iterator[tuple[str, PredictedCall]]:
    """The row of each call, where kernels have these `roles`."""
    hf, merged = trace.engine.startswith("hf"), _merges(trace, calls)
    for call in calls:
        name = call.role if call.role in roles and call.role != PRODUCT else ops.get(call.kind).LEDGER
        if merged and name in ("attention", "pointwise"):
            name = MERGED
        elif hf and name == "pointwise":
            name = next((part for pattern, part in PARTS if re.search(pattern, call.role)), name)
        yield name, call


def _merges(trace: Trace, calls: Sequence[PredictedCall]) -> bool:
    """Whether the kernels of attention look like any other."""
    return trace.engine.startswith("hf") and any(ops.get(c.kind).parts is not Op.parts for c in calls)


def kernel_class(name: str) -> str:
    lowered = name.lower()
    return next((kind for pattern, kind in NAMES if re.search(pattern, lowered)), OTHER)


def _class(trace: Trace, kernel: int, width: int) -> str:
    kind, launched_by = kernel_class(trace.kernels[kernel].name), trace.kernels[kernel].operator
    if not width or launched_by is None:
        return kind
    op = trace.operators[launched_by]
    by_name = kind in (PRODUCT, "split", "experts", "sampling") and op.name != TABLE_OF_ANGLES
    return kind if by_name else part_of(op, width)


def part_of(op: Operator, width: int) -> str:
    """Which part of a layer of HF's a kernel is that this torch operator launched. `width`: of the residual stream."""
    name, shapes = op.name.removeprefix("aten::"), [t.shape for t in op.tensors if t.shape]
    if "scaled_dot_product" in name:
        return "attention"
    if name in LAUNCHED_BY or not shapes:
        return LAUNCHED_BY.get(name, "pointwise")
    whole = max(shapes, key=len)
    if whole[-1] != width and len(whole) == 1:
        return "kv_append"  # positions
    heads = len(whole) == 4
    if any(len(s) == 1 or s[-1] == 1 for s in shapes) or (
        name in ("pow", "_to_copy") and (heads or whole[-1] == width)
    ):
        return "norms"
    if heads:
        return "rotation"
    if whole[-1] != width:
        return "activation"
    return "residual" if name == "add" else "pointwise"


class Launched(NamedTuple):
    """A kernel of a step with its role, and what it adds to the step."""

    event: KernelEvent
    role: str
    seconds: float


def launches(trace: Trace, steps: int, calls: Sequence[PredictedCall], hidden: int) -> tuple[list[Launched], float]:
    """Every kernel with its seconds of one step, and the seconds of the gaps between them. `calls`: as predicted, in
    the order of a step. `hidden`: the width of the residual stream, by which the torch operators of HF are told."""
    products, merged = products_of(calls), _merges(trace, calls)
    width = hidden if trace.engine.startswith("hf") and not merged else 0
    events = sorted(trace.events, key=lambda e: e.start_ns)
    kinds = [_class(trace, e.kernel, width) for e in events]
    in_order = kinds.count(PRODUCT) == steps * len(products)  # else no product can be told from the next
    out = []
    gaps = ends = seen = 0
    role = PRODUCT
    for event, kind in zip(events, kinds):
        end = event.start_ns + event.duration_ns
        begin = max(ends, event.start_ns)
        if ends:
            gaps += max(0, event.start_ns - ends)
        if kind == PRODUCT:
            role = products[seen % len(products)] if in_order and products else PRODUCT
            seen += 1
        name = role if kind in (PRODUCT, "split") else kind
        if merged and name in ("attention", "pointwise"):
            name = MERGED
        out.append(Launched(event, name, max(0, end - begin) * 1e-9 / steps))
        ends = max(ends, end)
    return out, gaps * 1e-9 / steps


class RoleSum(NamedTuple):
    """A role over several ledgers: medians of predicted over measured, and its share of the error of the step."""

    role: str
    ledgers: int
    ratio: float
    error_share: float  # of the step's measured time, with its sign: negative where predicted too fast


def summary(ledgers: Sequence[Ledger]) -> list[RoleSum]:
    out = []
    for role in dict.fromkeys(e.role for one in ledgers for e in one.entries):
        mine = [(e, one) for one in ledgers for e in one.entries if e.role == role]
        ratios = [e.predicted_s / e.measured_s for e, _ in mine if e.measured_s]
        shares = [e.error_s / one.measured_s for e, one in mine]
        out.append(RoleSum(role, len(mine), stats.median(ratios) if ratios else 0.0, stats.median(shares)))
    return sorted(out, key=lambda r: -abs(r.error_share))
