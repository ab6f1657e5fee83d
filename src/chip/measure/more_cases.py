"""More shapes, mostly of what neighbours say least about: `chip profile --suite more` and `more-paged`.

None is a point of `sampling`, so they first judge the points that there are (`benchmarks/unseen_operators.py`), and
then join them. Sizes are drawn as people ask for them: any prompt, any batch, widths that no list has.
"""

from __future__ import annotations

from collections.abc import Iterator

from chip import ops
from chip.engines.hf_graph import SPARE_TOKENS
from chip.engines.vllm.schedule import padded
from chip.measure.sampling import (
    COMPOSED_HEADS,
    HEADS,
    MODEL_EXPERTS,
    MOST_SCORES,
    MOST_TOKENS,
    SamplePoint,
    interleaved,
    log_between,
    spread,
)
from chip.types import Op

OFFSET = 0.77  # of the sequence: no other suite has it
SIZES = (128, 64, 128, 80, 96, 128, 256)  # of heads
PRODUCTS = 110
PROMPTS, STEPS, CHUNKS = 60, 50, 40
MASKED_PROMPTS, MASKED_STEPS = 110, 50
COMPOSED_PROMPTS, COMPOSED_STEPS = 26, 12
ROUTERS = 50
ROWS_POINTS = 22
COLD = ("rms_norm", "layer_norm", "softmax", "embedding", "add_rms_norm", "add", "silu_mul")
HOT = ("rms_norm_composed", "gelu", "kv_append")
COMPILED = ("rms_norm", "add_rms_norm", "layer_norm", "add_layer_norm")
COMPILED_WIDTHS = (1152, 2304, 3584, 6144)  # few: each is compiled anew
COMPILED_ROWS = (3, 24, 96, 300, 1000, 3000, 5000, 12000)
PAGE_WRITES = 24


def points(dtype: str) -> list[SamplePoint]:
    """Of PyTorch and HF transformers."""
    cold = [_products(dtype), _masked_prompts(dtype), _masked_steps(dtype), _routers("_composed", dtype)]
    cold += [_composed(kind, dtype) for kind in COMPOSED_HEADS]
    cold += [_rows(kind, dtype, i / len(COLD)) for i, kind in enumerate(COLD)]
    groups = [[SamplePoint(op) for op in group] for group in cold]
    groups.append([SamplePoint(op, "flash") for op in _prompts(dtype)])
    groups.append([SamplePoint(op) for op in _steps(dtype)])
    groups += [[SamplePoint(op, "", "hot") for op in _rows(kind, dtype)] for kind in HOT]
    for context in "cold", "hot":
        made = [(kind, cols) for kind in COMPILED[: 4 if context == "cold" else 1] for cols in COMPILED_WIDTHS]
        groups += [[SamplePoint(_wide(*of, n, dtype), "compiled", context) for n in COMPILED_ROWS] for of in made]
    return interleaved(groups)


def paged_points(dtype: str) -> list[SamplePoint]:
    """Of vLLM."""
    groups = [[SamplePoint(op, "fa3") for op in made(dtype)] for made in (_prompts, _steps, _chunks)]
    groups.append([SamplePoint(op, "vllm") for op in _routers("", dtype)])
    return interleaved([*groups, [SamplePoint(op, "paged", "hot") for op in _page_writes(dtype)]])


