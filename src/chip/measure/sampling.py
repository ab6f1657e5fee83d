"""Where to measure operators so that shapes never measured can be predicted: `chip profile --suite tables`.

Points fill each operator's space evenly on logarithmic axes (an additive low-discrepancy sequence: any first part of
it covers the space too, so a run that was cut short is still of use), with the shapes of real models among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from chip import ops
from chip.engines.hf_graph import SPARE_TOKENS
from chip.engines.vllm.schedule import padded
from chip.types import Op

MAX_BYTES = 16e9  # of one case's tensors
MAX_FLOPS = 2e13

LINEAR_POINTS = 220
ATTENTION_POINTS = 96  # each of prefill, decode and chunks after a past: half of these for the last
ENGINE_ATTENTION_POINTS = 40  # each of the ways in which engines call attention
ROWS_COLS_POINTS = 36  # for each operator over rows and columns, ...
WIDTH_POINTS = 18  # ... and at widths of models in use, or where kernels change
FLAT_POINTS = 18  # for each that takes every element by itself: only their number counts
BY_ROWS = ("rms_norm", "layer_norm", "softmax", "embedding", "add_rms_norm")
FLAT_OPS = ("gelu", "silu_mul", "add", "silu")
WIDTHS = (768, 896, 1024, 1536, 2048, 2304, 2560, 2880, 3072, 3584, 4096, 5120, 5376, 6144, 7168, 8192, 12288, 16384)
SOFTMAX_COLS = (2050, 32768)  # rows that one warp does not hold, whose three kernels take half of an even spread
# In a model these find their inputs warm in cache, since the kernel before has just written them.
WARM_OPS = ("layer_norm", "gelu", "silu_mul", "add", "silu", "rms_norm_composed", "kv_append")
FAMILY_OPS = ("silu_mul_halves", "rope_join", "gelu_fast", "gelu_new")  # of families that spell them so under HF
WARM_POINTS = 24
ROTARY_POINTS = 14
ROPE_POINTS = 24
PAGE_WRITE_POINTS = 20
MODEL_EXPERT_POINTS, OTHER_EXPERT_POINTS = 46, 16
MOST_TOKENS = 16384  # of a step
EXPERT_BYTES = 5e9  # of all experts, of which a case holds several sets at once
ROLL_POINTS = 16  # windows of 512 tokens to 64 of 2048
VOCABULARIES = (32000, 50304, 65536, 100352, 128256, 129280, 151936, 200064, 256000, 262144)
SAMPLING_POINTS = 30
COMPILED_COLS = {
    "rms_norm": (1024, 2048, 4096, 8192),
    "add_rms_norm": (1024, 2048, 4096, 8192),
    "silu_mul": (4864, 14336, 27648),
}
COMPILED_ROWS = (1, 16, 128, 512, 1024, 2048, 4096, 8192, 16384)

# (n, k) of dense layers of models in use, small to large, and a few vocabularies
MODEL_MATRICES = (
    (2048, 2048), (2560, 2048), (11264, 2048), (2048, 5632), (1152, 896), (9728, 896), (896, 4864),
    (6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (4608, 3584), (37888, 3584), (3584, 18944),
    (7168, 5120), (5120, 5120), (27648, 5120), (5120, 13824), (10240, 8192), (57344, 8192), (8192, 28672),
    (128256, 4096), (152064, 3584), (32000, 2048), (50304, 1024), (3072, 1024), (4096, 1024), (1024, 4096),
    (262144, 1152), (256000, 2304), (151936, 5120),
)  # fmt: skip
MODEL_TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192, 16384)
HEADS = ((32, 8), (32, 32), (28, 4), (40, 8), (64, 8), (16, 16), (32, 4), (16, 8), (14, 2), (8, 1), (12, 12), (24, 8))
HEAD_DIMS = (128, 64, 128, 96, 128, 80, 256)
SERVED_HEADS = (
    (32, 8, 128), (28, 4, 128), (40, 8, 128), (32, 32, 96), (64, 8, 128), (32, 32, 128), (14, 2, 64), (32, 32, 64),
    (4, 1, 256), (24, 8, 128), (16, 8, 128), (8, 4, 256), (32, 8, 64), (32, 4, 128), (12, 2, 128),
)  # fmt: skip
SERVED_POINTS = 75
SERVED_LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)  # of prompts: whole tiles, unlike lengths drawn at random
# Attention that a family spells out: heads, key heads and head size of its models. Prefills, then single tokens.
COMPOSED_HEADS = {
    "alibi_attention": ((16, 16, 64), (32, 32, 128), (16, 16, 96), (32, 32, 80)),
    "float_attention": ((16, 16, 256), (32, 32, 128)),
    "sink_attention": ((64, 8, 64), (32, 4, 64)),
}
COMPOSED_POINTS = (12, 8)
# (experts, top_k, hidden, intermediate) of Mixtral, Qwen3-30B-A3B, Qwen1.5-MoE, DeepSeek-V2-Lite, gpt-oss-20b, OLMoE,
# Qwen3-235B-A22B and Phi-3.5-MoE
MODEL_EXPERTS = (
    (8, 2, 4096, 14336), (128, 8, 2048, 768), (60, 4, 2048, 1408), (64, 6, 2048, 1408), (32, 4, 2880, 2880),
    (64, 8, 2048, 1024), (128, 8, 4096, 1536), (16, 2, 4096, 6400),
)  # fmt: skip
MOST_SCORES = 4e8  # of one case: several copies of them are in memory at once


def spread(count: int, axes: int, offset: float = 0.5) -> Iterator[tuple[float, ...]]:
    """Points of the unit cube, evenly spread: multiples of the powers of the generalised golden ratio, modulo 1."""
    phi = 2.0
    for _ in range(50):
        phi = (1 + phi) ** (1 / (axes + 1))
    for i in range(1, count + 1):
        yield tuple((offset + i * phi ** -(a + 1)) % 1 for a in range(axes))


def log_between(u: float, low: float, high: float) -> float:
    return float(low * (high / low) ** u)


def _multiple(value: float, of: int) -> int:
    return max(of, round(value / of) * of)


class SamplePoint(NamedTuple):
    """A shape to measure: as which implementation ("" for the default), in which context."""

    op: Op
    implementation: str = ""
    context: str = "cold"


def points(dtype: str) -> list[SamplePoint]:
    """Every point, kinds interleaved so that a run cut short has some of each."""
    cold = [
        _linear(dtype),
        _model_linear(dtype),
        _decode(dtype),
        _prefill(dtype),
        _served_prefill(dtype),
        _chunk(dtype),
    ]
    cold += [_rows_cols(kind, dtype, ROWS_COLS_POINTS, i / len(BY_ROWS)) for i, kind in enumerate(BY_ROWS)]
    cold += [_widths(kind, dtype) for kind in BY_ROWS]
    cold += [_rows_cols(kind, dtype, FLAT_POINTS, i / len(FLAT_OPS)) for i, kind in enumerate(FLAT_OPS)]
    cold.append(_rope("rope", dtype))
    cold += [_static_decode(dtype), _static_prefill(dtype), _growing(dtype), _rolls(dtype)]
    warm = [_rows_cols(kind, dtype, FLAT_POINTS if kind in FLAT_OPS else WARM_POINTS) for kind in WARM_OPS]
    warm += [_rope("rope_composed", dtype), _rotary(dtype), _sampling(dtype)]
    groups = [[SamplePoint(op) for op in ops] for ops in cold]
    groups += [[SamplePoint(op, "", "hot") for op in ops] for ops in warm]
    groups.append([SamplePoint(op, "cudnn") for op in _prefill(dtype, ENGINE_ATTENTION_POINTS)])
    groups.append([SamplePoint(op, "fp32", "hot") for op in _sampling(dtype)])
    groups += _experts("_composed", dtype)
    groups += [
        [SamplePoint(op, "compiled", "hot") for op in _compiled(kind, dtype)] for kind in (*COMPILED_COLS, "rope")
    ]
    return interleaved([*groups, *_families(dtype)])


def odd_points(dtype: str) -> list[SamplePoint]:
    """Shapes that `points` has few of: widths that are no multiple of 64, prompts of odd lengths, small heads, rows of
    few elements, and what torch.compile makes of norms and activations with cold weights."""
    groups: list[list[SamplePoint]] = [[SamplePoint(op) for op in _odd_linear(dtype)]]
    groups.append([SamplePoint(op, "flash") for op in _odd_prefill(dtype, 120, 0.5)])
    groups.append([SamplePoint(op, "cudnn") for op in _odd_prefill(dtype, 90, 0.25)])
    for i, kind in enumerate(("rms_norm", "layer_norm", "softmax", "embedding", "add", "silu_mul", "add_rms_norm")):
        groups.append([SamplePoint(op) for op in _odd_rows(kind, dtype, 30, i / 7)])
    for kind, widths in ODD_COMPILED.items():
        made = [(rows, width) for width in widths for rows in ODD_ROWS]
        groups.append([SamplePoint(_odd_compiled(kind, rows, width, dtype), "compiled") for rows, width in made])
    return interleaved(groups)


def odd_paged_points(dtype: str) -> list[SamplePoint]:
    """The same of what vLLM calls: prompts of odd lengths and small heads, chunks after a past, decode steps."""
    groups = [[SamplePoint(op, "fa3") for op in _odd_prefill(dtype, 110, 0.75)]]
    groups.append([SamplePoint(op, "fa3") for op in _odd_decode(dtype)])
    groups.append([SamplePoint(op, "fa3") for op in _odd_chunk(dtype)])
    return interleaved(groups)


def _odd_decode(dtype: str) -> Iterator[Op]:
    dims = (128, 64, 128, 96, 128, 80, 64, 256)
    for i, (u, v) in enumerate(spread(90, 2, 0.1)):
        heads, kv_heads = HEADS[i % len(HEADS)]
        axes = {"heads": heads, "kv_heads": kv_heads, "head_dim": dims[(i // 2) % len(dims)], "q_len": 1}
        sizes = {"batch": round(log_between(u, 1, 256)), "kv_len": round(log_between(v, 16, 32768))}
        yield ops.build("attention", {**axes, **sizes, "dtype": dtype})


def _odd_chunk(dtype: str) -> Iterator[Op]:
    dims = (128, 64, 128, 96)
    for i, (u, v, w) in enumerate(spread(60, 3, 0.1)):
        heads, kv_heads = HEADS[i % len(HEADS)]
        kv_len = round(log_between(v, 64, 32768))
        q_len = max(2, round(log_between(w, 2, min(kv_len, 16384))))
        batch = max(1, round(log_between(u, 1, max(1.0, 16384 / q_len) ** 0.7)))
        axes = {"heads": heads, "kv_heads": kv_heads, "head_dim": dims[(i // 2) % len(dims)], "batch": batch}
        yield ops.build("attention", {**axes, "q_len": q_len, "kv_len": kv_len, "dtype": dtype})


ODD_ROWS = (1, 8, 32, 128, 512, 2048, 8192)
NORM_WIDTHS = (896, 1536, 2048, 2560, 3072, 4096, 4608, 5120, 8192)
INNER_WIDTHS = (3072, 4864, 8192, 11008, 14336, 18432, 27648)
ODD_COMPILED: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("rms_norm", "add_rms_norm", "layer_norm", "add_layer_norm"), NORM_WIDTHS),
    "silu_mul": INNER_WIDTHS, "gelu": INNER_WIDTHS, "relu": (8192, 16384), "rope": (2, 4, 8, 14, 32, 40),
}  # fmt: skip


def _odd_compiled(kind: str, rows: int, width: int, dtype: str) -> Op:
    if kind == "rope":
        return ops.build(kind, {"rows": rows, "heads": width, "head_dim": 64 if width == 14 else 128, "dtype": dtype})
    return ops.build(kind, {"rows": rows, "cols": width, "dtype": dtype})


def _odd_linear(dtype: str) -> Iterator[Op]:
    for i, (u, v, w) in enumerate(spread(260, 3, 0.3)):
        of = (8, 128, 16, 256)[i % 4]
        m = round(log_between(u, 1, 16384))
        n, k = _multiple(log_between(v, 128, 65536), of), _multiple(log_between(w, 128, 28672), of)
        yield ops.build("linear", {"m": m, "n": n, "k": k, "dtype": dtype})


def _odd_prefill(dtype: str, count: int, offset: float) -> Iterator[Op]:
    dims = (64, 128, 64, 96, 128, 80, 64, 256)
    for i, (u, v) in enumerate(spread(count, 2, offset)):
        heads, kv_heads = HEADS[i % len(HEADS)]
        length = round(log_between(v, 16, 12000))
        if i % 3 == 0:
            length = _multiple(length, 64)
        batch = max(1, round(log_between(u, 1, max(1.0, 32768 / length))))
        axes = {"heads": heads, "kv_heads": kv_heads, "head_dim": dims[(i // 2) % len(dims)], "batch": batch}
        yield ops.build("attention", {**axes, "q_len": length, "kv_len": length, "dtype": dtype})


def _odd_rows(kind: str, dtype: str, count: int, offset: float) -> Iterator[Op]:
    for i, (u, v) in enumerate(spread(count, 2, offset)):
        cols = _multiple(log_between(v, 64, 65536), (8, 16, 128)[i % 3])
        most = 2**16 if i % 2 else 2**12
        yield ops.build(kind, {"rows": round(log_between(u, 1, min(most, 2**28 / cols))), "cols": cols, "dtype": dtype})


def family_points(dtype: str) -> list[SamplePoint]:
    """Of the same, the operators that only single families launch under HF transformers."""
    return interleaved(_families(dtype))


def _families(dtype: str) -> list[list[SamplePoint]]:
    groups = [[SamplePoint(op) for op in _composed(kind, dtype)] for kind in COMPOSED_HEADS]
    return groups + [[SamplePoint(op, "", "hot") for op in _rows_cols(kind, dtype, FLAT_POINTS)] for kind in FAMILY_OPS]


def paged_points(dtype: str) -> list[SamplePoint]:
    """Attention over a paged cache by FlashAttention-3, writes into its pages, and experts, as vLLM calls them."""
    attention = (_decode(dtype), _served_decode(dtype), _prefill(dtype), _served_prefill(dtype), _chunk(dtype))
    groups = [[SamplePoint(op, "fa3") for op in ops] for ops in attention]
    return interleaved(
        [*groups, [SamplePoint(op, "paged", "hot") for op in _page_writes(dtype)], *_vllm_experts(dtype)]
    )


def expert_points(dtype: str) -> list[SamplePoint]:
    """Experts and routers as HF transformers runs them: part of the tables, for who has the rest."""
    return interleaved(_experts("_composed", dtype))


def vllm_expert_points(dtype: str) -> list[SamplePoint]:
    """The same as vLLM runs them: part of what is paged."""
    return interleaved(_vllm_experts(dtype))


def window_points(dtype: str) -> list[SamplePoint]:
    """What a full sliding window of a static cache adds: part of the tables, for who has the rest."""
    return interleaved([[SamplePoint(op) for op in _rolls(dtype)]])


def interleaved(groups: Iterable[Sequence[SamplePoint]]) -> list[SamplePoint]:
    found: dict[SamplePoint, float] = {}
    for group in groups:
        for i, point in enumerate(group):
            cost = point.op.cost()
            if cost.bytes <= MAX_BYTES and cost.flops <= MAX_FLOPS:
                found.setdefault(point, i / len(group))
    return sorted(found, key=found.__getitem__)


def _linear(dtype: str) -> Iterator[Op]:
    for u, v, w in spread(LINEAR_POINTS, 3):
        m = round(log_between(u, 1, 16384))
        n, k = _multiple(log_between(v, 512, 32768), 64), _multiple(log_between(w, 512, 16384), 64)
        yield ops.build("linear", {"m": m, "n": n, "k": k, "dtype": dtype})


def _model_linear(dtype: str) -> Iterator[Op]:
    """Every real matrix, at a third of the token counts each, in turn."""
    for i, (n, k) in enumerate(MODEL_MATRICES):
        for m in MODEL_TOKENS[i % 3 :: 3]:
            yield ops.build("linear", {"m": m, "n": n, "k": k, "dtype": dtype})


def _heads(i: int) -> dict[str, int]:
    heads, kv_heads = HEADS[i % len(HEADS)]
    return {"heads": heads, "kv_heads": kv_heads, "head_dim": HEAD_DIMS[(i // 2) % len(HEAD_DIMS)]}


def _decode(dtype: str) -> Iterator[Op]:
    for i, (u, v) in enumerate(spread(ATTENTION_POINTS, 2)):
        batch, kv_len = round(log_between(u, 1, 256)), round(log_between(v, 64, 32768))
        yield ops.build("attention", {**_heads(i), "batch": batch, "q_len": 1, "kv_len": kv_len, "dtype": dtype})


def _served_decode(dtype: str) -> Iterator[Op]:
    """Steps as a server has them: heads of models in use, batches and contexts where most of its time goes."""
    for i, (u, v) in enumerate(spread(SERVED_POINTS, 2)):
        heads, kv_heads, head_dim = SERVED_HEADS[i % len(SERVED_HEADS)]
        axes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "q_len": 1, "dtype": dtype}
        batch, kv_len = round(log_between(u, 1, 128)), round(log_between(v, 96, 8192))
        yield ops.build("attention", {**axes, "batch": batch, "kv_len": kv_len})


def _prefill(dtype: str, count: int = ATTENTION_POINTS) -> Iterator[Op]:
    for i, (u, v) in enumerate(spread(count, 2)):
        length = round(log_between(v, 32, 16384))
        batch = max(1, round(log_between(u, 1, 65536 / length)))
        yield ops.build("attention", {**_heads(i), "batch": batch, "q_len": length, "kv_len": length, "dtype": dtype})


def _served_prefill(dtype: str) -> Iterator[Op]:
    """Prompts as a server has them: every size of heads with every third length in turn, alone or a few."""
    for i, (heads, kv_heads, head_dim) in enumerate(SERVED_HEADS):
        axes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "dtype": dtype}
        for j, length in enumerate(SERVED_LENGTHS[i % 3 :: 3]):
            batch = min(4**j, 16384 // length)
            yield ops.build("attention", {**axes, "batch": batch, "q_len": length, "kv_len": length})


def _chunk(dtype: str) -> Iterator[Op]:
    for i, (u, v, w) in enumerate(spread(ATTENTION_POINTS // 2, 3)):
        kv_len = round(log_between(v, 256, 32768))
        q_len = max(2, round(log_between(w, 2, min(kv_len, 16384))))
        batch = max(1, round(log_between(u, 1, max(1.0, 32768 / q_len) ** 0.7)))
        yield ops.build("attention", {**_heads(i), "batch": batch, "q_len": q_len, "kv_len": kv_len, "dtype": dtype})


def _static_decode(dtype: str) -> Iterator[Op]:
    for i, (u, v) in enumerate(spread(ENGINE_ATTENTION_POINTS, 2)):
        batch, kv_len = round(log_between(u, 1, 128)), round(log_between(v, 96, 8192))
        yield ops.build("masked_attention", {**_heads(i), "batch": batch, "q_len": 1, "kv_len": kv_len, "dtype": dtype})


def _static_prefill(dtype: str) -> Iterator[Op]:
    """Every second of a round length, as most prompts are: then the rows of the mask are aligned, which is faster."""
    for i, (u, v) in enumerate(spread(ENGINE_ATTENTION_POINTS, 2)):
        length = round(log_between(v, 32, 4096))
        if i % 2:
            length = max(1, round(length / SPARE_TOKENS)) * SPARE_TOKENS
        batch = max(1, round(log_between(u, 1, 65536 / length)))
        axes = {**_heads(i), "batch": batch, "q_len": length, "kv_len": length + SPARE_TOKENS, "dtype": dtype}
        yield ops.build("masked_attention", axes)


def _growing(dtype: str) -> Iterator[Op]:
    for i, (u, v) in enumerate(spread(ENGINE_ATTENTION_POINTS, 2)):
        axes = {"batch": round(log_between(u, 1, 128)), "q_len": 1, "kv_len": round(log_between(v, 64, 8192))}
        yield ops.build("growing_attention", {**_heads(i), **axes, "dtype": dtype})


def _composed(kind: str, dtype: str) -> Iterator[Op]:
    """Prompts are mostly of even lengths, and products take other kernels where they are not."""
    sizes = COMPOSED_HEADS[kind]
    prefills, singles = COMPOSED_POINTS
    for i, (u, v) in enumerate(spread(prefills, 2)):
        heads, kv_heads, dim = sizes[i % len(sizes)]
        length = round(log_between(v, 32, 6600))
        length = length | 1 if i % 5 == 3 else _multiple(length, 8)
        batch = max(1, round(log_between(u, 1, max(1.0, min(384, MOST_SCORES / (heads * length**2))))))
        axes = {"heads": heads, "kv_heads": kv_heads, "head_dim": dim, "batch": batch, "dtype": dtype}
        yield ops.build(kind, {**axes, "q_len": length, "kv_len": length})
    for i, (u, v) in enumerate(spread(singles, 2)):
        heads, kv_heads, dim = sizes[i % len(sizes)]
        axes = {"heads": heads, "kv_heads": kv_heads, "head_dim": dim, "q_len": 1, "dtype": dtype}
        batch, kv_len = round(log_between(u, 1, 384)), round(log_between(v, 33, 8192))
        yield ops.build(kind, {**axes, "batch": batch, "kv_len": kv_len})


def _rows_cols(kind: str, dtype: str, count: int, offset: float = 0.5) -> Iterator[Op]:
    """Another offset gives other shapes, so that operators of one kind tell about more of them together."""
    for u, v in spread(count, 2, offset):
        yield _of_rows(kind, dtype, u, _multiple(log_between(v, 128, 32768), 64))


def _widths(kind: str, dtype: str) -> Iterator[Op]:
    for i, (u, v) in enumerate(spread(WIDTH_POINTS, 2)):
        cols = _multiple(log_between(v, *SOFTMAX_COLS), 8) if kind == "softmax" else WIDTHS[i % len(WIDTHS)]
        yield _of_rows(kind, dtype, u, cols)


def _of_rows(kind: str, dtype: str, u: float, cols: int) -> Op:
    rows = round(log_between(u, 1, min(262144, 2**28 / cols)))
    return ops.build(kind, {"rows": rows, "cols": cols, "dtype": dtype})


def _rolls(dtype: str) -> Iterator[Op]:
    for u, v in spread(ROLL_POINTS, 2):
        rows, cols = round(log_between(u, 512, 131072)), _multiple(log_between(v, 256, 8192), 64)
        yield ops.build("kv_roll", {"rows": rows, "cols": cols, "dtype": dtype})


def _page_writes(dtype: str) -> Iterator[Op]:
    for u, v in spread(PAGE_WRITE_POINTS, 2):
        rows, heads = round(log_between(u, 1, 16384)), round(log_between(v, 1, 40))
        yield ops.build("kv_append", {"rows": rows, "cols": 256 * heads, "dtype": dtype})


def _experts(spelling: str, dtype: str, implementation: str = "") -> list[list[SamplePoint]]:
    """Expert layers and routers of models, and others."""
    models = [(u, MODEL_EXPERTS[int(v * len(MODEL_EXPERTS))]) for u, v in spread(MODEL_EXPERT_POINTS, 2)]
    others = [(u, _any_experts(v, w, x)) for u, v, w, x in spread(OTHER_EXPERT_POINTS, 4)]
    groups: list[list[SamplePoint]] = []
    for found in (models, others):
        layers, routers = [], []
        for u, (experts, top_k, hidden, inner) in found:
            tokens = min(MOST_TOKENS, max(1, round(log_between(u, 0.7, 2 * MOST_TOKENS))))
            axes = {"tokens": padded(tokens), "hidden": hidden, "experts": experts, "top_k": top_k, "dtype": dtype}
            layers.append(
                SamplePoint(ops.build("moe_experts" + spelling, {**axes, "intermediate": inner}), implementation)
            )
            routers.append(SamplePoint(ops.build("moe_router" + spelling, axes), implementation))
        groups += [layers, routers]
    return groups


def _any_experts(u: float, v: float, w: float) -> tuple[int, int, int, int]:
    """As MODEL_EXPERTS, within EXPERT_BYTES; many experts are narrow ones."""
    experts, top_k, hidden = 2 ** round(3 + 4 * u), 2 ** round(3 * v), _multiple(log_between(w, 1024, 7168), 256)
    widest = min(14336, EXPERT_BYTES / (6 * experts * hidden))
    return experts, top_k, hidden, _multiple(log_between(1 - u, 512, widest), 128)


def _vllm_experts(dtype: str) -> list[list[SamplePoint]]:
    return _experts("", dtype, "vllm")


def _rope(kind: str, dtype: str) -> Iterator[Op]:
    for i, (u,) in enumerate(spread(ROPE_POINTS, 1)):
        heads = _heads(i)
        rows = round(log_between(u, 1, 65536))
        axes = {
            "rows": rows,
            "heads": heads["heads"] + heads["kv_heads"],
            "head_dim": heads["head_dim"],
            "dtype": dtype,
        }
        yield ops.build(kind, axes)


def _rotary(dtype: str) -> Iterator[Op]:
    for i, (u,) in enumerate(spread(ROTARY_POINTS, 1)):
        axes = {"rows": round(log_between(u, 1, 65536)), "cols": HEAD_DIMS[i % len(HEAD_DIMS)], "dtype": dtype}
        yield ops.build("rotary_table", axes)


def _sampling(dtype: str) -> Iterator[Op]:
    for i, (u,) in enumerate(spread(SAMPLING_POINTS, 1)):
        axes = {"rows": round(log_between(u, 1, 512)), "cols": VOCABULARIES[i % len(VOCABULARIES)], "dtype": dtype}
        yield ops.build("sampling", axes)


def _compiled(kind: str, dtype: str) -> Iterator[Op]:
    """Few widths: each is compiled anew."""
    for rows in COMPILED_ROWS:
        if kind == "rope":
            for heads in (36, 40, 80):
                yield ops.build("rope", {"rows": rows, "heads": heads, "head_dim": 128, "dtype": dtype})
        else:
            for cols in COMPILED_COLS[kind]:
                yield ops.build(kind, {"rows": rows, "cols": cols, "dtype": dtype})


def is_sustained(op: Op) -> bool:
    """Long arithmetic, whose rate depends on the clock that the power limit leads to."""
    cost = op.cost()
    return cost.flops > 4e9 and cost.intensity > 60
