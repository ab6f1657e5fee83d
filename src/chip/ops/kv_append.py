"""Write of the new tokens' keys and values into the cache: `cols` values a token (key and value, all heads)."""

from __future__ import annotations

from typing import ClassVar

from chip.ops.elementwise import Elementwise


class KvAppend(Elementwise):
    __slots__ = ()
    kind: ClassVar[str] = "kv_append"
    LEDGER: ClassVar[str] = "kv_append"
    FLOPS: ClassVar[int] = 0
