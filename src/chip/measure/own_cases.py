"""Where to measure our own kernels, for predictions of the native engine: `chip profile --suite native`.

Matrices, heads and widths are those of models the engine serves, the sizes in between are spread evenly.
"""

from __future__ import annotations

from collections.abc import Iterator

from chip import ops
from chip.measure.own_ops import NAME
from chip.measure.sampling import SamplePoint, interleaved, log_between, spread
from chip.types import Op

MATRICES = (  # (n, k): projections of 0.5 to 14 billion parameters, and vocabularies
    (1536, 1024), (1024, 1024), (2048, 1024), (6144, 1024), (1024, 3072), (3072, 2048), (2048, 2048), (16384, 2048),
    (2048, 8192), (4608, 3584), (3584, 3584), (37888, 3584), (3584, 18944), (6144, 4096), (4096, 4096), (28672, 4096),
    (4096, 14336), (7168, 5120), (5120, 5120), (34816, 5120), (5120, 17408), (128256, 2048), (128256, 4096),
    (32768, 4096), (152064, 3584),
)  # fmt: skip
FEW = (1, 8, 24, 32, 64)  # rows of decode steps
MANY = (128, 256, 384, 640, 1024, 2048, 8192)  # of prompts: every matrix at four of them
MOST_FLOPS = 1e13
HEADS = (  # queries, keys, size
    (32, 8, 128), (28, 4, 128), (16, 8, 128), (32, 8, 64), (40, 8, 128), (32, 32, 128), (12, 2, 128),
)  # fmt: skip
DECODES, PREFILLS, CHUNKS = 56, 42, 14
WIDTHS = (1024, 2048, 3584, 4096, 5120)
ROWS = (1, 8, 32, 64, 256, 1024, 4096, 8192)
INNER = (3072, 8192, 14336, 18944)
INNER_ROWS = (128, 512, 2048, 8192)


def points(dtype: str) -> list[SamplePoint]:
    groups = [_few(dtype), _many(dtype), _decode(dtype), _prefill(dtype), _rows(dtype), _stores(dtype)]
    return interleaved([[SamplePoint(op, NAME) for op in group] for group in groups])


def _few(dtype: str) -> Iterator[Op]:
    for m in FEW:
        for n, k in MATRICES:
            yield ops.build("linear", {"m": m, "n": n, "k": k, "dtype": dtype})


def _many(dtype: str) -> Iterator[Op]:
    for i, (n, k) in enumerate(MATRICES):
        for m in (MANY[i % 7], MANY[(i + 1) % 7], MANY[(i + 3) % 7], MANY[(i + 5) % 7]):
            if 2 * m * n * k <= MOST_FLOPS:
                yield ops.build("linear", {"m": m, "n": n, "k": k, "dtype": dtype})


def _decode(dtype: str) -> Iterator[Op]:
    for i, (u, v) in enumerate(spread(DECODES, 2)):
        batch, keys = round(log_between(u, 1, 64)), round(log_between(v, 64, 8192))
        yield _attention(i, batch, 1, keys, dtype)


def _prefill(dtype: str) -> Iterator[Op]:
    for i, (u, v) in enumerate(spread(PREFILLS, 2)):
        tokens = round(log_between(v, 32, 8192))
        batch = max(1, round(log_between(u, 1, 8192 / tokens)))
        yield _attention(i, batch, tokens, tokens, dtype)
    for i, (u, v) in enumerate(spread(CHUNKS, 2)):
        new, past = round(log_between(u, 64, 8192)), round(log_between(v, 512, 24576))
        yield _attention(i, 1, new, new + past, dtype)


def _attention(i: int, batch: int, new: int, keys: int, dtype: str) -> Op:
    heads, kv_heads, dim = HEADS[i % len(HEADS)]
    axes = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "head_dim": dim, "q_len": new, "kv_len": keys}
    return ops.build("attention", {**axes, "dtype": dtype})


def _rows(dtype: str) -> Iterator[Op]:
    for rows in ROWS:
        for cols in WIDTHS:
            yield ops.build("add_rms_norm", {"rows": rows, "cols": cols, "dtype": dtype})
    for rows in ROWS[::2]:
        for cols in WIDTHS[1::2]:
            yield ops.build("rms_norm", {"rows": rows, "cols": cols, "dtype": dtype})
        yield ops.build("rms_norm", {"rows": rows, "cols": WIDTHS[0], "dtype": dtype})
    for rows in INNER_ROWS:
        for cols in INNER:
            yield ops.build("silu_mul", {"rows": rows, "cols": cols, "dtype": dtype})


def _stores(dtype: str) -> Iterator[Op]:
    for rows in ROWS:
        for heads, kv_heads, dim in (*HEADS[:4], *HEADS[5:]):
            axes = {"rows": rows, "heads": heads, "kv_heads": kv_heads, "head_dim": dim}
            yield ops.build("rope_store", {**axes, "dtype": dtype})
