"""What `chip profile --suite` measures. A suite is a function from dtype to cases; SUITES lists them.

Suites that were put together by hand are tables of shapes; the others take their shapes from points or from models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from chip import engines, ops
from chip.decoders import library
from chip.decoders.decoder import Decoder
from chip.decoders.lower import body, head, lower
from chip.dtypes import precision
from chip.lab.measure import point_cases
from chip.lab.measure.point_cases import SuiteCase as SuiteCase  # what suites are made of
from chip.ops.linear import Linear
from chip.types import Op, Program, Seq, Step


class Shapes(NamedTuple):
    """Each of these operators at each of these sizes. Names are parted by spaces; a size has a number for each axis."""

    operators: str
    axes: str
    sizes: Iterable[tuple[int, ...]]
    implementations: tuple[str, ...] = ("",)


MATRICES = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))  # (n, k): q, k and v; o; gate and up; down
ROWS = (1, 16, 2048, 8192)
VOCABULARY = 128256
HEADS = "batch heads kv_heads head_dim q_len kv_len"

LLM = (  # sizes of Llama-3.1-8B
    Shapes("linear", "m n k", [(m, n, k) for m in (1, 16, 128, 2048, 8192) for n, k in MATRICES]),
    Shapes("linear", "m n k", [(m, VOCABULARY, 4096) for m in (1, 64)]),
    Shapes("attention", HEADS, [
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
    ]),
    Shapes("rms_norm add_rms_norm embedding add", "rows cols", [(rows, 4096) for rows in ROWS]),
    Shapes("silu_mul", "rows cols", [(rows, 14336) for rows in ROWS]),
    Shapes("kv_append", "rows cols", [(rows, 2048) for rows in ROWS]),
    Shapes("rope", "rows heads head_dim", [(rows, 40, 128) for rows in ROWS]),
    Shapes("softmax", "rows cols", [(16, VOCABULARY), (2048, 2048), (65536, 1024)]),
    Shapes("sampling", "rows cols", [(1, VOCABULARY), (64, VOCABULARY)]),
)  # fmt: skip

CLASSIC = (
    Shapes("linear", "m n k bias", [(1024, 1024, 1024, True), (4096, 4096, 4096, True)]),
    Shapes(
        "conv2d", "batch in_channels height width out_channels kernel_h kernel_w stride padding",
        [
            (32, 3, 224, 224, 64, 7, 7, 2, 3), (32, 64, 56, 56, 64, 3, 3, 1, 1),
            (32, 256, 14, 14, 256, 3, 3, 1, 1), (32, 256, 56, 56, 64, 1, 1, 1, 0),
        ],
        ("", "channels_last"),
    ),
    Shapes("lstm", "batch seq input_size hidden layers", [(32, 128, 512, 512, 1), (64, 128, 1024, 1024, 2)]),
    Shapes("layer_norm gelu layer_norm_gelu softmax", "rows cols", [(2048, 1024), (8192, 4096), (16384, 8192)]),
    Shapes("attention", f"{HEADS} causal", [(32, 16, 16, 64, 512, 512, False)], ("", "cudnn", "efficient", "math")),
    Shapes("embedding", "rows cols", [(512, 1024), (16384, 1024)]),
)  # fmt: skip

SQUARES = (256, 512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384)
SKINNY = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256)
GEMM = (
    Shapes("linear", "m n k", [(side, side, side) for side in SQUARES]),
    Shapes("linear", "m n k", [(m, side, side) for m in SKINNY for side in (4096, 8192)]),
    Shapes("linear", "m n k", [  # odd, prime, just over a tile, a vocabulary, a long k, a long m
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
    ]),
)  # fmt: skip

MODEL_ROWS = (8, 1, 64, 256, 2048)  # of the suite `models`
MODEL_WEIGHTS = range(4_000_000, 1_000_000_000)  # elements of a matrix: smaller ones take little of a step
MODEL_TOKENS = (1, 16, 256, 4096)  # rows at which a named model's matrices join the gemm suite


def _listed(table: Iterable[Shapes], dtype: str) -> Iterator[SuiteCase]:
    for operators, axes, sizes, implementations in table:
        for size, kind in product(sizes, operators.split()):
            op = ops.build(kind, {**dict(zip(axes.split(), size)), "dtype": dtype})
            yield from [SuiteCase(op, implementation) for implementation in implementations]


def _models(dtype: str) -> Iterator[SuiteCase]:
    """Products of the bundled models as vLLM merges them."""
    weights: dict[tuple[int, int], None] = {}
    for decoder in map(library.find, library.names()):
        for program in (body(decoder, 1, precision(dtype), 1), head(decoder, 1, precision(dtype), 1)):
            merged = engines.get("vllm").rewrite(program, True, decoder.architecture)
            products = (c.op for b in merged.blocks for c in b.calls if type(c.op) is Linear)
            weights.update(((op.n, op.k), None) for op in products if op.n * op.k in MODEL_WEIGHTS)
    return (SuiteCase(Linear(m, n, k, dtype), context="cold") for m in MODEL_ROWS for n, k in weights)


SUITES: dict[str, Callable[[str], Iterable[SuiteCase]]] = {
    **{name: partial(_listed, table) for name, table in (("llm", LLM), ("classic", CLASSIC), ("gemm", GEMM))},
    **{name: partial(point_cases.same, name) for name in ("tables", "vllm", "quant", "native")},
    "between": point_cases.between,
    "models": _models,
}
CPU_SHRINK = 8
CPU_BYTES, CPU_FLOPS = 64 * 2**20, 4e9  # of a kernel's usual sizes on a CPU
GPU_ONLY = (  # implementations that a CPU does not have
    "cudnn", "efficient", "fa3", "paged", "vllm", "cutlass", "triton", "deepgemm", "machete", "marlin",
    "chip",
)  # fmt: skip
CPU_AXES = (  # axes that are shortened on a CPU
    "m", "n", "k", "rows", "cols", "q_len", "kv_len", "height", "width", "seq", "hidden", "input_size", "tokens",
    "intermediate",
)  # fmt: skip


def cases(name: str, dtype: str, on_cpu: bool) -> list[SuiteCase]:
    """The cases of a suite. On a CPU every long axis is an eighth as long, and cases that then coincide count once."""
    listed: Iterable[SuiteCase] = SUITES[name](dtype)
    if on_cpu:
        listed = (replace(c, op=shrink(c.op)) for c in listed if c.implementation not in GPU_ONLY)
    return list(dict.fromkeys(listed))


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


def shrink_for_cpu(op: Op) -> Op:
    """The operator at a size that fits a CPU's cache or nearly, in a moment."""
    while op.cost().bytes > CPU_BYTES or op.cost().flops > CPU_FLOPS:
        smaller = shrink(op)
        if smaller == op:
            break
        op = smaller
    return op


def usual(kind: str, dtype: str, on_cpu: bool) -> Op | None:
    """The first size of an operator in the suites, for one that is asked for without its axes."""
    suites = ("classic", "llm", "gemm")
    return next((c.op for name in suites for c in cases(name, dtype, on_cpu) if c.op.kind == kind), None)


def matrices(model: Decoder, dtype: str) -> list[SuiteCase]:
    """The dense layers of a model at a few numbers of rows, each shape once."""
    programs = [step_program(model, dtype, batch=1, prompt=tokens, phase="prefill") for tokens in MODEL_TOKENS]
    products = (c.op for p in programs for b in p.blocks for c in b.calls if c.op.kind == "linear")
    return list(dict.fromkeys(map(SuiteCase, products)))


def step_program(model: Decoder, dtype: str, batch: int, prompt: int, phase: str) -> Program:
    """What one step of the model runs: the whole prompt, or one token after it."""
    seq = Seq(prompt, 0, batch) if phase == "prefill" else Seq(1, prompt, batch)
    return lower(model, Step((seq,)), precision(dtype))
