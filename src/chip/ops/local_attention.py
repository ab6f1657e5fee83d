"""Attention under a sliding window as FlashAttention-3 runs it in a graph.

The CUDA graph was captured for the longest context, so that the kernel for windows runs (larger tiles, a mask) even
while a context is shorter than the window.

A `window` of 0 is one that hides nothing yet.
"""

from __future__ import annotations

from typing import ClassVar

from chip.ops.attention import Attention
from chip.records import fields


class LocalAttention(Attention):
    __slots__ = ()
    kind: ClassVar[str] = "local_attention"

    @property
    def plain(self) -> Attention:
        """What stands for it where it was not measured."""
        return Attention(*(getattr(self, f.name) for f in fields(self)))
