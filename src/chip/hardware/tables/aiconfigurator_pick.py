"""Which points of the aiconfigurator tables are kept by default: the shapes that models have, not every one measured.

The tables hold up to 140,000 products for a GPU. Kept are levels of each axis, and of every curve over tokens only the
points that its shape needs.
"""

from __future__ import annotations

from collections.abc import Sequence

from chip.hardware.tables.aiconfigurator_rows import FP8_CACHE
from chip.hardware.tables.points_csv import Row
from chip.hardware.tables.thin import thin

TOLERANCE = 0.02
# One row beyond a tile's edge a product takes a step: 1.05 times the time in bf16, up to 1.7 times in fp8 on an H100.
# Prompts have any length, so both sides of the large steps are kept.
ROWS_M = frozenset(
    (1, 2, 4, 8, 16, 32, 64, 128, 129, 256, 257, 512, 513, 768, 1024, 1025, 1536, 2048, 2049, 3072, 4096, 4097,
     8192, 16384)
)  # fmt: skip
WIDTHS_N = frozenset((256, 1024, 2048, 4096, 6144, 8192, 12288, 16384, 65536))
WIDTHS_K = frozenset((256, 1024, 2048, 4096, 8192, 16384, 51200))
# (head_dim, window) -> (heads, kv_heads) of the models that are known, whole and split over 2, 4 and 8 GPUs
HEADS = {
    (64, 0): ((8, 1), (16, 2), (32, 4), (32, 8), (64, 8), (16, 16), (32, 32)),
    (64, 128): ((8, 1), (64, 8)),
    (128, 0): ((4, 1), (8, 1), (8, 2), (16, 2), (16, 4), (32, 4), (16, 8), (32, 8), (40, 8), (64, 8), (8, 8), (16, 16),
               (32, 32)),
    (256, 0): ((4, 1), (8, 1), (16, 2), (16, 4)),
    (256, 1024): ((2, 1), (8, 4), (16, 8)),
}  # fmt: skip
FP8_HEADS = frozenset(((8, 1), (32, 8), (64, 8)))
DECODE_BATCH, PREFILL_BATCH = frozenset((1, 4, 16, 64, 256)), frozenset((1, 4, 16))
MLA_HEADS, MLA_BATCH = frozenset((16, 32, 128)), frozenset((1, 4, 16, 64, 256))
TOKENS = frozenset(2**i for i in range(15))
TOP_K_OF_EXPERTS = frozenset(((8, 2), (16, 1), (32, 4), (128, 1), (128, 4), (128, 8), (256, 8)))
LEAST_INNER = 128  # an expert's width on each of several GPUs; the tables go on to 16


def linear(rows: Sequence[Row], tolerance: float) -> list[Row]:
    found = [r for r in rows if r.at[0] in ROWS_M and r.at[1] in WIDTHS_N and r.at[2] in WIDTHS_K]
    return thin(found, 0, tolerance)


def attention(rows: Sequence[Row], tolerance: float) -> list[Row]:
    decode, prefill = [], []
    for row in rows:
        batch, heads, kv_heads, dim, new, _, window = row.at
        if (heads, kv_heads) not in HEADS.get((dim, window), ()):
            continue
        if row.dtype == FP8_CACHE and (heads, kv_heads) not in FP8_HEADS:
            continue
        if new == 1 and batch in DECODE_BATCH and row.at[5] > 1:
            decode.append(row)
        elif new > 1 and batch in PREFILL_BATCH:
            prefill.append(row)
    return thin(decode, 5, tolerance) + thin(prefill, 4, tolerance, tied=(5,))


def moe_experts(rows: Sequence[Row], tolerance: float) -> list[Row]:
    found = [r for r in rows if r.at[0] in TOKENS and r.at[3:] in TOP_K_OF_EXPERTS and r.at[2] >= LEAST_INNER]
    return thin(found, 0, tolerance)


def mla_module(rows: Sequence[Row], tolerance: float) -> list[Row]:
    found = [r for r in rows if r.at[0] in MLA_BATCH and r.at[1] in MLA_HEADS]
    decode, prefill = [r for r in found if r.at[2] == 1], [r for r in found if r.at[2] > 1]
    return thin(decode, 3, tolerance) + thin(prefill, 2, tolerance, tied=(3,))


def bmm(rows: Sequence[Row], tolerance: float) -> list[Row]:
    return thin([r for r in rows if r.at[0] in MLA_HEADS], 1, tolerance)


def link(rows: Sequence[Row], tolerance: float) -> list[Row]:
    return thin(rows, 0, tolerance)


PICK = {
    "linear": linear,
    "attention": attention,
    "moe_experts": moe_experts,
    "mla_module": mla_module,
    "bmm": bmm,
    "all_reduce": link,
    "all_gather": link,
    "reduce_scatter": link,
    "all_to_all": link,
    "moe_dispatch": link,
    "moe_combine": link,
}
