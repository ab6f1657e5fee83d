"""RMS normalisation and rounding: one kernel, the result in `to`, with a dynamic scale for each `group` of a row's
values (0: for each row)."""

from __future__ import annotations

from typing import ClassVar

from chip.ops.quantize import WithRounding
from chip.ops.rms_norm import RmsNorm


class RmsNormQuant(WithRounding, RmsNorm):
    __slots__ = ()
    kind: ClassVar[str] = "rms_norm_quant"
    PLAIN = RmsNorm
