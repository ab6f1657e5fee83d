"""How an operator runs on a device: one file a family, as in `chip.ops`, found by listing this folder.

A builder, `builds(kind, ...)`, allocates random inputs (never zeros: values change power and so speed) and returns the
closure whose body is exactly the timed call, as torch runs it eagerly. Kernels of vLLM's own are called as vLLM calls
them, from an environment that has it.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

import torch

from chip.engines.vllm.options import STEP_TOKENS_LARGE
from chip.types import ChipError, Op

Closure = Callable[[], object]
T = TypeVar("T", bound=Callable[..., Closure])

DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,
}
LAYOUT_BYTES = 2**30  # of the inputs that a kernel is compiled with: wide rows are shown fewer
CPU_BLOCK = 2**22  # elements drawn on a CPU before the draw is repeated: random enough, and set-up stays short


class Unsupported(Exception):
    """This operator cannot be run here; the text says why. Becomes a record with status `skipped`."""


class Draw(NamedTuple):
    """Where random inputs are drawn, and what from."""

    device: torch.device
    generator: torch.Generator

    def normal(self, shape: tuple[int, ...], dtype: str, scale: float = 1.0) -> torch.Tensor:
        return normal(shape, dtype, *self, scale)

    def integers(self, low: int, high: int, shape: tuple[int, ...], dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.randint(low, high, shape, device=self.device, generator=self.generator, dtype=dtype)

    def permutation(self, count: int) -> torch.Tensor:
        return torch.randperm(count, device=self.device, generator=self.generator)

    def uniform(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.rand(shape, device=self.device, generator=self.generator)


class Builder(NamedTuple):
    build: Callable[[Any, Draw, str], Closure]
    gpu: tuple[str, ...] | Callable[[Any], tuple[str, ...]]  # the ways to run it, the default first
    cpu: tuple[str, ...]
    around: Callable[[Op, str], AbstractContextManager[Any]] | None  # holds while the closure runs, and costs nothing


_builders: dict[str, Builder] = {}
VLLM = ("cutlass", "deepgemm", "fa3", "machete", "marlin", "paged", "triton", "vllm")  # kernels that it brings, on GPUs


def builds(
    kind: str,
    gpu: tuple[str, ...] | Callable[[Any], tuple[str, ...]] = ("torch",),
    cpu: tuple[str, ...] = (),
    around: Callable[[Op, str], AbstractContextManager[Any]] | None = None,
) -> Callable[[T], T]:
    """Makes a function the builder of an operator. `cpu`: its implementations there, where they are not those of a GPU
    without vLLM's."""

    def enter(build: T) -> T:
        by_default = () if callable(gpu) else tuple(name for name in gpu if name not in VLLM)
        _builders[kind] = Builder(build, gpu, cpu or by_default, around)
        return build

    return enter


@lru_cache(maxsize=1)
def names() -> tuple[str, ...]:
    for family in pkgutil.iter_modules(__path__):
        import_module(f"{__name__}.{family.name}")
    return tuple(sorted(_builders))


def builder(op: Op) -> Builder:
    if op.kind not in names():
        raise Unsupported(f"{op.kind} has no builder in chip/lab/measure/build")
    return _builders[op.kind]


def implementations(op: Op, device_type: str) -> tuple[str, ...]:
    """The ways this operator can be asked for, the default first."""
    _, gpu, cpu, _ = builder(op)
    if device_type == "cpu":
        return cpu
    return gpu(op) if callable(gpu) else gpu


def choose(op: Op, device_type: str, wanted: str = "") -> str:
    known = implementations(op, device_type)
    if wanted and wanted not in known:
        raise ChipError(
            f"{op.kind} has no implementation {wanted!r} on {device_type}; choose one of {', '.join(known)}"
        )
    return wanted or known[0]


def build(op: Op, device: torch.device, generator: torch.Generator, implementation: str = "") -> Closure:
    return builder(op).build(op, Draw(device, generator), choose(op, device.type, implementation))


