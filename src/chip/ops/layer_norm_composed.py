"""Layer normalisation as HF's Cohere spells it: twelve kernels in fp32."""

from __future__ import annotations

from typing import ClassVar

from chip.ops.rms_norm_fp32 import RmsNormFp32


class LayerNormComposed(RmsNormFp32):
    __slots__ = ()
    kind: ClassVar[str] = "layer_norm_composed"
    KERNELS: ClassVar[int] = 12
    FLOPS: ClassVar[int] = 7
    FP32_READ: ClassVar[int] = 8
    FP32_WRITTEN: ClassVar[int] = 6
    WEIGHT_FP32: ClassVar[int] = 1
