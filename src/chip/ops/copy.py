"""Copy of a contiguous tensor from device memory to device memory."""

from __future__ import annotations

from typing import ClassVar

from chip.ops.elementwise import Elementwise


class Copy(Elementwise):
    __slots__ = ()
    kind: ClassVar[str] = "copy"
    FLAT: ClassVar[bool] = True
    FLOPS: ClassVar[int] = 0
