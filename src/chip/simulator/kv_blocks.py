"""The engine's KV cache: blocks of a few tokens, handed out as sequences grow, and found again by what they hold.

With prefix caching, blocks that nobody uses any more stay findable until they are needed: least recently used first,
the end of a sequence before its start. Blocks are counted in groups that live and die together: a shared piece of a
prompt, and what belongs to one request alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class CacheGroup:
    """Consecutive blocks with the same history. `blocks` of `full` are filled and can be found; the first ones stay
    the longest."""

    __slots__ = ("blocks", "children", "full", "refs", "stamp")

    def __init__(self, full: int) -> None:
        self.full = full
        self.blocks = 0
        self.refs = 0
        self.stamp = 0  # of its place in the queue of those to evict; older places do not count
        self.children: dict[int, CacheGroup] = {}


class Holding:
    """What one request holds: groups it shares, the first `shared` blocks of its sequence, and `private` ones after."""

    __slots__ = ("groups", "past", "private", "shared")

    def __init__(self) -> None:
        self.groups: list[CacheGroup] = []
        self.shared = 0
        self.private = 0
        self.past: CacheGroup | None = None  # its own blocks from before it was preempted


class Blocks:
    """The pool. `free` counts what can be handed out, findable or not."""

    def __init__(self, total: int, block_tokens: int, caching: bool, state_blocks: int = 0) -> None:
        """`state_blocks`: that each request holds beside those of its tokens."""
        self.total = self.free = total
        self.block_tokens, self.state_blocks = block_tokens, state_blocks
        self.caching = caching
        self._root = CacheGroup(0)
        self._queue: deque[tuple[CacheGroup, int]] = deque()
        self._blank = total  # of the free ones, those that hold nothing to be found
        self._stamp = 0
        self.evicted = 0

    def needed(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens) + self.state_blocks

    def path(self, ids: Sequence[int], piece_tokens: int) -> list[CacheGroup]:
        """The groups of a prompt's pieces, in order; equal only where all before is equal too."""
        if not self.caching:
            return []
        out, at, size = [], self._root, self.block_tokens
        for i, piece in enumerate(ids):
            found = at.children.get(piece)
            if found is None:
                found = at.children[piece] = CacheGroup((i + 1) * piece_tokens // size - i * piece_tokens // size)
            out.append(found)
            at = found
        return out

    def hit(self, path: Sequence[CacheGroup], own: CacheGroup | None, most_tokens: int) -> int:
        """Tokens at the start of a sequence that are already there; whole blocks only, and at most so many."""
        blocks = 0
        for group in path:
            blocks += group.blocks
            if group.blocks < group.full:
                break
        else:
            blocks += own.blocks if own else 0
        return min(blocks, most_tokens // self.block_tokens) * self.block_tokens

    def fits(
        self, path: Sequence[CacheGroup], own: CacheGroup | None, hit_blocks: int, blocks: int, spare: int
    ) -> bool:
        """Whether a sequence of so many blocks can be held; blocks that it finds and nobody uses are free ones too."""
        found_free, left = 0, hit_blocks
        for group in path:
            taken = min(group.blocks, left)
            left -= taken
            if taken and not group.refs:
                found_free += group.blocks
        found_free += left if own else 0
        return blocks - hit_blocks + found_free + spare <= self.free

    def admit(self, path: Sequence[CacheGroup], holding: Holding, hit_blocks: int, blocks: int) -> None:
        """Take hold of what was found, and of blocks for the rest of this chunk."""
        left = hit_blocks
        for group in path:
            if left <= 0:
                break
            taken = min(group.blocks, left)
            if not group.refs:
                self.free -= group.blocks  # its evictable rest stays with it: it is at its end
                group.stamp = 0
            group.refs += 1
            holding.groups.append(group)
            holding.shared += taken
            left -= taken
        if left > 0 and holding.past:  # its own, from before a preemption
            kept = holding.past
            self.free -= kept.blocks
            spare = kept.blocks - left
            self.free += spare
            self._blank += spare
            kept.stamp = kept.blocks = 0
            holding.private += left
        holding.past = None
        self.take(blocks - hit_blocks)
        holding.private += blocks - hit_blocks

    def fill(self, path: Sequence[CacheGroup], holding: Holding, tokens: int) -> None:
        """So many tokens of a prompt are computed: pieces that are whole can be found from now on."""
        end = 0
        for i, group in enumerate(path):
            end += group.full
            if end * self.block_tokens > tokens:
                break
            if i < len(holding.groups):
                group = holding.groups[i]
                if group.blocks < group.full:  # its end had been evicted; ours takes the place
                    more = group.full - group.blocks
                    group.blocks = group.full
                    holding.private -= more
                    holding.shared += more
            elif group.blocks == 0 and i == len(holding.groups):
                group.blocks, group.refs = group.full, 1
                holding.groups.append(group)
                holding.private -= group.full
                holding.shared += group.full
            else:
                break  # somebody else computed the same at the same time: ours stay our own

    def take(self, count: int) -> None:
        """Hand out blocks, those that hold nothing first. The caller made sure that there are enough."""
        self.free -= count
        self._blank -= count
        while self._blank < 0:
            group, stamp = self._queue[0]
            if group.stamp != stamp:
                self._queue.popleft()
                continue
            gone = min(group.blocks, -self._blank)
            group.blocks -= gone
            self._blank += gone
            self.evicted += gone
            if not group.blocks:
                group.stamp = 0
                self._queue.popleft()

    def release(self, holding: Holding, tokens: int, again: bool) -> None:
        """Give everything back; `again`: the request will come back and may find its own blocks."""
        own = holding.private
        whole = max(0, min(own, tokens // self.block_tokens - holding.shared)) if self.caching else 0
        self._blank += own - whole
        self.free += own
        if whole:
            kept = CacheGroup(whole)
            kept.blocks = whole
            self._queue_up(kept)
            holding.past = kept if again else None
        for group in reversed(holding.groups):
            group.refs -= 1
            if not group.refs:
                self.free += group.blocks
                self._queue_up(group)
        holding.groups.clear()
        holding.private = holding.shared = 0

    def _queue_up(self, group: CacheGroup) -> None:
        self._stamp += 1
        group.stamp = self._stamp
        self._queue.append((group, self._stamp))

    def check(self) -> None:
        """Counted anew; for tests."""
        waiting = sum(g.blocks for g, stamp in self._queue if g.stamp == stamp and not g.refs)
        assert self._blank + waiting == self.free, (self._blank, waiting, self.free)
        assert 0 <= self.free <= self.total
