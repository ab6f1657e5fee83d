"""RMS normalisation, its weight multiplied in fp32, as in HF's OLMo-2."""

from __future__ import annotations

from typing import ClassVar

from chip.ops.rms_norm_composed import RmsNormComposed


class RmsNormFp32(RmsNormComposed):
    __slots__ = ()
    kind: ClassVar[str] = "rms_norm_fp32"
    FP32_READ: ClassVar[int] = 5
    FP32_WRITTEN: ClassVar[int] = 4
    OWN_TYPE: ClassVar[int] = 1
