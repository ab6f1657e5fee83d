"""The rotated part of each head joined with the rest of it: a copy of all queries, and one of all keys.

Some families join where the rest is empty too.
"""

from __future__ import annotations

from typing import ClassVar

from chip.ops.elementwise import Elementwise


class RopeJoin(Elementwise):
    """Columns are the values of all query and key heads of a token."""

    __slots__ = ()

    kind: ClassVar[str] = "rope_join"
    KERNELS: ClassVar[int] = 2
    FLOPS: ClassVar[int] = 0