def _heads(i: int) -> dict[str, int]:
    heads, kv_heads = HEADS[i % len(HEADS)]
    return {"heads": heads, "kv_heads": kv_heads, "head_dim": SIZES[(i // 2) % len(SIZES)]}


def _products(dtype: str) -> Iterator[Op]:
    for u, v, w in spread(PRODUCTS, 3, OFFSET):
        n, k = (max(1, round(log_between(x, 512, 32768) / 32)) * 32 for x in (v, w))
        yield ops.build("linear", {"m": round(log_between(u, 1, 16384)), "n": n, "k": k, "dtype": dtype})


def _prompts(dtype: str) -> Iterator[Op]:
    for i, (u, v) in enumerate(spread(PROMPTS, 2, OFFSET)):
        length = round(log_between(v, 32, 12000))
        batch = max(1, round(log_between(u, 1, max(1.0, 32768 / length))))
        yield ops.build("attention", {**_heads(i), "batch": batch, "q_len": length, "kv_len": length, "dtype": dtype})


def _steps(dtype: str) -> Iterator[Op]:
    for i, (u, v) in enumerate(spread(STEPS, 2, OFFSET)):
        batch, kv_len = round(log_between(u, 1, 256)), round(log_between(v, 64, 16384))
        yield ops.build("attention", {**_heads(i), "batch": batch, "q_len": 1, "kv_len": kv_len, "dtype": dtype})


def _chunks(dtype: str) -> Iterator[Op]:
    for i, (u, v, w) in enumerate(spread(CHUNKS, 3, OFFSET)):
        kv_len = round(log_between(v, 256, 32768))
        q_len = max(2, round(log_between(w, 2, min(kv_len, 8192))))
        batch = max(1, round(log_between(u, 1, max(1.0, 8192 / q_len) ** 0.7)))
        yield ops.build("attention", {**_heads(i), "batch": batch, "q_len": q_len, "kv_len": kv_len, "dtype": dtype})


def _masked_prompts(dtype: str) -> Iterator[Op]:
    """Over a cache of some more slots than the prompt; every second cache is of a round size."""
    for i, (u, v) in enumerate(spread(MASKED_PROMPTS, 2, OFFSET)):
        length = round(log_between(v, 32, 4096))
        slots = length + SPARE_TOKENS
        if i % 2:
            slots = -(-slots // SPARE_TOKENS) * SPARE_TOKENS
        axes = {**_heads(i), "batch": max(1, round(log_between(u, 1, 65536 / length))), "dtype": dtype}
        yield ops.build("masked_attention", {**axes, "q_len": slots - SPARE_TOKENS, "kv_len": slots})


def _masked_steps(dtype: str) -> Iterator[Op]:
    for i, (u, v) in enumerate(spread(MASKED_STEPS, 2, OFFSET)):
        axes = {**_heads(i), "batch": round(log_between(u, 1, 128)), "q_len": 1}
        yield ops.build("masked_attention", {**axes, "kv_len": round(log_between(v, 96, 8192)), "dtype": dtype})


def _composed(kind: str, dtype: str) -> Iterator[Op]:
    sizes = COMPOSED_HEADS[kind]
    for i, (u, v) in enumerate(spread(COMPOSED_PROMPTS + COMPOSED_STEPS, 2, OFFSET)):
        heads, kv_heads, dim = sizes[i % len(sizes)]
        length, q_len, most = round(log_between(v, 33, 8192)), 1, 384.0
        if i % 3:
            length = q_len = max(8, round(log_between(v, 32, 6600) / 8) * 8)
            most = max(1.0, min(most, MOST_SCORES / (heads * length**2)))
        axes = {"heads": heads, "kv_heads": kv_heads, "head_dim": dim, "dtype": dtype}
        yield ops.build(kind, {**axes, "batch": round(log_between(u, 1, most)), "q_len": q_len, "kv_len": length})


def _routers(spelling: str, dtype: str) -> Iterator[Op]:
    for u, v in spread(ROUTERS, 2, OFFSET):
        experts, top_k, hidden, _ = MODEL_EXPERTS[int(v * len(MODEL_EXPERTS))]
        tokens = padded(min(MOST_TOKENS, max(1, round(log_between(u, 0.7, 2 * MOST_TOKENS)))))
        axes = {"tokens": tokens, "hidden": hidden, "experts": experts, "top_k": top_k, "dtype": dtype}
        yield ops.build("moe_router" + spelling, axes)


def _rows(kind: str, dtype: str, offset: float = 0.0) -> Iterator[Op]:
    for i, (u, v) in enumerate(spread(ROWS_POINTS, 2, (OFFSET + offset) % 1)):
        cols = max(1, round(log_between(v, 128, 32768) / (64, 8, 128)[i % 3])) * (64, 8, 128)[i % 3]
        rows = round(log_between(u, 1, min(65536, 2**28 / cols)))
        yield ops.build(kind, {"rows": rows, "cols": cols, "dtype": dtype})


def _wide(kind: str, cols: int, rows: int, dtype: str) -> Op:
    return ops.build(kind, {"rows": rows, "cols": cols, "dtype": dtype})


def _page_writes(dtype: str) -> Iterator[Op]:
    for u, v in spread(PAGE_WRITES, 2, OFFSET):
        axes = {"rows": round(log_between(u, 1, 16384)), "cols": 256 * round(log_between(v, 1, 40)), "dtype": dtype}
        yield ops.build("kv_append", axes)
