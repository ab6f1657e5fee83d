"""Copy of a contiguous tensor from device memory to device memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from chip.ops.elementwise import Elementwise


@dataclass(frozen=True, slots=True)
class Copy(Elementwise):
    kind: ClassVar[str] = "copy"
    FLAT: ClassVar[bool] = True
    FLOPS: ClassVar[int] = 0
