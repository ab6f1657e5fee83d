"""What `chip profile --suite` measures, as data. A suite is a function from dtype to cases; SUITES lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from chip import engines, ops
from chip.dtypes import precision
from chip.measure import point_cases
from chip.models import library
from chip.models.decoder import Decoder
from chip.models.lower import body, head, lower
from chip.ops.linear import Linear
from chip.types import Op, Program, Seq, Step


@dataclass(frozen=True, slots=True)
class SuiteCase:
    op: Op
    implementation: str = ""  # empty: the operator's default on the device
    contexts: tuple[str, ...] = ()  # empty: all that are asked for


# (n, k) of Llama-3.1-8B: merged q, k and v; o; merged gate and up; down
LLM_MATRICES = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))
LLM_TOKENS = (1, 16, 128, 2048, 8192)
LLM_ROWS = (1, 16, 2048, 8192)
LLM_VOCABULARY = 128256

# (batch, heads, kv_heads, head_dim, q_len, kv_len)
LLM_ATTENTION = (
    (1, 32, 8, 128, 512, 512),
    (1, 32, 8, 128, 2048, 2048),
    (1, 32, 8, 128, 8192, 8192),
    (8, 32, 8, 128, 1024, 1024),
    (1, 32, 32, 128, 2048, 2048),
    (1, 32, 8, 128, 512, 4096),  # a chunk of a longer prompt
    (1, 32, 8, 128, 1, 1024),
    (1, 32, 8, 128, 1, 8192),
    (16, 32, 8, 128, 1, 1024),
    (64, 32, 8, 128, 1, 1024),
    (64, 32, 8, 128, 1, 8192),
    (16, 32, 32, 128, 1, 1024),
    (16, 32, 4, 64, 1, 2048),
)

SQUARE = (256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384)
SKINNY = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256)
IRREGULAR = (  # (m, n, k): odd, prime, just over a tile, a vocabulary, a long k, a long m
    (1000, 1000, 1000),
    (4095, 4097, 4099),
    (129, 4096, 4096),
    (257, 4096, 4096),
    (3001, 5003, 2003),
    (2048, 50257, 768),
    (512, 512, 32768),
    (65536, 512, 512),
    (100, 11008, 4096),
    (4224, 4096, 4096),  # one row of tiles more than 4096 has
)


def _llm(dtype: str) -> Iterator[SuiteCase]:
    make = _maker(dtype)
    for m in LLM_TOKENS:
        for n, k in LLM_MATRICES:
            yield make("linear", m=m, n=n, k=k)
    for m in (1, 64):
        yield make("linear", m=m, n=LLM_VOCABULARY, k=4096)
    for batch, heads, kv_heads, dim, q, kv in LLM_ATTENTION:
        yield make("attention", batch=batch, heads=heads, kv_heads=kv_heads, head_dim=dim, q_len=q, kv_len=kv)
    for rows in LLM_ROWS:
        yield make("rms_norm", rows=rows, cols=4096)
        yield make("add_rms_norm", rows=rows, cols=4096)
        yield make("silu_mul", rows=rows, cols=14336)
        yield make("rope", rows=rows, heads=40, head_dim=128)
        yield make("embedding", rows=rows, cols=4096)
        yield make("add", rows=rows, cols=4096)
        yield make("kv_append", rows=rows, cols=2048)
    for rows, cols in ((16, LLM_VOCABULARY), (2048, 2048), (65536, 1024)):
        yield make("softmax", rows=rows, cols=cols)
    for rows in (1, 64):
        yield make("sampling", rows=rows, cols=LLM_VOCABULARY)


def _classic(dtype: str) -> Iterator[SuiteCase]:
    make = _maker(dtype)
    for size in (1024, 4096):
        yield make("linear", m=size, n=size, k=size, bias=True)
    for batch, channels, side, out, kernel, stride in (
        (32, 3, 224, 64, 7, 2),
        (32, 64, 56, 64, 3, 1),
        (32, 256, 14, 256, 3, 1),
        (32, 256, 56, 64, 1, 1),
    ):
        image = {"batch": batch, "in_channels": channels, "height": side, "width": side, "out_channels": out}
        case = make("conv2d", **image, kernel_h=kernel, kernel_w=kernel, stride=stride, padding=kernel // 2)
        yield case
        yield replace(case, implementation="channels_last")
    yield make("lstm", batch=32, seq=128, input_size=512, hidden=512)
    yield make("lstm", batch=64, seq=128, input_size=1024, hidden=1024, layers=2)
    for rows, cols in ((2048, 1024), (8192, 4096), (16384, 8192)):
        for kind in ("layer_norm", "gelu", "layer_norm_gelu", "softmax"):
            yield make(kind, rows=rows, cols=cols)
    bert = make("attention", batch=32, heads=16, kv_heads=16, head_dim=64, q_len=512, kv_len=512, causal=False)
    for implementation in ("", "cudnn", "efficient", "math"):
        yield replace(bert, implementation=implementation)
    for rows in (512, 16384):
        yield make("embedding", rows=rows, cols=1024)


def _gemm(dtype: str) -> Iterator[SuiteCase]:
    make = _maker(dtype)
    squares = [(size, size, size) for size in SQUARE]
    skinny = [(m, side, side) for m in SKINNY for side in (4096, 8192)]
    return (make("linear", m=m, n=n, k=k) for m, n, k in (*squares, *skinny, *IRREGULAR))


def _as_points(suite: str, dtype: str) -> Iterator[SuiteCase]:
    found = point_cases.between(dtype) if suite == "between" else point_cases.same(suite, dtype)
    return (SuiteCase(c.op, c.implementation, (c.context,)) for c in found)


def _models(dtype: str) -> Iterator[SuiteCase]:
    """Products of the bundled models as vLLM merges them."""
    found: dict[tuple[int, int], None] = {}
    for decoder in map(library.find, library.names()):
        for program in (body(decoder, 1, precision(dtype), 1), head(decoder, 1, precision(dtype), 1)):
            merged = engines.get("vllm").rewrite(program, True, decoder.architecture)
            products = (c.op for b in merged.blocks for c in b.calls if type(c.op) is Linear)
            found.update(((op.n, op.k), None) for op in products if op.n * op.k in MODEL_WEIGHTS)
    make = _maker(dtype)
    return (replace(make("linear", m=m, n=n, k=k), contexts=("cold",)) for m in MODEL_ROWS for n, k in found)


SUITES: dict[str, Callable[[str], Iterator[SuiteCase]]] = {
    "llm": _llm,
    "classic": _classic,
    "gemm": _gemm,
    **{name: partial(_as_points, name) for name in ("tables", "vllm", "quant", "native", "between")},
    "models": _models,
}
MODEL_ROWS = (8, 1, 64, 256, 2048)  # of the suite `models`
MODEL_WEIGHTS = range(4_000_000, 1_000_000_000)  # elements of a matrix: smaller ones take little of a step
MODEL_TOKENS = (1, 16, 256, 4096)  # rows at which a named model's matrices join the gemm suite
CPU_SHRINK = 8
GPU_ONLY = (  # implementations
    "cudnn", "efficient", "fa3", "paged", "vllm", "cutlass", "triton", "deepgemm", "machete", "marlin",
    "chip",
)  # fmt: skip
CPU_AXES = (
    "m", "n", "k", "rows", "cols", "q_len", "kv_len", "height", "width", "seq", "hidden", "input_size", "tokens",
    "intermediate",
)  # fmt: skip


def cases(name: str, dtype: str, on_cpu: bool) -> list[SuiteCase]:
    """The cases of a suite; on a CPU every long axis is an eighth, and what then coincides is measured once."""
    found: Iterable[SuiteCase] = SUITES[name](dtype)
    if on_cpu:
        found = (replace(c, op=shrink(c.op)) for c in found if c.implementation not in GPU_ONLY)
    return list(dict.fromkeys(found))


def shrink(op: Op) -> Op:
    """The same operator at a size a CPU gets through in milliseconds."""
    values: dict[str, Any] = {name: getattr(op, name) for name in ops.axes(type(op))}
    for axis in CPU_AXES:
        value = values.get(axis, 0)
        if value >= 8 * CPU_SHRINK:
            values[axis] = value // CPU_SHRINK
    if values.get("batch", 1) > 8:
        values["batch"] //= 4
    if "q_len" in values:
        values["q_len"] = min(values["q_len"], values["kv_len"])
    return ops.build(op.kind, values)


def matrices(model: Decoder, dtype: str) -> list[SuiteCase]:
    """The dense layers of a model, at a few row counts, each shape once."""
    programs = [step_program(model, dtype, batch=1, prompt=tokens, phase="prefill") for tokens in MODEL_TOKENS]
    products = (c.op for p in programs for b in p.blocks for c in b.calls if c.op.kind == "linear")
    return list(dict.fromkeys(map(SuiteCase, products)))


def step_program(model: Decoder, dtype: str, batch: int, prompt: int, phase: str) -> Program:
    """What one step of the model runs: the whole prompt, or one token after it."""
    seq = Seq(prompt, 0, batch) if phase == "prefill" else Seq(1, prompt, batch)
    return lower(model, Step((seq,)), precision(dtype))


def _maker(dtype: str) -> Callable[..., SuiteCase]:
    return lambda kind, **axes: SuiteCase(ops.build(kind, {**axes, "dtype": dtype}))
