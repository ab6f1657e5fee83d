"""Arguments of a recorded operator, made anew: random data of the same shape, stride, alignment and sharing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from chip.replay.rotation import Rotation
from chip.traces import Operator
from chip.types import ChipError

PITCH = 512  # bytes: what torch's allocator aligns to
FORBIDDEN = ("from_file",)  # reaches beyond its tensors
WORDS = ("none", "tanh", "mean", "sum", "floor", "trunc")  # texts that operators take


class Buffers:
    """The memories of one operator, each in as many copies as its rotation says."""

    def __init__(self, operator: Operator, device: torch.device, rotation: Rotation, seed: int = 6) -> None:
        self.operator, self.device, self.rotation = operator, device, rotation
        self._pitch: dict[int, int] = {}
        self._flat: dict[int, torch.Tensor] = {}
        generators: dict[str, torch.Generator] = {}
        for t in operator.tensors:
            end = t.offset_bytes + t.span_bytes
            self._pitch[t.memory] = max(self._pitch.get(t.memory, PITCH), -(-end // PITCH) * PITCH)
        for t in operator.tensors:
            if t.memory not in self._flat:
                where = torch.device("cpu") if t.host else device
                generator = generators.setdefault(where.type, torch.Generator(where).manual_seed(seed))
                size = self._pitch[t.memory] * rotation.copies[t.memory]
                self._flat[t.memory] = _random(size, t.dtype, t.low, t.high, generator)

    def tensor(self, index: int, turn: int) -> torch.Tensor:
        t = self.operator.tensors[index]
        flat = self._flat[t.memory].view(_dtype(t.dtype))
        start = (turn % self.rotation.copies[t.memory]) * self._pitch[t.memory] + t.offset_bytes
        return torch.as_strided(flat, t.shape, t.stride, start // flat.element_size())

    def touch(self, memory: int, turn: int, write: bool = True) -> Callable[[], object]:
        """Writes one copy of a memory without changing it, or only reads it."""
        pitch = self._pitch[memory]
        start = (turn % self.rotation.copies[memory]) * pitch
        part = self._flat[memory][start : start + pitch].view(torch.int32)
        return (lambda: part.add_(0)) if write else (lambda: torch.sum(part))

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
    """Whether an overload fits arguments that were recorded without its name: as many, tensors in the same places."""
    taken = func._schema.arguments
    if len(taken) != len(operator.args) or any(a.is_out for a in taken):
        return False
    given = [isinstance(a, dict) and "tensor" in a for a in operator.args]
    return all(("Tensor" in str(a.type)) == g or not g for a, g in zip(taken, given)) and all(
        g or "Optional" in str(a.type) or str(a.type) != "Tensor" for a, g in zip(taken, given)
    )


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, str(name), None)
    if not isinstance(found, torch.dtype):
        raise ChipError(f"dtype {name!r} is not one of torch {torch.__version__}")
    return found


def _random(size_bytes: int, dtype: str, low: int | None, high: int | None, generator: torch.Generator) -> torch.Tensor:
    """Flat bytes that read as normal numbers, as whole numbers in range, or as true."""
    kind = _dtype(dtype)
    made = torch.empty(size_bytes, dtype=torch.uint8, device=generator.device)
    if kind == torch.bool:
        return made.fill_(1)
    view = made.view(kind)
    if kind.is_floating_point and kind.itemsize > 1:
        view.normal_(generator=generator)
    elif kind.is_floating_point:
        made.random_(0, 100, generator=generator)  # finite in either 8-bit format
    elif kind.is_complex:
        view.zero_()
    else:
        view.random_(low or 0, max((high if high is not None else 1) + 1, (low or 0) + 1), generator=generator)
    return made
