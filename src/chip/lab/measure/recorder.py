"""Recording the operators of a step as torch dispatches them: shapes, strides, scalars, and what is still in cache.

Composite operators are taken apart, as torch itself does, down to those that launch kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from chip.files.traces import Flow, Operator, Place, TensorArg
from chip.lab.measure.device import Device

LINE = 16  # bytes: the alignment that kernels look at
COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
VIEWS = torch._C.DispatchKey.ADInplaceOrView
has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
WARM_SHARE = 8  # closer than this part of the cache is simply warm


class Dispatched(TorchDispatchMode):  # type: ignore[misc]
    """Calls `on_call(number, func, args, kwargs, run)` for each operator that is not made of others."""

    def __init__(self, on_call: Callable[..., Any], device: Device) -> None:
        super().__init__()
        self.on_call, self.count = on_call, 0
        self.backend = getattr(torch._C.DispatchKey, device.kind.upper())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if has_kernel(func.name(), COMPOSITE) and not has_kernel(func.name(), self.backend):
            # A mode runs below torch's own tracking of views. Without it a view of a weight requires no grad, and
            # torch.matmul asks that of a weight before it makes one matrix of a batch: bmm would be seen for mm.
            with torch._C._SetExcludeDispatchKeyGuard(VIEWS, False), self:
                return func._op_dk(COMPOSITE, *args, **kwargs)
        number, self.count = self.count, self.count + 1
        return self.on_call(number, func, args, kwargs)


class Recorder:
    """Every call of a step, in order. No tensor is held: the allocator must do what it does in the model."""

    def __init__(self, device: Device) -> None:
        self.device, self.kind, self.l2_bytes = device, device.kind, device.l2_bytes
        self.calls: list[Operator] = []
        self.flow: list[Flow] = []  # of every call
        self.views: set[int] = set()  # calls that touch no memory
        self._touched = 0
        self._last: dict[int, int] = {}  # allocation -> bytes touched in all, when it was last used
        self._memories: dict[int, tuple[int, StorageWeakRef]] = {}  # allocation -> its number in the step
        self._count = 0

    def mode(self) -> Dispatched:
        return Dispatched(self._call, self.device)

    def _call(self, number: int, func: Any, args: Any, kwargs: Any) -> Any:
        encoder = _Encoder(self)
        encoded = tuple(encoder.encode(a) for a in args), {k: encoder.encode(v) for k, v in kwargs.items()}
        numbers = {allocation(t): self._memory(t) for t in tensors_in([*args, *kwargs.values()])}
        inputs = tuple(Place(numbers[a], first - a) for a, first in encoder.first().items())
        out = func(*args, **kwargs)
        name, overload = func.name().partition(".")[0], func._overloadname
        fresh = [] if func.is_view else [t for t in tensors_in(out) if allocation(t) not in encoder.allocations]
        operator = Operator(name, overload, encoder.tensors(), *encoded, tuple(_bytes_of(t) for t in fresh))
        self.flow.append(Flow(number, inputs, tuple(dict.fromkeys(self._memory(t) for t in fresh))))
        if func.is_view or is_bookkeeping(name):
            self.views.add(number)
        else:
            self._touch([*tensors_in([*args, *kwargs.values()]), *fresh])
        self.calls.append(operator)
        return out

    def _memory(self, t: torch.Tensor) -> int:
        """The number of a tensor's memory. The allocator gives an address again: that is another memory."""
        known = self._memories.get(allocation(t))
        if known is None or known[1].expired():
            known = self._memories[allocation(t)] = self._count, StorageWeakRef(t.untyped_storage())
            self._count += 1
        return known[0]

    def reuse_of(self, t: torch.Tensor) -> int | None:
        """Bytes touched since the tensor's memory was last used, rounded up to a power of two; see `TensorArg`."""
        last = self._last.get(allocation(t))
        if last is None:
            return None
        between = self._touched - last
        if between <= self.l2_bytes // WARM_SHARE:
            return 0
        rounded = 1 << math.ceil(math.log2(between))
        return rounded if rounded <= 4 * self.l2_bytes else None

    def _touch(self, tensors: list[torch.Tensor]) -> None:
        seen: dict[int, int] = {}
        for t in tensors:
            seen[allocation(t)] = max(seen.get(allocation(t), 0), _bytes_of(t))
        self._touched += sum(seen.values())
        self._last.update(dict.fromkeys(seen, self._touched))


class _Encoder:
    """Arguments of one call as JSON values."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.allocations: dict[int, int] = {}  # allocation -> its number in this call
        self._found: list[TensorArg] = []
        self._addresses: list[int] = []

    def encode(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, (list, tuple)):
            return [self.encode(v) for v in value]
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):
            return {"device": "device" if value.type == self.recorder.kind else "host"}
        if isinstance(value, (torch.layout, torch.memory_format)):
            return {type(value).__name__: str(value).removeprefix("torch.")}
        if isinstance(value, float) and not math.isfinite(value):
            return {"float": str(value)}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        return {"unknown": type(value).__name__}

    def _tensor(self, t: torch.Tensor) -> dict[str, int]:
        memory = self.allocations.setdefault(allocation(t), len(self.allocations))
        self._addresses.append(t.data_ptr() or allocation(t))  # an empty one has no address
        low, high = _range(t)
        dtype = str(t.dtype).removeprefix("torch.")
        reuse = self.recorder.reuse_of(t)
        host = t.device.type != self.recorder.kind
        self._found.append(TensorArg(tuple(t.shape), tuple(t.stride()), dtype, memory, 0, reuse, low, high, host))
        return {"tensor": len(self._found) - 1}

    def first(self) -> dict[int, int]:
        """The first byte used of each allocation, down to a line: alignment is kept."""
        firsts: dict[int, int] = {}
        for t, address in zip(self._found, self._addresses):
            firsts[t.memory] = min(firsts.get(t.memory, address), address)
        return {a: max(a, firsts[memory] // LINE * LINE) for a, memory in self.allocations.items()}

    def tensors(self) -> tuple[TensorArg, ...]:
        """With offsets from there."""
        first = list(self.first().values())
        return tuple(
            replace(t, offset_bytes=address - first[t.memory]) for t, address in zip(self._found, self._addresses)
        )


def is_bookkeeping(name: str) -> bool:
    """Operators that make or describe memory and touch none."""
    bare = name.removeprefix("aten::")
    return bare.startswith(
        ("empty", "new_empty", "sym_", "_unsafe_view", "detach", "lift_fresh", "is_", "set_", "resize")
    )


def _range(t: torch.Tensor) -> tuple[int | None, int | None]:
    if t.is_floating_point() or t.is_complex() or t.dtype == torch.bool or not t.numel():
        return None, None
    return int(t.min()), int(t.max())


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def allocation(t: torch.Tensor) -> int:
    return int(t.untyped_storage().data_ptr())


def _bytes_of(t: torch.Tensor) -> int:
    count = 1
    for n, s in zip(t.shape, t.stride()):
        count *= n if s else min(n, 1)
    return int(count * t.element_size())
