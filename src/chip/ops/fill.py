"""Fill of a tensor with one value: writes only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from chip.ops.elementwise import Elementwise


@dataclass(frozen=True, slots=True)
class Fill(Elementwise):
    kind: ClassVar[str] = "fill"
    FLAT: ClassVar[bool] = True
    FLOPS: ClassVar[int] = 0
    READS: ClassVar[int] = 0
