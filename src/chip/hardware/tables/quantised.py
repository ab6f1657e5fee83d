"""Quantised products in tables of others: they stand there as a format of plain products, timed with the rounding of
their input, which a model's program has as a call of its own."""

from __future__ import annotations

from dataclasses import replace

from chip.ops.experts import MoeExperts, PackedExperts, ScaledExperts
from chip.ops.linear import Linear
from chip.ops.quantised import Quantize, ScaledLinear
from chip.types import Op

FORMATS = {("fp8", 0): "fp8", ("fp8", 128): "fp8_block", ("fp4", 16): "nvfp4"}  # by dtype and values of a scale


def published_format(op: Op) -> str:
    """The format under which such tables have a product, or experts, among plain ones; "" where they do not."""
    if isinstance(op, PackedExperts):
        return "mxfp4" if op.weight_dtype == "fp4" else ""
    if isinstance(op, ScaledExperts):
        return FORMATS.get((op.weight_dtype or op.dtype, op.group), "")
    return FORMATS.get((op.weight_dtype or op.dtype, op.group), "") if isinstance(op, ScaledLinear) else ""


def experts_at_sizes_of(op: MoeExperts, plain: Op) -> MoeExperts:
    """Experts in their format, their inputs rounded inside, as such tables time them."""
    assert isinstance(plain, MoeExperts)
    sizes = {name: getattr(plain, name) for name in ("tokens", "hidden", "intermediate", "experts", "top_k", "ranks")}
    return replace(op, **sizes)


def without_blocks(op: ScaledLinear) -> ScaledLinear:
    """The operator whose base time such tables lie on: as its kernels were built, scales cost next to nothing."""
    plain = _of_any_scale(op)
    return replace(plain, block_n=0, block_k=0, group=0) if op.block_k else plain


def at_sizes_of(op: ScaledLinear, plain: Op) -> ScaledLinear:
    assert isinstance(plain, Linear)
    return replace(_of_any_scale(op), m=plain.m, n=plain.n, k=plain.k)


def _of_any_scale(op: ScaledLinear) -> ScaledLinear:
    """Without what such tables do not tell apart: all such products share their points."""
    return replace(op, bias=False, weight_dtype="", per_tensor=False)


def rounding_before(op: ScaledLinear) -> Quantize:
    return Quantize(op.m, op.k, to=op.dtype, group=op.group)