@contextmanager
def around(op: Op, implementation: str) -> Iterator[None]:
    """Holds while the closure is built, captured and timed: no gradients, the fp32 arithmetic the dtype names, and
    what the operator's own builder asks for."""
    special = builder(op).around
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(_fp32_arithmetic(tf32=getattr(op, "dtype", "") == "tf32"))
        if special:
            stack.enter_context(special(op, implementation))
        yield


@contextmanager
def _fp32_arithmetic(tf32: bool) -> Iterator[None]:
    """fp32 means fp32: cuDNN would otherwise take TF32 for convolutions and recurrent layers by default."""
    matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = cudnn


def compiled(
    function: Callable[..., object], by_rows: Sequence[torch.Tensor], shared: Sequence[torch.Tensor] = ()
) -> Closure:
    """`function(*by_rows, *shared)` by torch.compile. Each width is compiled once, for any number of rows.

    torch.compile lays a kernel out for the rows it sees first. vLLM shows it its largest step, so that is shown here
    before anything else: the same kernel then serves a row as well."""
    run = _compile(function)
    _lay_out(run, by_rows, shared)
    _any_rows(by_rows, shared)
    return lambda: run(*by_rows, *shared)


@lru_cache(maxsize=64)
def _compile(function: Callable[..., object]) -> Callable[..., object]:
    import torch._dynamo.config as dynamo

    dynamo.recompile_limit, dynamo.accumulated_recompile_limit = 64, 4096
    dynamo.fail_on_recompile_limit_hit = True  # rather than running something else under this name
    compiled_once: Callable[..., object] = torch.compile(function)
    return compiled_once


def _lay_out(run: Callable[..., object], by_rows: Sequence[torch.Tensor], shared: Sequence[torch.Tensor]) -> None:
    """Have it compiled for the rows of vLLM's largest step, unless it was: once a width, dtype and device."""
    layout = (run, *((t.shape[1:], t.dtype, t.device) for t in by_rows))
    if layout in _laid_out:
        return
    row_bytes = sum(t[0].nbytes for t in by_rows)
    rows = max(2, min(STEP_TOKENS_LARGE, LAYOUT_BYTES // row_bytes))
    large = [t.new_zeros(rows, *t.shape[1:]) for t in by_rows]
    _any_rows(large, shared)
    run(*large, *shared)
    _laid_out.add(layout)


_laid_out: set[tuple[object, ...]] = set()


def _any_rows(by_rows: Iterable[torch.Tensor], shared: Iterable[torch.Tensor]) -> None:
    """Rows may be any; every other size is a constant of the kernel, or it would be a variable from the second on."""
    for tensor in by_rows:
        torch._dynamo.maybe_mark_dynamic(tensor, 0)
        torch._dynamo.mark_static(tensor, list(range(1, tensor.dim())))
    for tensor in shared:
        torch._dynamo.mark_static(tensor)


def torch_dtype(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise Unsupported(f"torch has no arithmetic in {name}")
    return DTYPES[name]


def normal(
    shape: tuple[int, ...], dtype: str, device: torch.device, generator: torch.Generator, scale: float = 1.0
) -> torch.Tensor:
    """Standard normal values (times `scale`)."""
    wanted = torch_dtype(dtype)
    drawn = wanted if wanted.itemsize > 1 else torch.bfloat16
    count = 1
    for n in shape:
        count *= n
    if device.type == "cpu" and count > CPU_BLOCK:
        block = torch.randn(CPU_BLOCK, dtype=drawn, device=device, generator=generator)
        values = torch.empty(count, dtype=drawn, device=device)
        for start in range(0, count, CPU_BLOCK):
            values[start : start + CPU_BLOCK] = block[: count - start]
        values = values.view(shape)
    else:
        values = torch.randn(shape, dtype=drawn, device=device, generator=generator)
    if scale != 1.0:
        values *= scale
    return values if drawn is wanted else values.to(wanted)
