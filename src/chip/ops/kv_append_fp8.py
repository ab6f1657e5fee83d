"""Write of the new tokens' keys and values into an fp8 cache: rounded on the way, `cols` values a token."""

from __future__ import annotations

from typing import ClassVar

from chip.dtypes import BYTES
from chip.ops.kv_append import KvAppend
from chip.types import Cost


class KvAppendFp8(KvAppend):
    __slots__ = ()
    kind: ClassVar[str] = "kv_append_fp8"

    def cost(self) -> Cost:
        return Cost(self.elements, self.elements * BYTES[self.dtype], self.elements * BYTES["fp8"])
