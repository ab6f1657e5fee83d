"""Arguments of a recorded operator, made anew: random data of the same shape, stride, alignment and sharing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from chip.files.traces import Operator, TensorArg
from chip.lab.replay.rotation import Rotation
from chip.types import ChipError

PITCH = 512  # bytes: what torch's allocator aligns to
SKEW = 37  # pitches between two copies, at least
FORBIDDEN = ("from_file", "save")  # reach beyond their tensors
WORDS = ("none", "tanh", "mean", "sum", "floor", "trunc")  # texts that operators take


class Buffers:
    """The memories of one operator, as bytes, each in one or more copies that are used in turn."""

    def __init__(self, operator: Operator, device: torch.device, copies: Mapping[int, Sequence[torch.Tensor]]) -> None:
        self.operator, self.device, self.copies = operator, device, copies

    def tensor(self, index: int, turn: int) -> torch.Tensor:
        t = self.operator.tensors[index]
        flat = self._copy(t.memory, turn).view(_dtype(t.dtype))
        start = flat.storage_offset() + t.offset_bytes // flat.element_size()
        return torch.as_strided(flat, t.shape, t.stride, start)

    def touch(self, memory: int, turn: int) -> Callable[[], object]:
        """Writes one copy of a memory without changing it."""
        part = self._copy(memory, turn).view(torch.int32)
        return lambda: part.add_(0)

    def _copy(self, memory: int, turn: int) -> torch.Tensor:
        copies = self.copies[memory]
        return copies[turn % len(copies)]

    def call(self, turn: int) -> Callable[[], object]:
        """The operator with the copies of that turn."""
        func = lookup(self.operator)
        args = [self._value(a, turn) for a in self.operator.args]
        kwargs = {k: self._value(v, turn) for k, v in self.operator.kwargs.items()}
        named = [a.name for a in func._schema.arguments[: len(args)] if a.kwarg_only]  # the profiler lists them all
        kwargs |= zip(named, args[len(args) - len(named) :])
        positional = args[: len(args) - len(named)]
        return lambda: func(*positional, **kwargs)

    def _value(self, value: Any, turn: int) -> Any:
        if isinstance(value, list):
            return [self._value(v, turn) for v in value]
        if isinstance(value, str) and value not in WORDS:
            raise ChipError(f"{self.operator.name}: text argument {value[:40]!r} is none of {', '.join(WORDS)}")
        if not isinstance(value, dict):
            return value
        (kind, what), *_ = value.items()
        if kind == "tensor":
            return self.tensor(what, turn)
        if kind == "device":
            return torch.device("cpu") if what == "host" else self.device
        if kind == "float":
            return float(what)
        if kind == "dtype":
            return _dtype(what)
        if kind in ("layout", "memory_format") and isinstance(getattr(torch, str(what), None), getattr(torch, kind)):
            return getattr(torch, what)
        raise ChipError(f"{self.operator.name}: an argument of type {kind} {what!r} was not recorded")


def rotating(operator: Operator, device: torch.device, rotation: Rotation) -> Buffers:
    """Random data, each memory in as many copies as its rotation says, cut out of one allocation.

    Copies are an odd number of pitches apart, so that they do not begin at the same place modulo powers of two."""
    draw = ArgumentDraw(device)
    buffers = {}
    for memory, (size, like) in memories(operator).items():
        used, copies = max(1, -(-size // PITCH)), rotation.copies[memory]
        apart = used + SKEW | 1
        flat = draw.random(apart * copies * PITCH, like)
        buffers[memory] = [flat[i * PITCH : (i + used) * PITCH] for i in range(0, apart * copies, apart)]
    return Buffers(operator, device, buffers)


def memories(operator: Operator) -> dict[int, tuple[int, TensorArg]]:
    """The bytes used of each memory of an operator, and the first of its tensors."""
    sizes: dict[int, tuple[int, TensorArg]] = {}
    for t in operator.tensors:
        size, first = sizes.get(t.memory, (0, t))
        sizes[t.memory] = max(size, t.offset_bytes + t.span_bytes), first
    return sizes


def written(operator: Operator) -> set[int]:
    """Memories that the operator changes in place."""
    parameters = lookup(operator)._schema.arguments
    passed = [
        *zip(parameters, operator.args),
        *((a, operator.kwargs[a.name]) for a in parameters if a.name in operator.kwargs),
    ]
    values = [value for a, value in passed if a.alias_info is not None and a.alias_info.is_write]
    flat = [v for value in values for v in (value if isinstance(value, list) else [value])]
    return {operator.tensors[v["tensor"]].memory for v in flat if isinstance(v, dict) and "tensor" in v}


def lookup(operator: Operator) -> Any:
    """torch's own operator of that name; only those of aten are called."""
    space, _, name = operator.name.partition("::")
    if space != "aten" or name in FORBIDDEN or not hasattr(torch.ops.aten, name):
        raise ChipError(f"{operator.name}: torch {torch.__version__} has no such operator to call")
    packet = getattr(torch.ops.aten, name)
    for overload in packet.overloads():
        func = getattr(packet, overload)
        if overload == operator.overload or (not operator.overload and _takes(func, operator)):
            return func
    raise ChipError(f"{operator.name}.{operator.overload}: torch {torch.__version__} has no such overload")


def _takes(func: Any, operator: Operator) -> bool:
    """Whether an overload fits arguments that were recorded without its name: tensors in the same places, and what is
    not given has a default."""
    parameters, given = func._schema.arguments, len(operator.args)
    if len(parameters) < given or any(a.is_out for a in parameters):
        return False
    if any(not a.has_default_value() for a in parameters[given:]):
        return False
    tensors = [isinstance(a, dict) and "tensor" in a for a in operator.args]
    return all(("Tensor" in str(a.type)) == g or not g for a, g in zip(parameters, tensors)) and all(
        g or "Optional" in str(a.type) or str(a.type) != "Tensor" for a, g in zip(parameters, tensors)
    )


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, str(name), None)
    if not isinstance(dtype, torch.dtype):
        raise ChipError(f"dtype {name!r} is not one of torch {torch.__version__}")
    return dtype


class ArgumentDraw:
    """Random bytes, the same ones for the same seed."""

    def __init__(self, device: torch.device, seed: int = 6, std: float = 1.0) -> None:
        self.device, self.seed, self.std = device, seed, std
        self._generators: dict[str, torch.Generator] = {}

    def random(self, size_bytes: int, like: TensorArg) -> torch.Tensor:
        """Flat bytes that read as normal numbers, as whole numbers in range, or as true."""
        where = torch.device("cpu") if like.host else self.device
        if where.type not in self._generators:
            self._generators[where.type] = torch.Generator(where).manual_seed(self.seed)
        generator = self._generators[where.type]
        kind = _dtype(like.dtype)
        flat = torch.empty(size_bytes, dtype=torch.uint8, device=where)
        if kind == torch.bool:
            return flat.fill_(1)
        view = flat.view(kind)
        if kind.is_floating_point and kind.itemsize > 1:
            view.normal_(0, self.std, generator=generator)
        elif kind.is_floating_point:
            flat.random_(0, 100, generator=generator)  # finite in either 8-bit format
        elif kind.is_complex:
            view.zero_()
        else:
            low, high = like.low or 0, 1 if like.high is None else like.high
            view.random_(low, max(low, high) + 1, generator=generator)
        return flat
