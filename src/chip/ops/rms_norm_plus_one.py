"""RMS normalisation in fp32, one added to its weight, as in HF's Gemma."""

from __future__ import annotations

from typing import ClassVar

from chip.ops.rms_norm_fp32 import RmsNormFp32


class RmsNormPlusOne(RmsNormFp32):
    __slots__ = ()
    kind: ClassVar[str] = "rms_norm_plus_one"
    KERNELS: ClassVar[int] = 10
    WEIGHT_FP32: ClassVar[int] = 2
