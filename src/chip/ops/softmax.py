"""Softmax over the columns: maximum, exponential, sum, division."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from chip.ops.elementwise import Elementwise


@dataclass(frozen=True, slots=True)
class Softmax(Elementwise):
    kind: ClassVar[str] = "softmax"
    FLOPS: ClassVar[int] = 5
    READS: ClassVar[int] = 1
    WRITES: ClassVar[int] = 1
    VECTORS: ClassVar[int] = 0
