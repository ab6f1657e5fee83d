"""RMS normalisation as HF's Gemma has it: all in fp32, and one is added to the weight each time."""

from __future__ import annotations

from typing import ClassVar

from chip.ops.rms_norm_fp32 import RmsNormFp32


class RmsNormPlusOne(RmsNormFp32):
    __slots__ = ()
    kind: ClassVar[str] = "rms_norm_plus_one"
    KERNELS: ClassVar[int] = 10
    WEIGHT_FP32: ClassVar[int] = 2
