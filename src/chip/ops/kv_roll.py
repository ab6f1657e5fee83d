"""A new token's keys and values into a full sliding window of fixed size (HF StaticCache): keys and values are each
rolled by a token into a new tensor, the last slot is written, and all of it is copied back to where it was.

`rows` are the slots of all sequences, `cols` the values of a slot (key and value, all heads).
"""

from __future__ import annotations

from typing import ClassVar

from chip.ops.elementwise import Elementwise
from chip.ops.kv_append import KvAppend
from chip.records import dataclass
from chip.types import Seq


class KvRoll(Elementwise):
    __slots__ = ()
    kind: ClassVar[str] = "kv_roll"
    LEDGER: ClassVar[str] = "kv_append"
    FLOPS: ClassVar[int] = 0
    READS: ClassVar[int] = 2
    WRITES: ClassVar[int] = 2
    KERNELS: ClassVar[int] = 6


@dataclass(frozen=True, slots=True)
class SlidingAppend(KvRoll):
    """As it stands in a program whose sequences are not placed yet: a window with room is appended to."""

    window: int = 1
    OF_SEQUENCES: ClassVar[bool] = True

    def over(self, seq: Seq) -> KvAppend | KvRoll:
        if seq.new == 1 and seq.past >= self.window:
            return KvRoll(seq.count * self.window, self.cols, self.dtype)
        kept = min(seq.new, self.window)  # of a prompt longer than the window, its end
        return KvAppend(seq.count * kept, self.cols, self.dtype)
