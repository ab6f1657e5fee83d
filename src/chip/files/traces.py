"""One recorded step: the operators a model called, the kernels they launched, and how long the whole took.

Nothing in it is code or data of the model: names, shapes, strides, scalars and times, so a trace can be given away.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from chip.files import artifact, codec
from chip.types import DISTURBED, ChipError

FULL_CLOCK = 0.99  # of the boost clock
KINDS = ("kernel", "memcpy", "memset", "operator")
DTYPE_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
    "uint16": 2, "uint32": 4, "uint64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorArg:
    """A tensor handed to an operator. Tensors of a call with the same `memory` lie in the same allocation."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    memory: int
    offset_bytes: int = 0
    reuse_bytes: int | None = None  # touched between its last use and this; 0: hardly any, None: more than any cache
    low: int | None = None  # least and greatest value of integers: indices must stay valid
    high: int | None = None
    host: bool = False  # in host memory, beside a GPU

    @property
    def span_bytes(self) -> int:
        """From its first element to behind its last."""
        if 0 in self.shape:
            return 0
        return (1 + sum((n - 1) * s for n, s in zip(self.shape, self.stride))) * DTYPE_BYTES[self.dtype]

    @property
    def touched_bytes(self) -> int:
        """Distinct bytes: an expanded dimension counts once."""
        count = 1
        for n, s in zip(self.shape, self.stride):
            count *= n if s else min(n, 1)
        return count * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Operator:
    """A call of a framework operator. In `args` and `kwargs` a tensor is {"tensor": index into tensors}."""

    name: str  # "aten::addmm"
    overload: str  # "default"; "" where the recorder does not know
    tensors: tuple[TensorArg, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[int, ...] = ()  # bytes of each tensor it returned that is new memory

    @property
    def touched_bytes(self) -> int:
        per_memory: dict[int, int] = {}
        for t in self.tensors:
            if not t.host:
                per_memory[t.memory] = max(per_memory.get(t.memory, 0), t.touched_bytes)
        return sum(per_memory.values()) + sum(self.outputs)


@dataclass(frozen=True, slots=True)
class Kernel:
    """What is launched: the same name, grid, block and arguments are the same kernel."""

    name: str
    kind: str
    grid: tuple[int, int, int] = (0, 0, 0)
    block: tuple[int, int, int] = (0, 0, 0)
    size_bytes: int = 0  # of a copy or fill
    operator: int | None = None  # which operator launched it, index into the trace's
    position: int = 0  # among the kernels of that operator's call


class KernelEvent(NamedTuple):
    """One launch as it ran."""

    kernel: int  # index into the trace's kernels
    start_ns: int
    duration_ns: int
    stream: int
    call: int  # running number of the operator's call; -1 where no operator launched it


class Place(NamedTuple):
    """Where the tensors of a call's memory begin, in the memory of the whole step."""

    memory: int
    offset_bytes: int


class Flow(NamedTuple):
    """Which memories of the step a call of an operator used: what one call made, a later one reads."""

    call: int
    inputs: tuple[Place, ...]  # by the operator's own numbering of its memories
    outputs: tuple[int, ...]  # those it made


@dataclass(frozen=True, slots=True)
class Timing:
    """The whole step, again and again, by one clock."""

    samples_ns: tuple[int, ...]
    method: str
    clock_hz: float | None = None
    watts: float | None = None
    celsius: float | None = None
    joules: float | None = None  # of one step, idle power subtracted
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    SCHEMA: ClassVar[str] = "chip.trace/1"

    model: str
    engine: str
    phase: str
    batch: int
    prompt: int
    dtype: str
    device: str
    source: str  # "graph": a replayed CUDA graph, "eager", "operators" (a CPU), "chrome" (a foreign trace)
    operators: tuple[Operator, ...]
    kernels: tuple[Kernel, ...]
    events: tuple[KernelEvent, ...]
    timings: dict[str, Timing] = field(default_factory=dict)  # "graph", "eager"
    missing: dict[str, str] = field(default_factory=dict)  # what was not recorded, and why
    l2_bytes: int = 0
    flow: tuple[Flow, ...] = ()  # of the calls that launched kernels, in order
    config: dict[str, Any] = field(default_factory=dict)  # config.json of the model; older traces have its name alone

    @property
    def title(self) -> str:
        where = f"{self.phase} {self.batch} x {self.prompt}" if self.batch else self.phase
        return f"{self.model} {self.engine} {where}".strip()

    @property
    def disturbed(self) -> str:
        """How another process was seen to use the machine, "" where none was."""
        flags = [f for t in self.timings.values() for f in t.flags]
        return next((f.removeprefix(DISTURBED) for f in flags if f.startswith(DISTURBED)), "")

    @property
    def gpu_ns(self) -> int:
        """Sum of all kernels."""
        return sum(e.duration_ns for e in self.events)

    @property
    def busy_ns(self) -> int:
        """Time in which at least one kernel ran."""
        return self.gpu_ns - self.overlap_ns

    @property
    def overlap_ns(self) -> int:
        """What kernels of different streams ran at the same time; those of one stream never do."""
        if len({e.stream for e in self.events}) < 2:
            return 0
        return self.gpu_ns - sum(end - start for start, end in busy_stretches(self.events))

    def at_full_clock(self, boost_hz: float) -> bool:
        """Whether the step as a graph ran as fast as the device can: then no load slowed its clock."""
        ran = self.timings["graph"].clock_hz if "graph" in self.timings else None
        return ran is not None and ran >= FULL_CLOCK * boost_hz


def busy_stretches(events: tuple[KernelEvent, ...]) -> Iterator[tuple[int, int]]:
    """Unions of overlapping kernels, in order."""
    begin = end = None
    for e in sorted(events, key=lambda e: e.start_ns):
        if end is None or e.start_ns > end:
            if begin is not None and end is not None:
                yield begin, end
            begin, end = e.start_ns, e.start_ns + e.duration_ns
        else:
            end = max(end, e.start_ns + e.duration_ns)
    if begin is not None and end is not None:
        yield begin, end


def write(path: Path, trace: Trace, environment: dict[str, Any]) -> str:
    """Write the trace; its id."""
    document = artifact.new(Trace.SCHEMA, codec.to_json(trace), environment)
    artifact.write(path, document, indent=None)
    return document.id


def read(path: Path) -> tuple[artifact.Artifact, Trace]:
    file = artifact.read(path, Trace.SCHEMA)
    return file, from_data(file.data, str(path))


def from_data(data: Any, where: str) -> Trace:
    trace = codec.from_json(Trace, data, where)
    for i, event in enumerate(trace.events):
        if not 0 <= event.kernel < len(trace.kernels):
            raise ChipError(f"{where}: events[{i}] is of kernel {event.kernel}, there are {len(trace.kernels)}")
        if event.duration_ns < 0:
            raise ChipError(f"{where}: events[{i}] has a negative duration")
    for i, operator in enumerate(trace.operators):
        check_operator(operator, f"{where}: operators[{i}]")
    for i, kernel in enumerate(trace.kernels):
        check_kernel(kernel, len(trace.operators), f"{where}: kernels[{i}]")
    _check_flow(trace, where)
    return trace


def _check_flow(trace: Trace, where: str) -> None:
    """Every call has a place for each memory of its operator."""
    called = {e.call: trace.kernels[e.kernel].operator for e in trace.events}
    for i, flow in enumerate(trace.flow):
        index = called.get(flow.call)
        memories = {t.memory for t in trace.operators[index].tensors} if index is not None else set()
        if any(not 0 <= m < len(flow.inputs) for m in memories) or any(p.offset_bytes < 0 for p in flow.inputs):
            raise ChipError(f"{where}: flow[{i}] needs a place, not negative, for each memory of its operator")


def check_kernel(kernel: Kernel, operators: int, where: str) -> None:
    if kernel.kind not in KINDS:
        raise ChipError(f"{where}: kind {kernel.kind!r} is not known; it is one of {', '.join(KINDS)}")
    if kernel.operator is not None and not 0 <= kernel.operator < operators:
        raise ChipError(f"{where}: is of operator {kernel.operator}, there are {operators}")


def check_operator(operator: Operator, where: str) -> None:
    for j, t in enumerate(operator.tensors):
        if t.dtype not in DTYPE_BYTES:
            raise ChipError(f"{where}: tensors[{j}] has dtype {t.dtype!r}, which is not known")
        if len(t.shape) != len(t.stride) or any(n < 0 for n in (*t.shape, *t.stride)) or t.offset_bytes < 0:
            raise ChipError(f"{where}: tensors[{j}] needs a stride for each size, none negative")
    for index in _tensor_indices([*operator.args, *operator.kwargs.values()]):
        if not isinstance(index, int) or not 0 <= index < len(operator.tensors):
            raise ChipError(f"{where}: names tensor {index!r}, there are {len(operator.tensors)}")


def _tensor_indices(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from _tensor_indices(item)
    elif isinstance(value, dict) and "tensor" in value:
        yield value["tensor"]
